"""Fronts without disks, and channels that mirror the bucket of one home."""

import asyncio
import http.client
import json

import pytest

from harness import wait
from harness.cluster import Nodes
from harness.events import CHANNEL, MIRRORING, event_of, forwarded, history, notify
from harness.live import api, token
from harness.sdk import fails
from harness.session import SubscriptionEvents, connecting, next_of

REASON = "is a front of a cluster and has no disks"


@pytest.fixture
def nodes(make_server):
    """Two homes and a front."""
    return Nodes(make_server, names=["a", "b", "front"], homes=["a", "b"])


def mirroring(home):
    """The live configuration in which the channels `files:` mirror the bucket of a home."""
    config = json.loads(json.dumps(MIRRORING))
    for namespace in config["channel"]["namespaces"]:
        if "mirror_bucket" in namespace:
            namespace["mirror_home"] = home
    return config


def test_a_front_has_no_pool_and_answers_s3_with_the_reason(nodes, tmp_path):
    _, _, front = nodes.make_live(tmp_path)
    with fails("ServiceUnavailable", 503) as failure:
        front.s3().create_bucket(Bucket="media")
    assert REASON in str(failure.value)
    with fails("ServiceUnavailable", 503):
        front.s3().put_object(Bucket="media", Key="k", Body=b"x" * 500_000)
    with fails("503", 503):
        front.s3().head_object(Bucket="media", Key="k")
    # A client that waits for permission to send its body gets the answer instead.
    connection = http.client.HTTPConnection("127.0.0.1", front.s3_port, timeout=10)
    connection.request("PUT", "/media/k", headers={"Expect": "100-continue", "Content-Length": str(1 << 40)})
    assert connection.getresponse().status == 503
    connection.close()
    assert {path.name for path in front.data.iterdir()} & {"pool", "index", "credentials.json"} == set()

    status = front.status()
    assert status["ready"] and "store" not in status and "disk" not in status
    shown = front.command("status", "--data", front.data)
    assert shown.returncode == 0 and "homes: a, b" in shown.stdout
    refused = front.command("disk", "drain", "x", "--data", front.data)
    assert refused.returncode != 0 and "run the command at a home" in refused.stderr

    # Its sessions and its API use the channels of both homes.
    for n in range(10):
        assert api(front, "publish", channel=f"room{n}", data={"n": n})["result"]["offset"] == 1
        assert [one["data"] for one in history(front, f"room{n}")] == [{"n": n}]
    assert front.metrics()["steadfast_cluster_watched_channels"] == 0
    assert front.stop(10) == 0
    front.start()
    nodes.connected()
    assert api(front, "publish", channel="room0", data={"n": 1})["result"]["offset"] == 2


def test_a_node_with_a_pool_does_not_start_as_a_front(nodes):
    nodes.homes = "a,b,front"
    front = nodes.make("front")
    assert front.stop(10) == 0
    nodes.homes = "a,b"
    with pytest.raises(AssertionError, match="opens no pool"):
        nodes.make("front")


@pytest.mark.parametrize("home", ["a", "b"])
def test_channels_mirror_the_bucket_of_the_named_home(nodes, tmp_path, home):
    other = "b" if home == "a" else "a"
    nodes.make_live(tmp_path, mirroring(home))
    servers, front = nodes.servers, nodes.servers["front"]
    for name in "ab":
        servers[name].s3().create_bucket(Bucket="media")

    async def run():
        client, _ = await connecting(front, False, token=token())
        events = SubscriptionEvents()
        await client.new_subscription("files:/42", events=events).subscribe()
        await next_of(events.subscribed)
        # The bucket of the same name at the other home is another one.
        await asyncio.to_thread(servers[other].s3().put_object, Bucket="media", Key="rooms/42/other", Body=b"")
        for n in range(3):
            await asyncio.to_thread(servers[home].s3().put_object, Bucket="media", Key=f"rooms/42/{n}", Body=b"")
        for n in range(3):
            assert event_of(await next_of(events.publications)) == ("ObjectCreated:Put", f"rooms/42/{n}")
        await client.disconnect()

    asyncio.run(run())
    # The home of the bucket is the home of its channels: they need no other node.
    servers[other].kill()
    servers[home].s3().put_object(Bucket="media", Key="rooms/7/x", Body=b"")
    wait.until(lambda: len(history(front, "files:/")) == 4, what="the event")
    forwarded(servers[home])


def test_events_of_a_bucket_reach_a_channel_of_another_home(nodes, tmp_path):
    nodes.make_live(tmp_path, mirroring("a"))
    servers = nodes.servers
    channels = [f"changes:{n}" for n in range(6)]
    for name in "ab":
        s3 = servers[name].s3()
        s3.create_bucket(Bucket="photos")
        notify(s3, "photos", *[(CHANNEL + channel, ["s3:ObjectCreated:*"], name) for channel in channels])
        s3.put_object(Bucket="photos", Key=f"{name}1", Body=b"")
    for channel in channels:
        wait.until(lambda: len(history(servers["front"], channel)) == 2, what="an event of each home")
    # Events wait for a home that is down.
    servers["b"].kill()
    servers["a"].s3().put_object(Bucket="photos", Key="a2", Body=b"")
    servers["b"].start()
    nodes.connected()
    for channel in channels:
        wait.until(lambda: len(history(servers["front"], channel)) >= 3, 30, "the event of the time without b")
        assert {event_of(one["data"])[1] for one in history(servers["front"], channel)} == {"a1", "b1", "a2"}


def test_nodes_with_other_homes_of_a_mirror_refuse_each_other(nodes, tmp_path):
    nodes.make_live(tmp_path, mirroring("a"))
    front = nodes.servers["front"]
    assert front.stop(10) == 0
    (tmp_path / "live.json").write_text(json.dumps(mirroring("b")))
    front.start()
    wait.until(lambda: "another list of homes" in (nodes.links("front")["a"]["error"] or ""), 15, "the refusal")
