"""Answers of the live door byte by byte, against recorded ones of Centrifugo 6.9.1."""

import json
import socket
import urllib.error
import urllib.parse
import urllib.request

import pytest

from harness.live import API_KEY, CONFIG, DEADLINE_S, api, live_server, token
from test_live import frame, handshake, messages_of


@pytest.fixture
def live(make_server, tmp_path):
    return live_server(make_server, tmp_path)


def post(server, path, body, **headers):
    """The status, and the body as JSON or text."""
    request = urllib.request.Request(f"http://{server.address}:{server.live_port}{path}", method="POST",
                                     data=body.encode(), headers={"X-API-Key": API_KEY, **headers})
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def test_statuses_of_the_api(live):
    for body in ["", "zz", "[]", "5", "{", "{}x"]:
        for method in ["publish", "info", "channels", "batch"]:
            assert post(live, f"/api/{method}", body)[0] == 400, (method, body)
    assert post(live, "/api/publish", '{"channel": 5}', **{"X-Centrifugo-Error-Mode": "transport"})[0] == 400
    for method in ["nonsense", "connections", ""]:
        assert post(live, f"/api/{method}", "{}")[0] == 404, method
    assert json.loads(post(live, "/api/rpc", '{"method": "x"}')[1])["error"]["code"] == 104
    assert json.loads(post(live, "/api/channels", "null")[1]) == {"result": {"channels": {}}}
    assert api(live, "unsubscribe", user="ann", channel="no:such")["error"]["code"] == 102
    assert api(live, "publish", channel="news", data=None, tags=None)["result"]["offset"] == 1


def test_the_key_of_the_api_is_in_any_of_three_places(live):
    for path, headers, status in [
        ("/api/info", {"Authorization": f"Apikey {API_KEY}"}, 200), ("/api/info", {"Authorization": f"apikey {API_KEY}"}, 200),
        ("/api/info?a=b&api_key=" + API_KEY.replace(" ", "%20"), {}, 200), ("/api/info?api_key=other", {}, 401),
        ("/api/info", {"Authorization": f"Bearer {API_KEY}"}, 401), ("/api/info", {}, 401),
    ]:
        request = urllib.request.Request(f"http://{live.address}:{live.live_port}{path}", data=b"{}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
                found = answer.status
        except urllib.error.HTTPError as refused:
            found = refused.code
        assert found == status, (path, headers)


def test_a_batch_has_its_replies_at_the_top(live):
    publish = {"publish": {"channel": "news", "data": 1}}
    # Serializers of unions write the other methods as null.
    nulls = {"broadcast": None, **publish, "info": None}
    found = api(live, "batch", commands=[publish, nulls, {}, {"publish": None}])
    assert [reply.get("publish", {}).get("offset") for reply in found.pop("replies")] == [1, 2, None, None]
    assert found == {}
    for commands in [{}, {"commands": []}, {"commands": None, "parallel": None}]:
        assert api(live, "batch", **commands) == {}


def test_commands_as_lines(live):
    """The API of Centrifugo's old libraries, gocent among them."""
    commands = [{"id": 7, "method": "publish", "params": {"channel": "news", "data": 1}}, {"method": "PRESENCE", "params": {}}, {"method": "info"}]
    status, body = post(live, "/api", "\n".join(map(json.dumps, commands)))
    published, refused, info = map(json.loads, body.splitlines())
    assert status == 200 and published["id"] == 7 and published["result"]["offset"] == 1
    assert refused["error"]["code"] == 107 and "num_subs" in info["result"]["nodes"][0]
    for body in ["", "zz", '{"method": "publish"', '{"params": {}}']:
        assert post(live, "/api", body)[0] == 400, body
    assert post(live, "/api", "{}", **{"X-API-Key": "other"})[0] == 401


def opened(server, headers):
    """A WebSocket, and the head of the answer."""
    sock = socket.create_connection(("127.0.0.1", server.live_port), timeout=DEADLINE_S)
    sock.sendall(("GET /connection/websocket HTTP/1.1\r\nHost: live\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                  f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n{headers}\r\n").encode())
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += sock.recv(4096)
    return sock, answer.decode()


def replies_of(sock):
    for replies in messages_of(sock):
        yield from replies


def test_empty_results_and_anonymous_users_have_all_fields(make_server, tmp_path):
    namespace = {**CONFIG["channel"]["without_namespace"], "allow_presence_for_client": True, "allow_history_for_client": True}
    rights = {f"allow_{what}_for_anonymous": True for what in ("subscribe", "presence", "history")}
    client = {**CONFIG["client"], "allow_anonymous_connect_without_token": True}
    server = live_server(make_server, tmp_path, {**CONFIG, "client": client, "channel": {"without_namespace": {**namespace, **rights}}})
    sock, _ = handshake(server)
    for command in [{"connect": {"token": None, "data": None, "subs": None}}, {"presence": {"channel": "a"}},
                    {"presence_stats": {"channel": "a"}}, {"history": {"channel": "a", "limit": None}}, {"subscribe": {"channel": "b", "tf": None}}]:
        sock.sendall(frame(json.dumps({"id": 1, **command}).encode()))
    replies = replies_of(sock)
    assert "connect" in next(replies)
    assert next(replies) == {"id": 1, "presence": {"presence": {}}}
    assert next(replies) == {"id": 1, "presence_stats": {"num_clients": 0, "num_users": 0}}
    history = next(replies)["history"]
    assert (history["publications"], history["offset"]) == ([], 0) and history["epoch"]
    join = next(reply for reply in replies if "join" in reply.get("push", {}))
    assert join["push"]["join"]["info"]["user"] == ""
    sock.close()


def test_ping_frames_replace_the_pings_of_the_protocol(make_server, tmp_path):
    client = {**CONFIG["client"], "ping_interval": "1s", "pong_timeout": "500ms"}
    server = live_server(make_server, tmp_path, {**CONFIG, "client": client})
    sock, _ = handshake(server, query="?cf_ws_frame_ping_pong=true")
    sock.sendall(frame(json.dumps({"id": 1, "connect": {"token": token()}}).encode()))
    received, pings = b"", 0
    while pings < 3:
        piece = sock.recv(4096)
        assert piece, "the session ended"
        received += piece
        if received.endswith(b"\x89\0"):
            pings, received = pings + 1, received[:-2]
            sock.sendall(frame(b"", opcode=10))
    assert received[0] == 0x81 and received.count(b'"id":1') == 1 and b'"ping"' not in received and b"{}" not in received
    assert b'"pong"' not in received
    # Without the answer the session ends.
    while not received.endswith(b"no pong"):
        piece = sock.recv(4096)
        assert piece, received
        received += piece
    sock.close()


def test_a_unidirectional_websocket_connects_by_its_query(make_server, tmp_path):
    server = live_server(make_server, tmp_path, {**CONFIG, "uni_websocket": {"enabled": True}})
    connect = urllib.parse.quote(json.dumps({"token": token(), "subs": {"passing:news": {}, "$no": {}}}))
    sock, status = handshake(server, query=f"?cf_connect={connect}", path="/connection/uni_websocket")
    assert status == b"101"
    connected = next(replies_of(sock))["connect"]
    assert list(connected["subs"]) == ["passing:news"] and connected["session"]
    sock.close()
    assert handshake(server, query="?cf_connect=%zz", path="/connection/uni_websocket")[1] == b"400"


@pytest.mark.parametrize("offered, selected", [
    ("centrifuge-json", "centrifuge-json"), ("centrifuge-protobuf, centrifuge-json", "centrifuge-json"),
    ("centrifuge-protobuf", "centrifuge-protobuf"), ("other", None),
])
def test_the_subprotocol_of_the_client_is_confirmed(live, offered, selected):
    """A browser closes a WebSocket whose subprotocol the server does not confirm."""
    sock, answer = opened(live, f"Sec-WebSocket-Protocol: {offered}\r\n")
    lines = dict(line.split(": ", 1) for line in answer.lower().split("\r\n")[1:] if line)
    assert lines.get("sec-websocket-protocol") == selected
    sock.close()


def test_the_close_of_a_client_is_confirmed(live):
    sock, _ = handshake(live)
    sock.sendall(frame(json.dumps({"id": 1, "connect": {"token": token()}}).encode()))
    next(replies_of(sock))
    sock.sendall(frame(b"\x03\xe8", opcode=8))
    received = b""
    while piece := sock.recv(4096):
        received += piece
    assert received.endswith(b"\x88\x02\x03\xe8")
