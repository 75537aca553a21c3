"""Centrifugo's proxies: the server's requests to a back end, and the effects of its answers on
Centrifugo's Python SDK."""

import asyncio
import base64
import http.server
import json
import ssl
import threading
import time

import pytest

from harness import js, wait
from harness.live import CONFIG, api, live_server, token
from harness.session import SubscriptionEvents, connecting, next_of, plain
from test_live import both
from test_live_transports import Stream


class BackEnd:
    """An HTTP server that answers as a test sets it, by path, and records its requests."""

    def __init__(self, certificate=None, clients_of=None):
        self.answers, self.requests, self.connections, self.lock = {}, [], set(), threading.Lock()
        back_end = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def do_GET(self):
                self.answer(None)

            def answer(self, body):
                with back_end.lock:
                    back_end.requests.append((self.path, body, self.headers))
                    back_end.connections.add(self.client_address)
                answer = back_end.answers[self.path]
                answer = answer(body) if callable(answer) else answer
                status, answer = answer if isinstance(answer, tuple) else (200, answer)
                payload = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.scheme = "https" if certificate else "http"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            if clients_of:
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_verify_locations(clients_of)
            # Each connection's thread does its handshake. The thread that accepts would be blocked
            # by a client that sends nothing.
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
            self.server.handle_error = lambda *_: None
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def url(self, path):
        return f"{self.scheme}://127.0.0.1:{self.server.server_address[1]}{path}"

    def of(self, path):
        with self.lock:
            return [(body, headers) for found, body, headers in self.requests if found == path]

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def back_end():
    found = BackEnd()
    yield found
    found.close()


def proxied(make_server, tmp_path, back_end, **client):
    def proxy(path, **more):
        # No test here waits for a timeout: a slow machine must not cause one.
        return {"endpoint": back_end.url(path), "timeout": "60s", **more}

    config = {
        **CONFIG,
        "client": {**CONFIG["client"], **client, "proxy": {
            "connect": proxy("/connect", enabled=True, http_headers=["Cookie"], emulated_headers=["Authorization"],
                             http={"static_headers": {"X-Key": "k"}, "status_to_code_transforms": [
                                 {"status_code": 403, "to_disconnect": {"code": 4501, "reason": "go away"}}]}),
            "refresh": proxy("/refresh", enabled=True),
        }},
        "http_stream": {"enabled": True},
        "channel": {
            "proxy": {"subscribe": proxy("/subscribe", include_connection_meta=True), "publish": proxy("/publish"),
                      "sub_refresh": proxy("/sub_refresh")},
            "without_namespace": {"presence": True, "history_size": 10, "history_ttl": "1h", "subscribe_proxy_enabled": True,
                                  "publish_proxy_enabled": True, "sub_refresh_proxy_enabled": True},
            "namespaces": [{"name": "sun", "subscribe_proxy_enabled": True, "subscribe_proxy_name": "binary"}],
        },
        "rpc": {"proxy": proxy("/rpc"), "without_namespace": {"proxy_enabled": True},
                "namespaces": [{"name": "ns", "proxy_enabled": True, "proxy_name": "binary"}]},
        "proxies": [{"name": "binary", **proxy("/binary", binary_encoding=True)}],
    }
    return live_server(make_server, tmp_path, config)


@pytest.fixture
def live(make_server, tmp_path, back_end):
    return proxied(make_server, tmp_path, back_end)


@pytest.fixture
def pinging(make_server, tmp_path, back_end):
    """A server that pings often, so that expired sessions are refreshed soon."""
    return proxied(make_server, tmp_path, back_end, ping_interval="4s", pong_timeout="3900ms")


def data_of(value, protobuf):
    return json.dumps(value).encode() if protobuf else value


async def connected(server, protobuf, **options):
    return await connecting(server, protobuf, min_reconnect_delay=0.05, max_reconnect_delay=0.2, **options)


async def subscribing(client, channel, **options):
    subscription_events = SubscriptionEvents()
    subscription = client.new_subscription(channel, events=subscription_events, **options)
    await subscription.subscribe()
    return subscription, subscription_events


def requests(server, event, what="requests_total", proxy="default"):
    return server.metrics().get(f'steadfast_live_proxy_{what}{{event="{event}",proxy="{proxy}"}}')


ANN = {"result": {"user": "ann", "info": {"name": "Ann"}, "data": {"welcome": 1}, "channels": ["news"], "meta": {"plan": 7},
                  "subs": {"own": {"data": {"first": 1}, "info": {"role": "owner"}}}}}


@both
def test_the_back_end_authorizes_every_kind_of_request(live, back_end, protobuf):
    back_end.answers = {
        "/connect": ANN,
        "/subscribe": {"result": {"data": {"room": 1}, "info": {"seat": 3}}},
        "/publish": lambda request: {"result": {"data": {"seen": request["data"]}, "skip_history": request["data"] == "skip"}},
        "/rpc": lambda request: {"result": {"data": {"method": request["method"], "got": request["data"]}}},
        "/binary": {"result": {"b64data": base64.b64encode(b"[1]").decode()}},
    }

    async def run():
        client, events = await connected(live, protobuf, data=data_of({"from": "me"}, protobuf), name="py", version="1")
        ctx = await next_of(events.connected)
        assert plain(ctx.data) == {"welcome": 1}
        server_side = {(await next_of(events.subscribed)).channel for _ in range(2)}
        assert server_side == {"news", "own"}
        body, headers = back_end.of("/connect")[0]
        kind = "protobuf" if protobuf else "json"
        assert body == {"client": client.client_id, "transport": "websocket", "protocol": kind, "encoding": "json",
                        "name": "py", "version": "1", "data": {"from": "me"}}
        assert headers["Content-Type"] == "application/json" and headers["X-Key"] == "k"
        about = {"client": client.client_id, "transport": "websocket", "protocol": kind, "encoding": "json", "user": "ann"}
        room, subscription_events = await subscribing(client, "room", data=data_of({"please": 1}, protobuf))
        assert plain((await next_of(subscription_events.subscribed)).data) == {"room": 1}
        assert back_end.of("/subscribe")[0][0] == {**about, "channel": "room", "data": {"please": 1}, "meta": {"plan": 7}}
        presence = api(live, "presence", channel="room")["result"]["presence"][client.client_id]
        assert (presence["user"], presence["conn_info"], presence["chan_info"]) == ("ann", {"name": "Ann"}, {"seat": 3})
        for text in ("hello", "skip"):
            await room.publish(data_of(text, protobuf))
            assert await next_of(subscription_events.publications) == {"seen": text}
        assert back_end.of("/publish")[0][0] == {**about, "channel": "room", "data": "hello"}
        kept = api(live, "history", channel="room", limit=10)["result"]["publications"]
        assert [publication["data"] for publication in kept] == [{"seen": "hello"}]
        answer = await client.rpc("price", data_of({"of": 12}, protobuf))
        assert plain(answer.data) == {"method": "price", "got": {"of": 12}}
        # Other namespaces use the proxy that they name.
        assert plain((await client.rpc("ns:price", data_of([2], protobuf))).data) == [1]
        request = back_end.of("/binary")[0][0]
        assert request["encoding"] == "binary" and json.loads(base64.b64decode(request["b64data"])) == [2]
        _, subscription_events = await subscribing(client, "sun:1")
        assert plain((await next_of(subscription_events.subscribed)).data) == [1]
        with pytest.raises(Exception) as refused:
            await client.rpc("no:such", data_of(1, protobuf))
        assert refused.value.code == 104
        await client.disconnect()

    asyncio.run(run())
    assert len(back_end.connections) == 6, "each used proxy keeps its connection"
    assert requests(live, "rpc") == 1 and requests(live, "publish") == 2 and requests(live, "subscribe", proxy="binary") == 1
    assert requests(live, "rpc", "failures_total") == 0 and requests(live, "rpc", "in_flight") == 0


@pytest.mark.skipif(js.node_missing() is not None, reason=js.node_missing() or "")
@both
def test_the_javascript_sdk_receives_answers_of_the_back_end(live, back_end, protobuf):
    back_end.answers = {
        "/connect": ANN,
        "/subscribe": lambda request: {"result": {}} if request["channel"] == "room" else {"error": {"code": 1403, "message": "not you"}},
        "/publish": lambda request: {"result": {"data": {"seen": request["data"]}}},
        "/rpc": lambda request: {"result": {"data": [request["method"], request["data"]]}},
    }
    driver = js.Driver()
    try:
        client = {"headers": {"Authorization": "emulated"}, "data": [1] if not protobuf else None}
        driver.call("ann", "open", endpoint=f"ws://127.0.0.1:{live.live_port}/connection/websocket",
                    options={"protobuf": protobuf, "client": client})
        driver.call("ann", "connect")
        body, headers = back_end.of("/connect")[0]
        assert (body["protocol"], headers["Authorization"]) == ("protobuf" if protobuf else "json", "emulated")
        assert body.get("data") == client["data"]
        driver.call("ann", "subscribe", channel="room")
        driver.call("ann", "publish", channel="room", data="hello")
        assert driver.wait_event("ann", "publication", channel="room")[0]["data"] == {"seen": "hello"}
        assert driver.call("ann", "rpc", channel="price", data={"of": 12}) == ["price", {"of": 12}]
        # The client receives an answer of 403 as configured, and does not reconnect.
        back_end.answers["/rpc"] = {"disconnect": {"code": 4502, "reason": "enough"}}
        with pytest.raises(AssertionError):
            driver.call("ann", "rpc", channel="price", data=1)
        assert driver.wait_event("ann", "disconnected")[0]["code"] == 4502
        back_end.answers["/connect"] = (403, {})
        driver.call("bob", "open", endpoint=f"ws://127.0.0.1:{live.live_port}/connection/websocket",
                    options={"protobuf": protobuf, "client": {}})
        with pytest.raises(AssertionError):
            driver.call("bob", "connect")
        assert driver.wait_event("bob", "disconnected")[0]["code"] == 4501
    finally:
        driver.close()


def test_configured_client_headers_are_forwarded(live, back_end):
    back_end.answers = {"/connect": {"result": {"user": "ann"}}}
    connect = {"headers": {"authorization": "emulated", "cookie": "forged"}}
    body = json.dumps({"id": 1, "connect": connect})
    stream = Stream(live, "/connection/http_stream", "POST", body, {"Cookie": "a=1", "Authorization": "own"})
    assert stream.next()["connect"]["client"]
    request, headers = back_end.of("/connect")[0]
    assert request["transport"] == "http_stream"
    assert (headers["Cookie"], headers["Authorization"]) == ("a=1", "emulated")
    stream.close()


def test_refusals_of_the_back_end_reach_the_client_unchanged(live, back_end):
    back_end.answers = {
        "/connect": (403, {}), "/subscribe": {"error": {"code": 1403, "message": "not you"}},
        "/publish": {"error": {"code": 1404, "message": "not this"}}, "/rpc": (500, {}),
    }

    async def run():
        client, events = await connected(live, False)
        ended = await next_of(events.disconnected)
        assert (ended.code, ended.reason) == (4501, "go away")
        back_end.answers["/connect"] = {"disconnect": {"code": 4502, "reason": "unknown"}}
        client, events = await connected(live, False)
        assert (await next_of(events.disconnected)).code == 4502
        # No result: an anonymous user, who needs a token.
        back_end.answers["/connect"] = {}
        client, events = await connected(live, False)
        assert (await next_of(events.disconnected)).code == 3501
        back_end.answers["/connect"] = {"result": {"user": "ann"}}
        client, events = await connected(live, False)
        await next_of(events.connected)
        room, subscription_events = await subscribing(client, "room")
        ended = await next_of(subscription_events.unsubscribed)
        assert (ended.code, ended.reason) == (1403, "not you")
        for call, code in [(client.publish("room", 1), 1404), (client.rpc("x", 1), 100)]:
            with pytest.raises(Exception) as refused:
                await call
            assert refused.value.code == code
        assert requests(live, "rpc", "failures_total") == 1
        back_end.answers["/rpc"] = {"disconnect": {"code": 4503, "reason": "enough"}}
        call = asyncio.ensure_future(client.rpc("x", 1))
        assert (await next_of(events.disconnected)).code == 4503
        with pytest.raises(Exception):
            await call

    asyncio.run(run())
    # The server does not ask the back end about a client with a token.
    count = len(back_end.of("/connect"))

    async def with_token():
        async def get_token():
            return token("bob")

        client, events = await connected(live, False, get_token=get_token)
        await next_of(events.connected)
        await client.disconnect()

    asyncio.run(with_token())
    assert len(back_end.of("/connect")) == count


def test_the_back_end_refreshes_expired_sessions(pinging, back_end):
    live = pinging

    def soon(**more):
        return {"result": {**more, "expire_at": int(time.time()) + 6}}

    def expired():
        return [one for one in live.status()["live"]["ended"] if one["code"] == 3005]

    goes_on = threading.Event()
    goes_on.set()
    back_end.answers = {
        "/connect": lambda _: soon(user="ann"), "/subscribe": lambda _: soon(),
        "/refresh": lambda _: soon() if goes_on.is_set() else {"result": {"expired": True}},
        "/sub_refresh": lambda _: soon() if goes_on.is_set() else {"result": {"expired": True}},
    }

    async def run():
        client, events = await connected(live, True)
        await next_of(events.connected)
        _, subscription_events = await subscribing(client, "room")
        await next_of(subscription_events.subscribed)
        loop = asyncio.get_running_loop()
        for path in ("/refresh", "/sub_refresh"):
            await loop.run_in_executor(None, lambda path=path: wait.until(lambda: len(back_end.of(path)) > 1, deadline_s=90, what=path))
        assert subscription_events.unsubscribed.empty() and events.disconnected.empty()
        request = back_end.of("/sub_refresh")[0][0]
        assert (request["user"], request["channel"], request["client"]) == ("ann", "room", client.client_id)
        assert not expired()
        goes_on.clear()
        # The session ends as expired, and the SDK reconnects: the server asks the back end again.
        await loop.run_in_executor(None, lambda: wait.until(expired, deadline_s=90, what="the end of the session"))
        await client.disconnect()

    asyncio.run(run())


def test_a_back_end_over_tls_needs_a_trusted_certificate(make_server, tmp_path, certificate, monkeypatch):
    back_end = BackEnd(certificate)
    back_end.answers = {"/connect": ANN, "/rpc": {"result": {"data": {"sum": 3}}}}
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    live = proxied(make_server, tmp_path, back_end)

    async def run():
        client, events = await connected(live, False)
        assert (await next_of(events.connected)).data == {"welcome": 1}
        assert (await client.rpc("add", [1, 2])).data == {"sum": 3}
        await client.disconnect()

    asyncio.run(run())
    trusted = len(back_end.connections)
    monkeypatch.delenv("SSL_CERT_FILE")
    live.stop()
    live.start()
    stream = Stream(live, "/connection/http_stream", "POST", '{"id":1,"connect":{}}')
    assert stream.next()["error"]["code"] == 100
    assert "invalid peer certificate" in live.log()
    assert len(back_end.connections) == trusted
    back_end.close()


def test_requests_above_the_limit_are_refused_and_others_succeed(make_server, tmp_path, back_end):
    held = threading.Event()
    back_end.answers = {"/rpc": lambda _: {"result": {}} if held.wait(120) else {}, "/other": {"result": {"data": 1}}}
    rpc = {"proxy": {"endpoint": back_end.url("/rpc"), "timeout": "60s"}, "without_namespace": {"proxy_enabled": True},
           "namespaces": [{"name": "other", "proxy_enabled": True, "proxy_name": "other"}]}
    proxies = [{"name": "other", "endpoint": back_end.url("/other"), "timeout": "60s"}]
    live = live_server(make_server, tmp_path, {**CONFIG, "rpc": rpc, "proxies": proxies},
                       settings={"live.proxy_requests": 1, "live.waiting": 0})

    async def run():
        async def get_token():
            return token("ann")

        (first, events), (second, also) = await connected(live, False, get_token=get_token), await connected(live, False, get_token=get_token)
        await next_of(events.connected)
        await next_of(also.connected)
        call = asyncio.ensure_future(first.rpc("x", 1))
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, lambda: wait.until(lambda: back_end.of("/rpc"), what="the first call"))
        with pytest.raises(Exception) as refused:
            await second.rpc("x", 1)
        assert refused.value.code == 111
        assert (await second.rpc("other:x", 1)).data == 1
        assert requests(live, "rpc", "refused_total") == 1 and requests(live, "rpc", "in_flight") == 1
        held.set()
        await call
        for client in (first, second):
            await client.disconnect()

    asyncio.run(run())
