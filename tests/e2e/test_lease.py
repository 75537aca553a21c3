"""A standby takes over by itself when the lease of the owner has ended."""

import http.client
import json
import os
import signal
import time
from collections import Counter

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync import client as sync

from harness import wait
from harness.cluster import Nodes
from harness.live import CONFIG, api, live_server, token
from test_archive import BUCKET, archive_settings, caught_up, fill, refused, store  # noqa: F401
from test_restore import POOL, Publisher, keys
from test_standby import ARCHIVED, aside_of, follows, progress, serves, standby_of, start, under_load, writes_wait

LEASE_S = 5
LEASE = {"archive.lease": f"{LEASE_S} s"}


def takes_over(standby, begun):
    """Waits until the standby has answered a write. Returns the time since `begun` in seconds."""
    def written():
        try:
            return standby.request("PUT", f"/{BUCKET}/first", b"first")[0] == 200
        except OSError:
            return False

    wait.until(lambda: standby.process.poll() is not None or "ready:" in standby.log(), 60, "it takes over")
    assert standby.process.poll() is None, standby.log()
    serves(standby)
    wait.until(written, 60, "it answers a write")
    return time.monotonic() - begun


def ask(server, connection):
    """A signed read through a connection that is kept; its status."""
    return server.request("GET", f"/{BUCKET}/known", connection=connection)[0]


@pytest.mark.parametrize("promise", [{}, ARCHIVED], ids=["local", "archived"])
@pytest.mark.timeout(1800)
def test_a_standby_takes_over_by_itself_under_load(make_server, store, tmp_path, request, promise):  # noqa: F811
    settings = {**archive_settings(store), **LEASE, **promise}
    servers = [live_server(make_server, tmp_path, name="owner", settings=settings, **POOL)]
    servers[0].s3().create_bucket(Bucket=BUCKET)
    servers[0].s3().put_object(Bucket=BUCKET, Key="known", Body=b"known")
    publisher, took = Publisher(), []
    for number in range(max(2, request.config.getoption("--rounds") - 1)):
        if promise:
            writes_wait(servers[-1])
        owner, standby, writers = under_load(make_server, servers, number, tmp_path)
        early_ms = publisher.publish(owner)
        wait.until(lambda: (progress(standby).get("copied_ms") or 0) > early_ms, 60, "the standby follows")
        assert 0 < progress(standby)["take_over_seconds"] <= 1.1 * LEASE_S
        archived_ms = progress(standby)["copied_ms"]
        connection = owner.connect()
        assert ask(owner, connection) == 200
        begun = time.monotonic()
        if number % 2:
            owner.kill()
        else:
            owner.process.send_signal(signal.SIGSTOP)
        took.append(takes_over(standby, begun))
        if number % 2 == 0:
            # It is woken, and says nothing that is not true any more.
            connection.sock.settimeout(60)
            owner.process.send_signal(signal.SIGCONT)
            with pytest.raises((http.client.HTTPException, OSError)):
                ask(owner, connection)
            assert owner.process.wait(60) == 4, owner.log()
        connection.close()
        [writer.join() for writer in writers]
        [writer.check(standby, float("inf") if promise else archived_ms) for writer in writers]
        published = publisher.count
        if promise:
            answer = api(standby, "history", channel="news", limit=10_000)["result"]
            assert [publication["data"] for publication in answer["publications"]] == list(range(published))[-1000:]
            assert {answer["epoch"]} == publisher.epochs, "clients continue"
        else:
            publisher.check(standby, archived_ms)
        aside = Counter(json.loads(line)["what"] for line in aside_of(owner))
        listed = [what for what in aside if what.startswith("publication ")]
        assert len(listed) == published - publisher.count, (aside, published, publisher.count)
        servers.append(standby)
    assert max(took) < LEASE_S + 3, took


def test_a_store_that_is_away_ends_the_lease_and_gives_it_back(make_server, store, tmp_path):  # noqa: F811
    settings = {**archive_settings(store), **LEASE, "archive.start_wait": "1 s"}
    streams = {**CONFIG, "http_stream": {"enabled": True}}
    owner = live_server(make_server, tmp_path, streams, name="owner", settings=settings, **POOL)
    owner.s3().create_bucket(Bucket=BUCKET)
    standby = start(standby_of(make_server, owner, "standby", tmp_path))
    fill(owner, 5)
    follows(standby, owner)
    connection = owner.connect()
    assert owner.request("GET", f"/{BUCKET}/k1", connection=connection)[0] == 200
    connect = json.dumps({"id": 1, "connect": {"token": token()}})
    session = sync.connect(f"ws://{owner.address}:{owner.live_port}/connection/websocket")
    session.send(connect)
    assert "connect" in json.loads(session.recv(20))
    stream = http.client.HTTPConnection(owner.address, owner.live_port, timeout=20)
    stream.request("POST", "/connection/http_stream", connect)
    stream = stream.getresponse()
    assert b"connect" in stream.readline()
    assert 0 < owner.metric("steadfast_archive_lease_seconds") <= LEASE_S - 1
    assert 0 < standby.metric("steadfast_standby_take_over_seconds") <= 1.1 * LEASE_S
    os.kill(store.process.pid, signal.SIGSTOP)
    wait.until(lambda: owner.admin("/health/ready")[0] == 503, 30, "the lease ends")
    assert "the lease on the archive" in owner.admin("/health/ready")[1]
    assert owner.status()["archive"]["lease_seconds"] == 0
    # What it answered might be untrue.
    with pytest.raises((http.client.HTTPException, OSError)):
        owner.request("GET", f"/{BUCKET}/k1", connection=connection)
    for ask_it in (lambda: owner.request("GET", f"/{BUCKET}/k1"), lambda: api(owner, "info")):
        with pytest.raises((http.client.HTTPException, OSError)):
            ask_it()
    # Sessions do not wait for their next ping.
    with pytest.raises(ConnectionClosed):
        while True:
            session.recv(10)
    with pytest.raises(http.client.IncompleteRead):
        stream.read()
    # Longer than the standby waits.
    time.sleep(LEASE_S)
    os.kill(store.process.pid, signal.SIGCONT)
    wait.until(lambda: owner.admin("/health/ready")[0] == 200, 30, "the lease is renewed")
    assert owner.request("GET", f"/{BUCKET}/k1")[0] == 200
    assert api(owner, "publish", channel="news", data=1)["result"]["offset"] == 1
    assert follows(standby, owner)["tenure"] == 1, "the owner was alive"

    # A start needs the store, also after a crash.
    owner.kill()
    store.kill()
    code, log = refused(owner)
    assert code == 1 and "may have another owner" in log, log
    store.start()
    owner.start()
    # A restart within the lease is no reason to take over; a stop is, and loses nothing.
    assert owner.stop() == 0
    owner.start()
    follows(standby, owner)
    position = api(owner, "publish", channel="news", data=2)["result"]
    before = keys(owner)
    begun = time.monotonic()
    assert owner.stop() == 0
    assert takes_over(standby, begun) < LEASE_S + 5
    answer = api(standby, "history", channel="news", limit=10)["result"]
    assert (answer["epoch"], answer["offset"]) == (position["epoch"], position["offset"]), answer
    assert before.items() <= keys(standby).items()
    assert caught_up(standby)["lease_seconds"] > 0


def test_the_links_of_a_home_end_with_its_lease(make_server, store, tmp_path):  # noqa: F811
    """A home opens links to nodes with lesser names, and accepts those of others."""
    nodes, file, live = Nodes(make_server, names=["a", "home", "z"], homes=["home"]), tmp_path / "home.toml", tmp_path / "live.json"
    settings = {**archive_settings(store), **LEASE}
    file.write_text("[archive]\n" + "".join(f'{key.removeprefix("archive.")} = "{value}"\n' for key, value in settings.items()))
    live.write_text(json.dumps(CONFIG))
    a, home, z = (nodes.make(name, args=["--live-config", str(live), *(["--config", str(file)] if name == "home" else [])])
                  for name in ("a", "home", "z"))
    nodes.connected()
    for front in (a, z):
        assert "offset" in api(front, "publish", channel="news", data=1)["result"]
    os.kill(store.process.pid, signal.SIGSTOP)
    wait.until(lambda: home.status()["archive"]["lease_seconds"] == 0, 30, "the lease ends")
    for name, front in (("a", a), ("z", z)):
        assert "error" in api(front, "publish", channel="news", data=2)
        wait.until(lambda name=name: nodes.links(name)["home"]["state"] != "up", 20, "the link ends")
    os.kill(store.process.pid, signal.SIGCONT)
    nodes.connected()
    answers = [api(front, "publish", channel="news", data=3)["result"]["offset"] for front in (a, z)]
    assert answers[1] == answers[0] + 1
