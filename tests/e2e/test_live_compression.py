"""Compressed WebSocket messages (permessage-deflate): with both SDKs, and byte by byte."""

import asyncio
import json
import struct
import zlib

import pytest

from harness import js
from harness.live import CONFIG, api, live_server, restart, token
from test_live import both, closed_with, data_of, frame, handshake, session, subscribed
from test_live_js import opened

OFFER = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n"
LONG = {"text": "what is said is said again, and again, and again. " * 20}


def compressing(make_server, tmp_path, **options):
    websocket = {"compression": True, "message_size_limit": 20_000, **options}
    return live_server(make_server, tmp_path, {**CONFIG, "websocket": websocket})


@pytest.fixture
def live(make_server, tmp_path):
    return compressing(make_server, tmp_path)


def deflate(payload):
    compressor = zlib.compressobj(wbits=-15)
    return (compressor.compress(payload) + compressor.flush(zlib.Z_SYNC_FLUSH)).removesuffix(b"\0\0\xff\xff")


class Raw:
    """A session whose raw frames a test sees."""

    def __init__(self, live, headers=OFFER, channels=("news",)):
        self.sock, status = handshake(live, headers=headers)
        assert status == b"101"
        self.received, self.come = b"", []
        self.command({"id": 1, "connect": {"token": token(channels=list(channels))}})

    def command(self, command, compressed=False):
        payload = json.dumps(command).encode()
        self.sock.sendall(frame(deflate(payload), opcode=0x41) if compressed else frame(payload))

    def next(self):
        """Whether the next message is compressed, the length of its frame, and its content; skips
        pings."""
        while not self.come:
            length, at = self.take(2)[1], 2
            if length == 126:
                length, at = struct.unpack(">H", self.take(4)[2:])[0], 4
            whole = self.take(at + length)
            self.received = self.received[at + length:]
            first, payload = whole[0], whole[at:]
            assert first & 0x0f == 1, whole
            if first & 0x40:
                payload = zlib.decompressobj(wbits=-15).decompress(payload + b"\0\0\xff\xff")
            # Messages that are ready together share one frame.
            messages = [json.loads(line) for line in payload.splitlines()]
            self.come += [(bool(first & 0x40), length, message) for message in messages if message]
        return self.come.pop(0)

    def until(self, wanted):
        """The next message that contains this."""
        while wanted not in json.dumps((found := self.next())[2]):
            pass
        return found

    def take(self, count):
        while len(self.received) < count:
            piece = self.sock.recv(65536)
            assert piece, f"the end, after {self.received}"
            self.received += piece
        return self.received[:count]


def test_long_messages_are_compressed_for_clients_that_offer_it(live):
    plain, first, second = Raw(live, headers=""), Raw(live), Raw(live)
    for one in (plain, first, second):
        assert one.until('"connect"')[2]["connect"]["client"]
    api(live, "publish", channel="news", data=LONG)
    events = [one.until("said again") for one in (plain, first, second)]
    assert all(message["push"]["pub"]["data"] == LONG for _, _, message in events)
    (_, whole, _), (_, short, _), (_, other, _) = events
    assert [compressed for compressed, _, _ in events] == [False, True, True] and short == other < whole / 5
    # Replies, missed publications, and messages that the client compresses itself.
    first.command({"id": 2, "history": {"channel": "nowhere" * 10}}, compressed=True)
    assert first.until('"id": 2')[2]["error"]["code"] == 103
    plain.command({"id": 2, "subscribe": {"channel": "news2"}})
    first.command({"id": 3, "subscribe": {"channel": "room", "recover": True, "epoch": "", "offset": 0}}, compressed=True)
    assert "subscribe" in first.until('"id": 3')[2]
    for n in range(20):
        api(live, "publish", channel="other", data={**LONG, "n": n})
    for one in (first, second, plain):
        one.command({"id": 4, "subscribe": {"channel": "other", "recover": True}}, compressed=one is first)
    answers = [one.until('"id": 4') for one in (first, second, plain)]
    assert [compressed for compressed, _, _ in answers] == [True, True, False]
    assert answers[0][1] == answers[1][1] < answers[2][1] / 10
    assert answers[0][2] == answers[1][2] == answers[2][2]


def test_short_messages_are_not_compressed(make_server, tmp_path):
    live = compressing(make_server, tmp_path, compression_min_size=300, compression_level=9)
    one = Raw(live)
    one.until('"connect"')
    for data, compressed in [("x" * 200, False), ("x" * 400, True)]:
        api(live, "publish", channel="news", data=data)
        assert one.until("xxx")[0] == compressed


def test_compression_is_off_by_default(make_server, tmp_path):
    live = live_server(make_server, tmp_path)
    one = Raw(live)
    one.until('"connect"')
    api(live, "publish", channel="news", data=LONG)
    assert not one.until("said again")[0]
    one.command({"id": 2, "ping": {}}, compressed=True)
    assert closed_with(one.sock) == 1002


def test_invalid_or_oversized_deflate_ends_only_its_session(live):
    witness = Raw(live)
    witness.until('"connect"')
    bomb = deflate(b" " * 10_000_000)
    assert len(bomb) < 20_000
    for bad, code in [(frame(b"\x06garbage", 0x41), 1002), (frame(bomb, 0x41), 1009), (frame(deflate(b" " * 20_001), 0x41), 1009),
                      (frame(b"", 0x49), 1002), (frame(b"x", 0x21), 1002), (frame(b"x", 0x11), 1002),
                      (frame(deflate(b"not JSON"), 0x41), 3501)]:
        one = Raw(live)
        one.until('"connect"')
        one.sock.sendall(bad)
        assert closed_with(one.sock) == code, bad[:20]
    api(live, "publish", channel="news", data=LONG)
    assert witness.until("said again")[0]


@both
def test_the_python_sdk_receives_and_recovers(live, protobuf):
    """Its WebSocket library offers compression by default."""
    async def run():
        ann, bob = session(live, protobuf), session(live, not protobuf, "bob")
        subscriptions = []
        for one in (ann, bob):
            await one.connect()
            subscription, events, _ = await subscribed(one, "room")
            subscriptions.append((subscription, events, one is ann and protobuf or one is bob and not protobuf))
        for subscription, _, binary in subscriptions:
            await subscription.publish(data_of(LONG, binary))
        for _, events, _ in subscriptions:
            await events.until(2)
        await asyncio.get_running_loop().run_in_executor(None, live.kill)
        await asyncio.get_running_loop().run_in_executor(None, restart, live)
        for n in range(10):
            api(live, "publish", channel="room", data={**LONG, "n": n})
        for _, events, _ in subscriptions:
            await events.until(12)
            assert events.publications == [(1, LONG), (2, LONG)] + [(n + 3, {**LONG, "n": n}) for n in range(10)]
        await ann.disconnect()
        await bob.disconnect()

    asyncio.run(run())


@pytest.mark.parametrize("place", ["node", "chromium"])
@both
def test_the_javascript_sdk_receives_and_recovers(live, place, protobuf):
    reason = js.chromium_missing() if place == "chromium" else js.node_missing()
    if reason:
        pytest.skip(reason)
    driver = js.Driver(f"http://127.0.0.1:{live.live_port}/health" if place == "chromium" else None)
    try:
        for name, binary in [("ann", protobuf), ("bob", not protobuf)]:
            opened(driver, live, name, "websocket", binary)
            assert "permessage-deflate" in driver.wait_event(name, "socket")[0]["extensions"]
            driver.call(name, "subscribe", channel="room")
        for name in ("ann", "bob"):
            driver.call(name, "publish", channel="room", data=LONG)
        for name in ("ann", "bob"):
            driver.wait_event(name, "publication", 2)
        live.kill()
        restart(live)
        for n in range(10):
            api(live, "publish", channel="room", data={**LONG, "n": n})
        for name in ("ann", "bob"):
            publications = driver.wait_event(name, "publication", 12)
            assert [(one["offset"], one["data"]) for one in publications] == \
                [(1, LONG), (2, LONG)] + [(n + 3, {**LONG, "n": n}) for n in range(10)]
            assert driver.wait_event(name, "subscribed", 2)[-1]["recovered"]
            assert len(driver.call(name, "history", channel="room")) == 12
    finally:
        driver.close()
