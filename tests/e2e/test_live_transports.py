"""The live port's other transports, its TLS, and its limits, byte by byte."""

import contextlib
import http.client
import json
import socket
import ssl
import threading
import urllib.parse

import pytest

from harness import wait
from harness.live import CONFIG, DEADLINE_S, api, live_server, token
from test_live import closed_with, frame, handshake

ENABLED = {name: {"enabled": True} for name in ("http_stream", "sse", "uni_websocket", "uni_http_stream", "uni_sse")}


@pytest.fixture
def live(make_server, tmp_path):
    return live_server(make_server, tmp_path, {**CONFIG, **ENABLED})


@pytest.fixture
def pinging(make_server, tmp_path):
    """A server that pings often. A client that receives a second ping has answered the first."""
    client = {**CONFIG["client"], "ping_interval": "4s", "pong_timeout": "3900ms"}
    return live_server(make_server, tmp_path, {**CONFIG, **ENABLED, "client": client})


class Stream:
    """An answer without end."""

    def __init__(self, live, path, method="GET", body=None, headers=None, context=None):
        if context:
            self.connection = http.client.HTTPSConnection("127.0.0.1", live.live_port, timeout=DEADLINE_S, context=context)
        else:
            self.connection = http.client.HTTPConnection("127.0.0.1", live.live_port, timeout=DEADLINE_S)
        self.connection.request(method, path, body=body, headers=headers or {})
        self.answer = self.connection.getresponse()

    def next(self, pings=False):
        """The next message, or ping if `pings`; `None` at the end."""
        while line := self.answer.readline():
            text = line.decode().removeprefix("data: ").strip()
            if text and (pings or text != "{}"):
                return json.loads(text)
        return None

    def close(self):
        self.connection.close()


def connect_request(user="ann", **more):
    return json.dumps({"token": token(user, channels=["news"]), **more})


def unidirectional(live, transport):
    connect = connect_request()
    if transport == "uni_sse":
        return Stream(live, "/connection/uni_sse?" + urllib.parse.urlencode({"cf_connect": connect}))
    return Stream(live, f"/connection/{transport}", "POST", connect)


@pytest.mark.parametrize("transport", ["uni_sse", "uni_http_stream"])
def test_a_unidirectional_session_receives_its_subscriptions(pinging, transport):
    live = pinging
    stream = unidirectional(live, transport)
    first = stream.next()["connect"]
    assert first["client"] and list(first["subs"]) == ["news"] and not first.get("pong")
    # It accepts no commands, although other sessions know its name.
    other = Stream(live, "/connection/sse", "POST", json.dumps({"id": 1, "connect": {"token": token("bob")}}))
    emulated = {"node": other.next()["connect"]["node"], "session": first["session"],
                "data": json.dumps({"id": 2, "subscribe": {"channel": "passing:other"}})}
    assert Stream(live, "/emulation", "POST", json.dumps(emulated)).answer.status == 204
    other.close()
    assert stream.next()["channel"] == "news", "its own join"
    for n in range(3):
        api(live, "publish", channel="news", data={"n": n})
        pushes = stream.next()
        assert pushes["channel"] == "news" and (pushes["pub"]["data"], pushes["pub"]["offset"]) == ({"n": n}, n + 1)
    # It stays connected without ever answering a ping.
    for _ in range(2):
        assert stream.next(pings=True) == {}
    api(live, "publish", channel="news", data="late")
    assert stream.next()["pub"]["data"] == "late"
    api(live, "disconnect", user="ann")
    assert stream.next()["disconnect"]["code"] == 3503 and stream.next() is None
    wait.until(lambda: live.status()["live"]["sessions"] == 0, what="the end of the session")


def test_the_api_disconnects_the_named_session_and_spares_the_whitelist(live):
    streams = [unidirectional(live, transport) for transport in ("uni_sse", "uni_http_stream", "uni_sse")]
    pushes = [stream.next()["connect"] for stream in streams]
    sessions = [one["session"] for one in pushes]
    assert len(set(sessions)) == 3 and all(sessions)

    def ends(stream):
        while pushes := stream.next():
            if end := pushes.get("disconnect"):
                return end["code"], end["reason"]

    assert api(live, "disconnect", user="ann", session="nobody's") == {"result": {}}
    assert api(live, "disconnect", user="ann", session=sessions[1], disconnect={"code": 4001, "reason": "paid up?"}) == {"result": {}}
    assert ends(streams[1]) == (4001, "paid up?")
    assert api(live, "disconnect", user="ann", whitelist=[pushes[0]["client"]]) == {"result": {}}
    assert ends(streams[2]) == (3503, "force disconnect")
    wait.until(lambda: live.status()["live"]["sessions"] == 1, what="the end of the other sessions")
    assert api(live, "publish", channel="news", data=1, version=4)["error"]["code"] == 107
    assert api(live, "unsubscribe", user="ann", channel="news", session=sessions[0]) == {"result": {}}
    while not (push := streams[0].next()).get("unsubscribe"):
        pass
    assert push["channel"] == "news" and push["unsubscribe"]["code"] == 2000


def messages(sock):
    """The messages of a server on a WebSocket, then its close code."""
    with sock.makefile("rb") as stream:
        while head := stream.read(2):
            length = head[1]
            if length == 126:
                length = int.from_bytes(stream.read(2))
            payload = stream.read(length)
            if head[0] & 0x0f == 8:
                yield int.from_bytes(payload[:2])
                return
            if head[0] & 0x0f == 1:
                yield json.loads(payload)


def test_a_unidirectional_websocket(pinging):
    live = pinging
    sock, status = handshake(live, path="/connection/uni_websocket")
    assert status == b"101"
    sock.sendall(frame(connect_request().encode()))
    pushes = messages(sock)
    assert list(next(pushes)["connect"]["subs"]) == ["news"]
    assert next(pushes)["join"]["info"]["user"] == "ann"
    sock.sendall(frame(b"this means nothing"))
    api(live, "publish", channel="news", data=1)
    assert next(one for one in pushes if one)["pub"]["data"] == 1
    for _ in range(2):
        assert next(pushes) == {}
    api(live, "disconnect", user="ann")
    rest = [one for one in pushes if one]
    assert rest == [{"disconnect": {"code": 3503, "reason": "force disconnect"}}, 3503]


def test_long_messages_arrive_whole_in_every_transport(make_server, tmp_path):
    """Longer than a gateway buffers: lines and events in pieces, WebSocket messages in fragments.
    """
    # The queue of a session holds both publications: the test reads one stream after the other.
    client = {**CONFIG["client"], "queue_max_size": 2_000_000}
    live = live_server(make_server, tmp_path, {**CONFIG, **ENABLED, "client": client})
    streams = [unidirectional(live, transport) for transport in ("uni_sse", "uni_http_stream")]
    connect = json.dumps({"id": 1, "connect": json.loads(connect_request())})
    streams += [Stream(live, "/connection/http_stream", "POST", connect), Stream(live, "/connection/sse", "POST", connect)]
    sock, _ = handshake(live, path="/connection/uni_websocket")
    sock.sendall(frame(connect_request().encode()))
    fragments = whole_messages(sock)
    readers = [stream.next for stream in streams] + [lambda: next(fragments)]
    for read in readers:
        first = read()
        assert list(first["connect"]["subs"]) == ["news"], first
    data = [{"n": n, "text": "\u00fc\n" * 50_000} for n in range(2)]
    for one in data:
        api(live, "publish", channel="news", data=one)
    for read in readers:
        received_data = []
        while len(received_data) < len(data):
            push = read()
            push = push.get("push", push)
            received_data += [push["pub"]["data"]] if "pub" in push else []
        assert received_data == data
    # The connect reply carries the missed publications, whatever their length.
    recover = connect_request(subs={"news": {"recover": True}})
    recovered = Stream(live, "/connection/uni_sse", "POST", recover).next()["connect"]["subs"]["news"]
    assert recovered["recovered"] and [one["data"] for one in recovered["publications"]] == data


def whole_messages(sock):
    """Each non-empty message of a WebSocket, assembled from its fragments."""
    received, text = b"", b""

    def take(count):
        nonlocal received
        while len(received) < count:
            piece = sock.recv(65536)
            assert piece, "closed"
            received += piece
        taken, received = received[:count], received[count:]
        return taken

    while True:
        head = take(2)
        length = head[1]
        length = int.from_bytes(take({126: 2, 127: 8}[length])) if length > 125 else length
        assert head[0] & 0x0f == (0 if text else 1), "a fragment continues the message that has begun"
        text += take(length)
        if head[0] & 0x80:
            message, text = json.loads(text), b""
            if message:
                yield message


def test_a_refused_connect_is_reported_by_the_transport(live):
    stream = Stream(live, "/connection/uni_http_stream", "POST", json.dumps({"token": "nonsense"}))
    assert stream.next() == {"disconnect": {"code": 3500, "reason": "invalid token"}} and stream.next() is None
    expired = json.dumps({"token": token(exp=1)})
    stream = Stream(live, "/connection/uni_http_stream", "POST", expired)
    assert stream.next()["disconnect"]["code"] == 3005
    stream = Stream(live, "/connection/http_stream", "POST", '{"id":1,"connect":%s}' % expired)
    assert stream.next()["error"]["code"] == 109
    for path, method, body, status in [
        ("/connection/uni_http_stream", "POST", "nonsense", 400),
        ("/connection/uni_http_stream", "GET", None, 405),
        ("/connection/http_stream", "POST", "", 400),
        ("/connection/sse", "GET", None, 400),
        ("/connection/http_stream", "POST", "x" * 100_000, 413),
        ("/emulation", "POST", "nonsense", 400),
        ("/emulation", "POST", '{"session":"x","node":"another","data":""}', 404),
        ("/connection/nothing", "GET", None, 404),
    ]:
        assert Stream(live, path, method, body).answer.status == status, path


def test_pages_of_other_origins(live):
    foreign = {"Origin": "https://evil.example"}
    for path in ("/connection/sse", "/connection/http_stream", "/connection/uni_sse", "/emulation"):
        assert Stream(live, path, "OPTIONS", headers=foreign).answer.status == 403
        own = {"Origin": f"http://127.0.0.1:{live.live_port}", "Access-Control-Request-Headers": "content-type"}
        allowed = Stream(live, path, "OPTIONS", headers=own).answer
        assert allowed.status == 204 and allowed.headers["Access-Control-Allow-Origin"] == own["Origin"]
        assert allowed.headers["Access-Control-Allow-Headers"] == "content-type"


def test_transports_are_off_by_default(make_server, tmp_path):
    live = live_server(make_server, tmp_path)
    for path in ("/connection/sse", "/connection/uni_sse", "/emulation"):
        assert Stream(live, path).answer.status == 404
    assert handshake(live, path="/connection/uni_websocket")[1] == b"404"


def test_a_closed_connection_ends_its_session(live):
    stream = unidirectional(live, "uni_sse")
    assert stream.next()["connect"]
    assert live.status()["live"]["sessions"] == 1
    stream.answer.close()
    stream.close()
    wait.until(lambda: live.status()["live"]["sessions"] == 0, what="the end of the session")


def test_tls(make_server, tmp_path, certificate):
    certificate, key = certificate
    live = live_server(make_server, tmp_path, {**CONFIG, **ENABLED},
                       settings={"tls.certificate": certificate, "tls.key": key})
    assert f"live=https://127.0.0.1:{live.live_port}" in live.log()
    context = ssl.create_default_context(cafile=str(certificate))
    uni = Stream(live, "/connection/uni_sse?" + urllib.parse.urlencode({"cf_connect": connect_request()}), context=context)
    assert uni.next()["connect"] and uni.next()["join"]
    sock, status = handshake(live, wrap=lambda plain: context.wrap_socket(plain, server_hostname="127.0.0.1"))
    assert status == b"101"
    sock.sendall(frame(b'{"id":1,"connect":{"token":"%s"}}\n{"id":2,"subscribe":{"channel":"news"}}' % token("bob").encode()))
    pushes = messages(sock)
    assert next(pushes)["connect"] and next(one for one in pushes if one.get("id") == 2)["subscribe"]
    sock.sendall(frame(b'{"id":3,"publish":{"channel":"news","data":"%s"}}' % (b"x" * 50_000)))
    assert next(one for one in pushes if "pub" in one.get("push", {}))["push"]["pub"]["data"] == "x" * 50_000
    delivery = uni.next()
    while "join" in delivery:
        delivery = uni.next()
    assert delivery["pub"]["data"] == "x" * 50_000
    # A client without TLS is refused, and disturbs no other.
    plain = socket.create_connection(("127.0.0.1", live.live_port), timeout=DEADLINE_S)
    plain.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"HTTP" not in b"".join(iter(lambda: plain.recv(4096), b""))
    sock.sendall(frame(b'{"id":4,"ping":{}}'))
    assert next(one for one in pushes if one.get("id") == 4)


# -- limits ---------------------------------------------------------------------------------------


def ended(sock):
    """Waits for the end of a connection; returns the bytes received before."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := sock.recv(65536):
            received += piece
    return received


def test_an_unfinished_handshake_times_out(make_server, tmp_path):
    live = live_server(make_server, tmp_path, settings={"limits.header_timeout": "300 ms"})
    slow = socket.create_connection(("127.0.0.1", live.live_port), timeout=DEADLINE_S)
    slow.sendall(b"GET /connection/websocket HTTP/1.1\r\nHost: ")
    ended(slow)
    body = socket.create_connection(("127.0.0.1", live.live_port), timeout=DEADLINE_S)
    body.sendall(b"POST /api/info HTTP/1.1\r\nHost: x\r\nX-API-Key: a key of the tests\r\nContent-Length: 100\r\n\r\n{")
    assert ended(body).startswith(b"HTTP/1.1 408")
    wait.until(lambda: {one["name"]: one for one in live.status()["bounds"]}["live_connections"]["used"] == 0)


def test_a_session_that_never_connects_is_ended(make_server, tmp_path):
    client = {**CONFIG["client"], "stale_close_delay": "300ms"}
    live = live_server(make_server, tmp_path, {**CONFIG, "client": client})
    sock, _ = handshake(live)
    assert closed_with(sock) == 3502


def test_one_address_cannot_take_all_connections(make_server, tmp_path):
    live = live_server(make_server, tmp_path, settings={"live.address_connections": 2})
    first, second = (handshake(live)[0] for _ in range(2))
    # Sessions stay; a further connection of the address is closed.
    for sock in (first, second):
        sock.sendall(frame(b'{"id":1,"connect":{"token":"%s"}}' % token().encode()))
        next(messages(sock))
    with socket.create_connection(("127.0.0.1", live.live_port), timeout=DEADLINE_S) as third:
        assert ended(third) == b""
    assert {one["name"]: one for one in live.status()["bounds"]}["live_connections"]["refused"] == 1
    first.close()
    wait.until(lambda: live.status()["live"]["sessions"] == 1, what="the end of the first")
    assert handshake(live)[1] == b"101"
    second.close()


def test_one_address_has_a_share_of_connections_without_connect(make_server, tmp_path):
    client = {**CONFIG["client"], "connection_limit": 8}
    live = live_server(make_server, tmp_path, {**CONFIG, "client": client}, settings={"limits.address_share": 25})
    first, second = (handshake(live)[0] for _ in range(2))
    with socket.create_connection(("127.0.0.1", live.live_port), timeout=DEADLINE_S) as third:
        assert ended(third) == b""
    # A session that has connected does not count.
    first.sendall(frame(b'{"id":1,"connect":{"token":"%s"}}' % token().encode()))
    next(messages(first))
    third, status = handshake(live)
    assert status == b"101"
    for sock in (first, second, third):
        sock.close()


def test_a_session_publishes_no_faster_than_it_may(make_server, tmp_path):
    live = live_server(make_server, tmp_path, settings={"live.publish_rate": 5})
    sock, _ = handshake(live)
    sock.sendall(frame(b'{"id":1,"connect":{"token":"%s"}}\n{"id":2,"subscribe":{"channel":"busy"}}' % token().encode()))
    pushes = messages(sock)
    next(one for one in pushes if one.get("id") == 2)
    commands = [b'{"id":%d,"publish":{"channel":"busy","data":%d}}' % (n, n) for n in range(10, 60)]
    sock.sendall(frame(b"\n".join(commands)))
    answers = {}
    while len(answers) < len(commands):
        one = next(pushes)
        if one.get("id", 0) >= 10:
            answers[one["id"]] = one
    refused = [one["error"] for one in answers.values() if "error" in one]
    # A second's end may split the burst.
    assert len(commands) - 15 <= len(refused) <= len(commands) - 5
    assert all(error["code"] == 111 and error["temporary"] for error in refused)
    assert len(api(live, "history", channel="busy", limit=100)["result"]["publications"]) == len(commands) - len(refused)
    # The session stays connected.
    sock.sendall(frame(b'{"id":9,"ping":{}}'))
    assert next(one for one in pushes if one.get("id") == 9) == {"id": 9, "ping": {}}


def test_commands_above_a_limit_are_refused_and_the_session_stays(make_server, tmp_path):
    client = {**CONFIG["client"], "channel_limit": 2}
    channel = {**CONFIG["channel"], "max_length": 20}
    live = live_server(make_server, tmp_path, {**CONFIG, "client": client, "channel": channel})
    sock, _ = handshake(live)
    commands = [b'{"id":1,"connect":{"token":"%s"}}' % token().encode()]
    commands += [b'{"id":%d,"subscribe":{"channel":"c%d"}}' % (n, n) for n in (2, 3, 4)]
    commands += [b'{"id":5,"subscribe":{"channel":"%s"}}' % (b"x" * 21), b'{"id":6,"unsubscribe":{"channel":"c2"}}',
                 b'{"id":7,"subscribe":{"channel":"c4"}}']
    sock.sendall(frame(b"\n".join(commands)))
    pushes, answers = messages(sock), {}
    while len(answers) < len(commands):
        one = next(pushes)
        if "id" in one:
            answers[one["id"]] = one
    assert [answers[n].get("error", {}).get("code") for n in range(1, 8)] == [None, None, None, 106, 107, None, None]


def test_a_stampede_on_histories_gets_a_retryable_error(make_fuse_disk, make_server, tmp_path):
    disk = make_fuse_disk()
    live = live_server(make_server, tmp_path, disk=disk, settings={"live.history_reads": 1, "live.waiting": 0})
    for n in range(3):
        api(live, "publish", channel="news", data=n)
    live.stop()
    # After a restart, the publications are on the disk only.
    live.start()
    hold = disk.fault("read", "hold")
    first = []
    thread = threading.Thread(target=lambda: first.append(api(live, "history", channel="news", limit=10)))
    thread.start()
    bounds = lambda: {one["name"]: one for one in live.status()["bounds"]}["live_history_reads"]
    wait.until(lambda: bounds()["used"] == 1, what="the first read")
    refused = api(live, "history", channel="news", limit=10)["error"]
    assert refused["code"] == 111
    assert bounds()["refused"] == 1
    disk.remove(hold)
    thread.join(DEADLINE_S)
    assert [one["data"] for one in first[0]["result"]["publications"]] == [0, 1, 2]


# -- expiry that a back end sets ------------------------------------------------------------------


def test_a_back_end_sets_the_expiry_of_sessions(live):
    sock, _ = handshake(live)
    sock.sendall(frame(b'{"id":1,"connect":{"token":"%s"}}' % token().encode()))
    pushes = (one for one in messages(sock) if one)
    assert next(pushes)["connect"]
    api(live, "refresh", user="ann", expire_at=1 << 33)
    refreshed = next(pushes)["push"]["refresh"]
    assert refreshed["expires"] and refreshed["ttl"] > 0
    # A wrong session id matches no session, not all.
    assert api(live, "refresh", user="ann", client="nonsense", expired=True) == {"result": {}}
    assert api(live, "disconnect", user="ann", client="nonsense") == {"result": {}}
    api(live, "refresh", user="bob", expired=True)
    sock.sendall(frame(b'{"id":2,"ping":{}}'))
    assert next(pushes) == {"id": 2, "ping": {}}
    api(live, "refresh", user="ann", expired=True)
    assert list(pushes) == [3005]
