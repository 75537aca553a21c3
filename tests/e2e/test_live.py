"""The live port, with Centrifugo's Python SDK, unmodified, in both encodings."""

import asyncio
import base64
import json
import os
import socket
import struct
import time
import urllib.error
import urllib.request

import pytest
from centrifuge import Client, DeltaType, Filter, SubscriptionEventHandler

from harness import wait
from harness.live import CONFIG, DEADLINE_S, api, live_server, missed, restart, token


@pytest.fixture
def live(make_server, tmp_path):
    return live_server(make_server, tmp_path)


class SubscriptionEvents(SubscriptionEventHandler):
    """The events of a subscription, in order."""

    def __init__(self):
        self.publications, self.subscribed, self.joins, self.leaves = [], asyncio.Queue(), asyncio.Queue(), asyncio.Queue()
        self.more = asyncio.Event()

    async def on_publication(self, ctx):
        data = ctx.pub.data
        self.publications.append((ctx.pub.offset, json.loads(data) if isinstance(data, bytes) else data))
        self.more.set()

    async def on_subscribed(self, ctx):
        await self.subscribed.put(ctx)

    async def on_join(self, ctx):
        await self.joins.put(ctx.info)

    async def on_leave(self, ctx):
        await self.leaves.put(ctx.info)

    async def until(self, count):
        while len(self.publications) < count:
            self.more.clear()
            await asyncio.wait_for(self.more.wait(), DEADLINE_S)


def session(server, protobuf, user="ann", **claims):
    async def get_token():
        return token(user, **claims)

    return Client(f"ws://127.0.0.1:{server.live_port}/connection/websocket", use_protobuf=protobuf, get_token=get_token,
                  min_reconnect_delay=0.05, max_reconnect_delay=0.2)


def data_of(value, protobuf):
    return json.dumps(value).encode() if protobuf else value


async def subscribed(client, channel, **options):
    events = SubscriptionEvents()
    subscription = client.new_subscription(channel, events=events, **options)
    await subscription.subscribe()
    return subscription, events, await asyncio.wait_for(events.subscribed.get(), DEADLINE_S)


both = pytest.mark.parametrize("protobuf", [False, True], ids=["json", "protobuf"])


@both
def test_sessions_receive_each_others_publications(live, protobuf):
    async def run():
        ann, bob = session(live, protobuf), session(live, not protobuf, "bob", info={"name": "Bob"})
        await ann.connect()
        first, events, _ = await subscribed(ann, "room")
        await asyncio.wait_for(events.joins.get(), DEADLINE_S)
        await bob.connect()
        second, also, _ = await subscribed(bob, "room", delta=DeltaType.FOSSIL)
        joined = await asyncio.wait_for(events.joins.get(), DEADLINE_S)
        assert joined.user == "bob"
        for i in range(20):
            client, kind = (first, protobuf) if i % 2 else (second, not protobuf)
            await client.publish(data_of({"text": "what is said " * 5, "n": i}, kind))
        await events.until(20)
        await also.until(20)
        expected = [(i + 1, {"text": "what is said " * 5, "n": i}) for i in range(20)]
        assert events.publications == expected and also.publications == expected
        assert (await first.presence_stats()).num_users == 2
        assert {info.user for info in (await first.presence()).clients.values()} == {"ann", "bob"}
        history = await first.history(limit=5, reverse=True)
        assert [p.offset for p in history.publications] == [20, 19, 18, 17, 16]
        await bob.disconnect()
        left = await asyncio.wait_for(events.leaves.get(), DEADLINE_S)
        assert left.user == "bob" and (await first.presence_stats()).num_clients == 1
        await ann.disconnect()

    asyncio.run(run())


@both
def test_a_kill_loses_and_repeats_no_publication(live, protobuf):
    async def run():
        publisher, listener = session(live, protobuf), session(live, protobuf, "bob")
        await publisher.connect()
        await listener.connect()
        room, _, _ = await subscribed(publisher, "room")
        _, events, began = await subscribed(listener, "room")
        epoch = began.stream_position.epoch
        acknowledged = []
        for i in range(50):
            await room.publish(data_of({"n": i}, protobuf))
            acknowledged.append(i)
        await events.until(20)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, live.kill)
        await loop.run_in_executor(None, missed, live, "room", [{"n": "missed"}])
        await loop.run_in_executor(None, restart, live)
        back = await asyncio.wait_for(events.subscribed.get(), DEADLINE_S)
        assert back.was_recovering and back.recovered and back.stream_position.epoch == epoch
        await room.ready()
        await room.publish(data_of({"n": "after"}, protobuf))
        await events.until(52)
        assert [offset for offset, _ in events.publications] == list(range(1, 53)), "a gap or a duplicate"
        assert [data["n"] for _, data in events.publications] == [*acknowledged, "missed", "after"]
        await publisher.disconnect()
        await listener.disconnect()

    asyncio.run(run())


def test_a_gap_beyond_the_history_is_reported(live):
    async def run():
        client = session(live, False)
        await client.connect()
        _, events, _ = await subscribed(client, "short:room")
        await asyncio.get_running_loop().run_in_executor(None, live.kill)
        await asyncio.get_running_loop().run_in_executor(None, restart, live)
        await asyncio.wait_for(events.subscribed.get(), DEADLINE_S)
        await client.disconnect()
        for i in range(5):
            api(live, "publish", channel="short:room", data={"n": i})
        await client.connect()
        back = await asyncio.wait_for(events.subscribed.get(), DEADLINE_S)
        assert back.was_recovering and not back.recovered
        await client.disconnect()

    asyncio.run(run())


def test_the_api_of_a_back_end(live):
    with pytest.raises(urllib.error.HTTPError) as refused:
        api(live, "info", key="another")
    assert refused.value.code == 401
    first = api(live, "publish", channel="news", data={"n": 1}, idempotency_key="one")["result"]
    assert first["offset"] == 1
    assert api(live, "publish", channel="news", data={"n": 1}, idempotency_key="one")["result"] == first
    answers = api(live, "broadcast", channels=["news", "passing:news", "no:such"], data=2)["result"]["responses"]
    assert answers[0]["result"]["offset"] == 2 and answers[1] == {"result": {}} and answers[2]["error"]["code"] == 102
    history = api(live, "history", channel="news", limit=10)["result"]
    assert [p["data"] for p in history["publications"]] == [{"n": 1}, 2] and history["epoch"] == first["epoch"]
    batch = api(live, "batch", commands=[{"publish": {"channel": "news", "data": 3}}, {"nonsense": {}}])["replies"]
    assert batch[0]["publish"]["offset"] == 3 and batch[1]["error"]["code"] == 104
    assert api(live, "history_remove", channel="news") == {"result": {}}
    assert api(live, "history", channel="news", limit=10)["result"]["publications"] == []
    assert api(live, "publish", channel="news", data=4)["result"] == {**first, "offset": 4}
    for method, params in [("publish", {"channel": "news"}), ("publish", {"data": 1}), ("history", {})]:
        assert api(live, method, **params)["error"]["code"] == 107
    assert api(live, "presence", channel="passing:news")["error"]["code"] == 108

    async def run():
        client = session(live, False)
        await client.connect()
        room, events, _ = await subscribed(client, "news")
        assert api(live, "channels")["result"]["channels"] == {"news": {"num_clients": 1}}
        assert api(live, "info")["result"]["nodes"][0]["num_clients"] == 1
        api(live, "publish", channel="news", data=5)
        await events.until(1)
        api(live, "disconnect", user="ann")
        await asyncio.get_running_loop().run_in_executor(None, until_alone, live)

    asyncio.run(run())


def test_namespaces_and_requests_set_the_durability_of_a_publication(make_server, tmp_path):
    """Publications that a crash may lose change the epoch of their channel at the next start, so
    clients detect the loss."""
    quick = {"name": "quick", "history_size": 10, "history_ttl": "1h", "durability": "async"}
    channels = {**CONFIG["channel"], "namespaces": [*CONFIG["channel"]["namespaces"], quick]}
    server = live_server(make_server, tmp_path, {**CONFIG, "channel": channels})

    def ask(method, durability, **params):
        return api(server, method, headers={"X-Steadfast-Durability": durability} if durability else (), **params)

    may_be_lost = {"a": None, "b": "sync", "c": "async", "quick:a": None, "quick:b": "sync", "quick:c": "async"}
    before = {channel: ask("publish", durability, channel=channel, data=1)["result"]["epoch"] for channel, durability in may_be_lost.items()}
    (one,) = ask("broadcast", "async", channels=["d"], data=1)["result"]["responses"]
    (other,) = ask("batch", "async", commands=[{"publish": {"channel": "e", "data": 1}}])["replies"]
    before |= {"d": one["result"]["epoch"], "e": other["publish"]["epoch"]}
    assert ask("publish", "perhaps", channel="a", data=2)["error"]["code"] == 107
    server.kill()
    restart(server)
    after = {channel: api(server, "history", channel=channel)["result"] for channel in before}
    assert after["a"]["offset"] == 1, "the refused publication is absent"
    assert {channel for channel in before if after[channel]["epoch"] != before[channel]} == {"c", "d", "e", "quick:a", "quick:c"}


def test_the_server_api_reads_whole_histories(make_server, tmp_path):
    """`client.history_max_publication_limit` is a bound on clients."""
    long = {"name": "long", "history_size": 500, "history_ttl": "1h"}
    server = live_server(make_server, tmp_path, {**CONFIG, "channel": {"namespaces": [long]}})
    publish = [{"publish": {"channel": "long:a", "data": number}} for number in range(350)]
    assert len(api(server, "batch", commands=publish)["replies"]) == 350
    for limit in -1, 1000:
        history = api(server, "history", channel="long:a", limit=limit)["result"]
        assert [entry["data"] for entry in history["publications"]] == list(range(350)) and "truncated" not in history
    assert len(api(server, "history", channel="long:a", limit=320)["result"]["publications"]) == 320


def until_alone(server):
    end = time.monotonic() + DEADLINE_S
    while api(server, "info")["result"]["nodes"][0]["num_clients"]:
        assert time.monotonic() < end, "the session stays"


def handshake(server, query="", headers="", path="/connection/websocket", wrap=lambda sock: sock):
    sock = wrap(socket.create_connection(("127.0.0.1", server.live_port), timeout=DEADLINE_S))
    key = base64.b64encode(os.urandom(16)).decode()
    sock.sendall(f"GET {path}{query} HTTP/1.1\r\nHost: live\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                 f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n{headers}\r\n".encode())
    answer = b""
    # Byte by byte: the first frame may follow at once.
    while not answer.endswith(b"\r\n\r\n"):
        piece = sock.recv(1)
        assert piece, answer
        answer += piece
    return sock, answer.split(b" ")[1]


def frame(payload, opcode=1):
    head = bytes([0x80 | opcode])
    head += bytes([0x80 | len(payload)]) if len(payload) < 126 else bytes([0xfe]) + struct.pack(">H", len(payload))
    return head + b"\0\0\0\0" + payload


def messages_of(sock):
    """Each message of the server, as a list of replies."""
    received = b""
    while piece := sock.recv(65536):
        received += piece
        while len(received) >= 2:
            length, at = received[1], 2
            for mark, form, size in ((126, ">H", 2), (127, ">Q", 8)):
                if received[1] == mark:
                    length, at = struct.unpack(form, received[2:2 + size].ljust(size, b"\xff"))[0], 2 + size
            if len(received) < at + length:
                break
            payload, received = received[at:at + length], received[at + length:]
            yield [json.loads(line) for line in payload.splitlines()]


def test_simultaneous_joins_are_batched(live):
    def opened(user):
        sock, status = handshake(live)
        assert status == b"101"
        sock.sendall(frame(json.dumps({"id": 1, "connect": {"token": token(user)}}).encode()))
        return sock

    subscribe = frame(b'{"id": 2, "subscribe": {"channel": "room"}}')
    users = [f"user{n}" for n in range(100)]
    sessions = [opened(user) for user in users]
    sessions[0].sendall(subscribe)
    events, messages = [], 0
    for replies in messages_of(sessions[0]):
        joins = [reply["push"]["join"]["info"]["user"] for reply in replies if "join" in reply.get("push", {})]
        events, messages = events + joins, messages + bool(joins)
        if joins == users[:1]:
            # The first session receives the joins of all later ones.
            for sock in sessions[1:]:
                sock.sendall(subscribe)
        if len(events) == len(users):
            break
    assert sorted(events) == sorted(users)
    assert messages <= 60, "each join was sent in a message of its own"
    for sock in sessions:
        sock.close()


def closed_with(sock):
    """The close code; None when the connection ended without one."""
    received = b""
    while True:
        piece = sock.recv(65536)
        received += piece
        if not piece:
            break
    while received:
        length, at = received[1], 2
        if length == 126:
            length, at = struct.unpack(">H", received[2:4])[0], 4
        if received[0] & 0x0f == 8:
            return struct.unpack(">H", received[at:at + 2])[0]
        received = received[at + length:]
    return None


@pytest.mark.parametrize("sent, code", [
    (frame(b"not json"), 3501),
    (frame(b'{"id":1,"publish":{"channel":"a","data":1}}'), 3501),
    (frame(b'{"id":1,"connect":{"token":"x"}}'), 3500),
    (frame(b'{"id":1,"connect":{}}'), 3501),
    (b"\x81\x01x", 1002),
    (b"\xf1\x81\0\0\0\0x", 1002),
    (b"\x81\xff\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0", 1009),
    (frame(b'{"id":1,"connect":{"token":"%s"}}\n' % token().encode() + b'{"id":2,"connect":{}}'), 3501),
], ids=["no json", "no connect", "no token", "no user", "not masked", "reserved bits", "endless", "twice"])
def test_a_hostile_frame_ends_its_session_and_nothing_else(live, sent, code):
    sock, status = handshake(live)
    assert status == b"101"
    sock.sendall(sent)
    assert closed_with(sock) == code
    assert api(live, "publish", channel="a", data=1)["result"]["offset"] >= 1


def test_invalid_handshakes_and_foreign_origins_are_refused(live):
    assert handshake(live, headers="Origin: https://evil.example\r\n")[1] == b"403"
    assert handshake(live, headers="Origin: http://live\r\n")[1] == b"101"
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://127.0.0.1:{live.live_port}/connection/websocket", timeout=DEADLINE_S)
    assert refused.value.code == 400


def test_a_session_that_does_not_read_is_ended_as_slow(live):
    slow, _ = handshake(live)
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connect = b'{"id":1,"connect":{"token":"%s"}}\n{"id":2,"subscribe":{"channel":"busy"}}' % token("slow").encode()
    slow.sendall(frame(connect))

    async def run():
        client = session(live, False)
        await client.connect()
        _, events, _ = await subscribed(client, "busy")
        await asyncio.to_thread(
            wait.until, lambda: api(live, "presence_stats", channel="busy")["result"]["num_clients"] == 2, what="two subscribers")
        blob = "x" * 20_000
        count = 0
        while api(live, "presence_stats", channel="busy")["result"]["num_clients"] == 2:
            assert count < 2000, "it still exists"
            api(live, "publish", channel="busy", data=blob)
            count += 1
            # The other subscriber must not fall behind too.
            await events.until(count)
        assert [offset for offset, _ in events.publications] == list(range(1, count + 1))
        # The server leaves the channel before it counts the disconnect.
        await asyncio.to_thread(
            wait.until, lambda: live.metric("steadfast_live_slow_disconnects_total") == 1, what="one slow disconnect")
        await client.disconnect()

    asyncio.run(run())


def test_status_and_metrics_count_the_sessions(live):
    def sample(name, **labels):
        text = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
        return live.metrics().get(f"steadfast_live_{name}" + (f"{{{text}}}" if text else ""), 0)

    async def run():
        ann, bob = session(live, False), session(live, True, "bob")
        for client in (ann, bob):
            await client.connect()
        events = [(await subscribed(client, "counted"))[1] for client in (ann, bob)]
        await subscribed(ann, "other")
        for n in range(3):
            api(live, "publish", channel="counted", data=n)
        for one in events:
            await one.until(3)
        # The server counts a delivery after writing it, so the client may be faster.
        await asyncio.to_thread(wait.until, lambda: sample("deliveries_total") == 6, what="six deliveries")
        counts = live.status()["live"]
        expected = {"sessions": 2, "users": 2, "subscriptions": 3, "channels": 2, "publications": 3, "deliveries": 6, "slow": 0}
        assert {key: counts[key] for key in expected} == expected
        assert sample("sessions", encoding="json", transport="websocket") == 1
        assert sample("sessions", encoding="protobuf", transport="websocket") == 1
        assert sample("deliveries_total") == 6
        bounds = {bound["name"]: bound for bound in live.status()["bounds"]}
        assert bounds["live_connections"]["used"] == 2 and bounds["live_connects"]["granted"] == 2
        shown = live.command("status", "--admin", f"http://127.0.0.1:{live.admin_port}").stdout
        assert "2 sessions (1 websocket json, 1 websocket protobuf), 3 subscriptions, 2 channels; 3 publications, 6 deliveries" in shown
        for client in (ann, bob):
            await client.disconnect()

    asyncio.run(run())
    wait.until(lambda: live.status()["live"]["sessions"] == 0, what="the end of the sessions")
    counts = live.status()["live"]
    assert (counts["subscriptions"], counts["channels"], counts["users"]) == (0, 0, 0)
    assert sum(ended["count"] for ended in counts["ended"]) == 2


def test_a_filter_selects_publications(live):
    async def run():
        client = session(live, False)
        await client.connect()
        _, events, _ = await subscribed(client, "tagged", tags_filter=Filter.eq("kind", "a"))
        for kind in "abab":
            api(live, "publish", channel="tagged", data=kind, tags={"kind": kind})
        await events.until(2)
        assert events.publications == [(1, "a"), (3, "a")]
        await client.disconnect()

    asyncio.run(run())


def test_a_mistake_in_the_configuration_is_named(make_server, tmp_path):
    config = tmp_path / "live.json"
    config.write_text(json.dumps({"channel": {"without_namespace": {"presence": "perhaps"}}}))
    server = make_server(start=False, args=["--live-listen", "127.0.0.1:0", "--live-config", str(config)])
    server.start(wait_ready=False)
    assert server.process.wait(DEADLINE_S) == 1
    assert "channel.without_namespace.presence: expected true or false" in server.log()
    assert "live.json" in server.log()
