"""Channels of a home, with sessions at other nodes: order, recovery, and what a lost node costs."""

import asyncio
import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import urllib.request

import pytest

from harness import wait
from harness.cluster import Nodes
from harness.live import api, restart, token
from harness.server import binary, free_port
from harness.session import SubscriptionEvents, connecting, next_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
# A lost link is found within 3 s; a second more is for the status.
LOST_S = 4


@pytest.fixture
def nodes(make_server):
    """A home and two fronts."""
    return Nodes(make_server, names=["home", "one", "two"], homes=["home"])


async def subscribe(server, channel, protobuf=False, **options):
    """A session with a subscription, and the events of both."""
    client, session = await connecting(server, protobuf, token=token(), **options)
    events = SubscriptionEvents()
    subscription = client.new_subscription(channel, events=events)
    await subscription.subscribe()
    return client, session, subscription, events, await next_of(events.subscribed)


async def values(events, count):
    return [(await next_of(events.publications))["n"] for _ in range(count)]


def publish(server, channel, n):
    return api(server, "publish", channel=channel, data={"n": n})["result"]["offset"]


def test_all_sessions_get_all_publications_in_the_same_order(nodes, tmp_path):
    home, one, two = servers = nodes.make_live(tmp_path)

    async def run():
        sessions = [await subscribe(server, "room", protobuf) for server in servers for protobuf in [False, True]]
        turns = itertools.cycle(servers)
        offsets = [await asyncio.to_thread(publish, next(turns), "room", n) for n in range(30)]
        assert offsets == list(range(1, 31))
        # A client publishes at its front.
        await sessions[2][2].publish({"n": 30})
        for _, _, _, events, _ in sessions:
            assert await values(events, 31) == list(range(31))
        history = await sessions[4][2].history(limit=100)
        assert [one.offset for one in history.publications] == list(range(1, 32))
        assert api(one, "history", channel="room", limit=2)["result"]["offset"] == 31
        for client, *_ in sessions:
            await client.disconnect()

    asyncio.run(run())
    # One frame a node and publication, whatever the number of sessions there.
    assert home.metric("steadfast_cluster_publications_sent_total") == 2 * 31
    assert one.metric("steadfast_cluster_publications_received_total") == 31
    assert two.metric("steadfast_cluster_gaps_total") == 0


def test_publications_without_history_reach_all_nodes(nodes, tmp_path):
    servers = nodes.make_live(tmp_path)

    async def run():
        sessions = [await subscribe(server, "passing:room") for server in servers]
        for n, server in enumerate(servers):
            await asyncio.to_thread(api, server, "publish", channel="passing:room", data={"n": n})
            for _, _, _, events, _ in sessions:
                assert await values(events, 1) == [n]
        for client, *_ in sessions:
            await client.disconnect()

    asyncio.run(run())


def test_a_client_recovers_at_another_node(nodes, tmp_path):
    home, one, two = nodes.make_live(tmp_path)

    async def run():
        client, _, _, events, _ = await subscribe(one, "room")
        await asyncio.to_thread(publish, home, "room", 0)
        assert await values(events, 1) == [0]
        one.kill()
        for n in range(1, 4):
            await asyncio.to_thread(publish, two, "room", n)
        # The client reaches the other node, as behind a load balancer.
        client._address = client._address.replace(str(one.live_port), str(two.live_port))
        again = await next_of(events.subscribed)
        assert (again.was_recovering, again.recovered) == (True, True)
        assert await values(events, 3) == [1, 2, 3]
        await client.disconnect()

    asyncio.run(run())


def test_a_killed_home_costs_no_session_and_no_publication(nodes, tmp_path):
    home, one, two = nodes.make_live(tmp_path)

    async def run():
        sessions = [await subscribe(server, "room") for server in [one, two]]
        published = []
        for round_ in range(3):
            for n in range(5):
                value = round_ * 10 + n
                await asyncio.to_thread(publish, one, "room", value)
                published.append(value)
            home.kill()
            wait.until(lambda: nodes.links("one")["home"]["state"] == "down", LOST_S, "the loss of the home")
            refused = await asyncio.to_thread(api, one, "publish", channel="room", data={"n": 99})
            assert refused["error"]["code"] == 100 and "not reachable" in refused["error"]["message"]
            await asyncio.to_thread(restart, home)
            await asyncio.to_thread(nodes.connected)
        await asyncio.to_thread(publish, two, "room", 100)
        for _, session, _, events, _ in sessions:
            assert await values(events, len(published) + 1) == [*published, 100]
            assert session.disconnected.empty() and events.unsubscribed.empty()
        for client, *_ in sessions:
            await client.disconnect()

    asyncio.run(run())


def test_a_front_that_hangs_is_found_and_misses_nothing(nodes, tmp_path):
    home, one, two = nodes.make_live(tmp_path)

    async def run():
        client, session, _, events, _ = await subscribe(one, "room")
        await asyncio.to_thread(publish, home, "room", 0)
        os.kill(one.process.pid, signal.SIGSTOP)
        try:
            await asyncio.to_thread(
                wait.until, lambda: nodes.links("home")["one"]["state"] == "down", LOST_S, "the loss of the front")
            for n in range(1, 6):
                await asyncio.to_thread(publish, two, "room", n)
        finally:
            os.kill(one.process.pid, signal.SIGCONT)
        assert await values(events, 6) == list(range(6))
        assert session.disconnected.empty()
        await client.disconnect()

    asyncio.run(run())
    assert one.metric("steadfast_cluster_resets_total") == 0


def test_the_example_serves_a_channel_at_both_fronts(tmp_path):
    # The example's processes are ten ports apart.
    base = free_port(in_a_row=60)
    # Variables that begin with STEADFAST_ are settings.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STEADFAST")}
    environment["STEADFAST"] = binary("steadfast")
    with open(tmp_path / "output", "w") as output:
        example = subprocess.Popen([str(ROOT / "examples/cluster/run"), str(tmp_path / "cluster"), str(base)],
                                   env=environment, stdout=output, stderr=output)

    def call(front, method, **params):
        request = urllib.request.Request(f"http://127.0.0.1:{base + 2 + 10 * front}/api/{method}", method="POST",
                                         data=json.dumps(params).encode())
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return json.load(answer).get("result")
        except OSError:
            assert example.poll() is None, (tmp_path / "output").read_text()
            return None

    try:
        wait.until(lambda: call(2, "publish", channel="news", data={"n": 1}), what="the nodes", every_s=0.1)
        found = wait.until(lambda: call(3, "history", channel="news", limit=10), what="the history")
        assert [one["data"] for one in found["publications"]] == [{"n": 1}]
    finally:
        example.terminate()
        assert example.wait(60) == 0


def test_sessions_recover_when_the_home_has_lost_its_disk(nodes, tmp_path):
    home, one, _ = nodes.make_live(tmp_path)

    async def run():
        client, session, _, events, _ = await subscribe(one, "room")
        await asyncio.to_thread(publish, home, "room", 0)
        assert await values(events, 1) == [0]
        home.kill()
        shutil.rmtree(home.data)
        await asyncio.to_thread(restart, home)
        again = await next_of(events.subscribed)
        assert (again.was_recovering, again.recovered) == (True, False)
        assert session.disconnected.empty(), "only the subscription begins anew"
        await asyncio.to_thread(publish, one, "room", 1)
        assert await values(events, 1) == [1]
        await client.disconnect()

    asyncio.run(run())
    assert one.metric("steadfast_cluster_resets_total") == 1


def refusal(server):
    """Why a server does not start."""
    with pytest.raises(AssertionError, match="the server ended with 1"):
        server.start()
    return server.log()


def test_a_pool_belongs_to_its_home(make_server, tmp_path):
    """Swapped disks are refused. The removal of a home moves no channel of the others."""
    nodes = Nodes(make_server, names="abc", homes="abc")
    servers = a, b, c = nodes.make_live(tmp_path)
    rooms = [f"room{number}" for number in range(40)]
    homes = {room: json.loads(a.command("cluster", "ring", room, "--json").stdout)["home"]["name"] for room in rooms}
    assert set(homes.values()) == set("abc")

    def publish(server, room):
        assert "result" in api(server, "publish", channel=room, data={"in": room})

    def stored(server):
        return [room for room in rooms if api(server, "history", channel=room, limit=1)["result"]["publications"]]

    for room in rooms:
        publish(a, room)
    assert [server.stop() for server in servers] == [0, 0, 0]
    a.data, b.data = b.data, a.data
    for server, own, other in [(a, "a", "b"), (b, "b", "a")]:
        assert f'the pool belongs to the home "{other}", and this node is "{own}"' in refusal(server)
    a.data, b.data = b.data, a.data

    # Another order, and without the home in the middle.
    for server in (a, c):
        server.settings["cluster.homes"] = "c,a"
        server.start()
    wait.until(lambda: nodes.links("a")["c"]["state"] == "up", what="the link")
    assert stored(a) == stored(c) == [room for room in rooms if homes[room] != "b"]
    moved = next(room for room in rooms if homes[room] == "b")
    publish(a, moved)
    home = json.loads(a.command("cluster", "ring", moved, "--json").stdout)["home"]["name"]
    server = nodes.servers[home]
    assert server.stop() == 0
    server.settings["cluster.homes"] = "a,b,c"
    why = refusal(server)
    assert "would have another home: 1 (" in why and "the homes were c, a, and are a, b, c" in why, why
    server.args.append("--accept-moved-channels")
    server.start()
    assert server.stop() == 0
    server.args.pop()
    server.start()
