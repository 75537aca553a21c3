"""Proxies over gRPC: a back end by grpcio, and the effects of its answers on Centrifugo's Python
SDK."""

import asyncio
import base64
import json
import threading
import time
from concurrent import futures

import grpc
import pytest

from harness import protos, wait
from harness.live import CONFIG, DEADLINE_S, api, live_server
from harness.session import next_of, plain
from test_live import both
from test_live_proxies import connected, data_of, requests, subscribing
from test_live_proxy_tls import Authority
from test_live_transports import Stream

RPCS = ("Connect", "Refresh", "Subscribe", "Publish", "RPC", "SubRefresh")


class BackEnd:
    """A gRPC server that answers as a test sets it, by method, and records its requests."""

    def __init__(self, credentials=None, address="127.0.0.1:0"):
        self.messages, services = protos.load("proxy")
        self.answers, self.requests, self.peers, self.lock = {}, [], set(), threading.Lock()
        back_end = self

        def method(rpc):
            response = {"RPC": self.messages.RPCResponse, "SubRefresh": self.messages.RefreshResponse}.get(rpc)
            response = response or getattr(self.messages, f"{rpc}Response")

            def answer(_, request, context):
                with back_end.lock:
                    back_end.peers.add(context.peer())
                    back_end.requests.append((rpc, request, dict(context.invocation_metadata()), context.time_remaining()))
                fields = back_end.answers[rpc]
                fields = fields(request, context) if callable(fields) else fields
                return response(**fields)

            return answer

        handlers = type("Handlers", (services.CentrifugoProxyServicer,), {rpc: method(rpc) for rpc in RPCS})()
        self.server = grpc.server(futures.ThreadPoolExecutor(32))
        services.add_CentrifugoProxyServicer_to_server(handlers, self.server)
        self.port = (self.server.add_secure_port(address, credentials) if credentials else self.server.add_insecure_port(address))
        self.server.start()

    @property
    def url(self):
        return f"grpc://127.0.0.1:{self.port}"

    def of(self, rpc):
        """Requests, their metadata, and their time limits."""
        with self.lock:
            return [(request, metadata, left) for found, request, metadata, left in self.requests if found == rpc]

    def close(self):
        self.server.stop(None).wait()


@pytest.fixture
def back_end():
    found = BackEnd()
    yield found
    found.close()


def proxied(make_server, tmp_path, url, client=None, **more):
    # Only tests of timeouts wait for one: a slow machine must not cause any other.
    proxy = {"endpoint": url, "timeout": "60s", **more}
    own = {"http_headers": ["Cookie"], "emulated_headers": ["Authorization"],
           "grpc": {**more.get("grpc", {}), "credentials_key": "X-Key", "credentials_value": "k"}}
    config = {
        **CONFIG,
        "client": {**CONFIG["client"], **(client or {}), "proxy": {
            "connect": {**proxy, "enabled": True, **own}, "refresh": {**proxy, "enabled": True}}},
        "http_stream": {"enabled": True},
        "channel": {
            "proxy": {"subscribe": {**proxy, "include_connection_meta": True}, "publish": proxy, "sub_refresh": proxy},
            "without_namespace": {"presence": True, "history_size": 10, "history_ttl": "1h", "subscribe_proxy_enabled": True,
                                  "publish_proxy_enabled": True, "sub_refresh_proxy_enabled": True},
        },
        "rpc": {"proxy": proxy, "without_namespace": {"proxy_enabled": True},
                "namespaces": [{"name": "ns", "proxy_enabled": True, "proxy_name": "binary"},
                               {"name": "hurried", "proxy_enabled": True, "proxy_name": "hurried"}]},
        "proxies": [{**proxy, "name": "binary", "binary_encoding": True}, {**proxy, "name": "hurried", "timeout": "500ms"}],
    }
    return live_server(make_server, tmp_path, config)


@pytest.fixture
def live(make_server, tmp_path, back_end):
    return proxied(make_server, tmp_path, back_end.url)


def js(value):
    return json.dumps(value).encode()


ANN = {"result": {"user": "ann", "info": js({"name": "Ann"}), "data": js({"welcome": 1}), "channels": ["news"], "meta": js({"plan": 7}),
                  "subs": {"own": {"data": js({"first": 1}), "b64info": base64.b64encode(js({"role": "owner"})).decode()}}}}


@both
def test_the_back_end_authorizes_every_kind_of_request(live, back_end, protobuf):
    back_end.answers = {
        "Connect": ANN,
        "Subscribe": {"result": {"data": js({"room": 1}), "info": js({"seat": 3})}},
        "Publish": lambda request, _: {"result": {"data": js({"seen": json.loads(request.data)}), "skip_history": request.data == b'"skip"'}},
        "RPC": lambda request, _: {"result": {"data": js({"method": request.method, "got": (request.data or b"").decode(), "b64": request.b64data})}},
    }

    async def run():
        client, events = await connected(live, protobuf, data=data_of({"from": "me"}, protobuf), name="py", version="1")
        ctx = await next_of(events.connected)
        assert plain(ctx.data) == {"welcome": 1}
        server_side = [await next_of(events.subscribed) for _ in range(2)]
        assert {ctx.channel for ctx in server_side} == {"news", "own"}
        request, metadata, left = back_end.of("Connect")[0]
        kind = "protobuf" if protobuf else "json"
        assert (request.client, request.transport, request.protocol, request.encoding) == (client.client_id, "websocket", kind, "json")
        assert (json.loads(request.data), request.name, request.version) == ({"from": "me"}, "py", "1")
        assert metadata["x-key"] == "k" and 0 < left <= 60
        room, subscription_events = await subscribing(client, "room", data=data_of({"please": 1}, protobuf))
        assert plain((await next_of(subscription_events.subscribed)).data) == {"room": 1}
        request = back_end.of("Subscribe")[0][0]
        assert (request.user, request.channel, json.loads(request.data), json.loads(request.meta)) == ("ann", "room", {"please": 1}, {"plan": 7})
        presence = api(live, "presence", channel="room")["result"]["presence"][client.client_id]
        assert (presence["user"], presence["conn_info"], presence["chan_info"]) == ("ann", {"name": "Ann"}, {"seat": 3})
        for text in ("hello", "skip"):
            await room.publish(data_of(text, protobuf))
            assert await next_of(subscription_events.publications) == {"seen": text}
        request, metadata, _ = back_end.of("Publish")[0]
        assert (request.user, request.channel, json.loads(request.data), request.meta) == ("ann", "room", "hello", b"")
        assert "x-key" not in metadata
        kept = api(live, "history", channel="room", limit=10)["result"]["publications"]
        assert [publication["data"] for publication in kept] == [{"seen": "hello"}]
        answer = plain((await client.rpc("price", data_of({"of": 12}, protobuf))).data)
        assert (answer["method"], json.loads(answer["got"]), answer["b64"]) == ("price", {"of": 12}, "")
        answer = plain((await client.rpc("ns:price", data_of([2], protobuf))).data)
        assert answer["got"] == "" and json.loads(base64.b64decode(answer["b64"])) == [2]
        assert back_end.of("RPC")[1][0].encoding == "binary"
        await client.disconnect()

    asyncio.run(run())
    assert requests(live, "rpc") == 1 and requests(live, "publish") == 2 and requests(live, "rpc", proxy="binary") == 1
    assert requests(live, "rpc", "failures_total") == 0 and requests(live, "rpc", "in_flight") == 0


def test_client_headers_are_forwarded_as_metadata(live, back_end):
    back_end.answers = {"Connect": {"result": {"user": "ann"}}}
    body = json.dumps({"id": 1, "connect": {"headers": {"authorization": "emulated", "cookie": "forged"}}})
    stream = Stream(live, "/connection/http_stream", "POST", body, {"Cookie": "a=1", "Authorization": "own"})
    assert stream.next()["connect"]["client"]
    metadata = back_end.of("Connect")[0][1]
    assert (metadata["cookie"], metadata["authorization"], metadata["x-key"]) == ("a=1", "emulated", "k")
    stream.close()
    # Values that gRPC cannot carry are skipped without failing the call.
    stream = Stream(live, "/connection/http_stream", "POST", body, {"Cookie": "caf\xe9".encode("latin-1")})
    assert stream.next()["connect"]["client"]
    assert "cookie" not in back_end.of("Connect")[1][1]
    stream.close()


def test_refusals_of_the_back_end_reach_the_client_unchanged(live, back_end):
    back_end.answers = {
        "Connect": {"disconnect": {"code": 4501, "reason": "go away"}}, "Subscribe": {"error": {"code": 1403, "message": "not you"}},
        "Publish": {"error": {"code": 1404, "message": "not this"}},
        "RPC": lambda _, context: context.abort(grpc.StatusCode.PERMISSION_DENIED, "no such thing"),
    }

    async def run():
        _, events = await connected(live, False)
        ended = await next_of(events.disconnected)
        assert (ended.code, ended.reason) == (4501, "go away")
        # No result: an anonymous user, who needs a token.
        back_end.answers["Connect"] = {}
        _, events = await connected(live, False)
        assert (await next_of(events.disconnected)).code == 3501
        back_end.answers["Connect"] = {"result": {"user": "ann"}}
        client, events = await connected(live, False)
        await next_of(events.connected)
        _, subscription_events = await subscribing(client, "room")
        ended = await next_of(subscription_events.unsubscribed)
        assert (ended.code, ended.reason) == (1403, "not you")
        for call, code in [(client.publish("room", 1), 1404), (client.rpc("x", 1), 100)]:
            with pytest.raises(Exception) as refused:
                await call
            assert refused.value.code == code
        assert "PermissionDenied: no such thing" in live.log()
        assert requests(live, "rpc", "failures_total") == 1
        # An invalid answer is the back end's fault, not the client's.
        for nonsense in ({"result": {"b64data": "?"}}, {"error": {"code": 0}}, {"disconnect": {"code": 70000}}):
            back_end.answers["RPC"] = nonsense
            with pytest.raises(Exception) as refused:
                await client.rpc("x", 1)
            assert refused.value.code == 100
        back_end.answers["RPC"] = {"disconnect": {"code": 4503, "reason": "enough"}}
        call = asyncio.ensure_future(client.rpc("x", 1))
        assert (await next_of(events.disconnected)).code == 4503
        with pytest.raises(Exception):
            await call

    asyncio.run(run())


def test_a_hung_or_absent_back_end_times_out_and_recovers(make_server, tmp_path, back_end):
    live = proxied(make_server, tmp_path, back_end.url)
    released, cancelled = threading.Event(), threading.Event()

    def hang(_, context):
        context.add_callback(cancelled.set)
        released.wait(60)
        return {"result": {"data": js("late")}}

    back_end.answers = {"Connect": {"result": {"user": "ann"}}, "RPC": hang}

    async def failing(client, method, within):
        begin = time.monotonic()
        with pytest.raises(Exception) as refused:
            await client.rpc(method, 1)
        assert refused.value.code == 100 and time.monotonic() - begin < within

    async def run():
        client, events = await connected(live, False)
        await next_of(events.connected)
        await failing(client, "hurried:x", 15)
        assert 0 < back_end.of("RPC")[0][2] <= 0.5, "the back end receives the time limit"
        assert await asyncio.to_thread(cancelled.wait, DEADLINE_S), "the call is cancelled"
        assert "did not answer before the timeout" in live.log() or "Cancelled" in live.log() or "Deadline" in live.log()
        assert requests(live, "rpc", "failures_total", proxy="hurried") == 1
        assert requests(live, "rpc", "in_flight", proxy="hurried") == 0
        released.set()
        # The connection still works.
        back_end.answers["RPC"] = {"result": {"data": js("well")}}
        assert plain((await client.rpc("hurried:x", 1)).data) == "well"
        back_end.close()
        await failing(client, "x", 30)
        await failing(client, "x", 30)
        assert "refused" in live.log().lower()
        restarted = BackEnd(address=f"127.0.0.1:{back_end.port}")
        restarted.answers = {"RPC": {"result": {"data": js("back")}}}
        assert plain((await client.rpc("x", 1)).data) == "back"
        await client.disconnect()
        restarted.close()

    asyncio.run(run())


def test_many_at_a_time_share_a_connection(live, back_end):
    back_end.answers = {"Connect": {"result": {"user": "ann"}}, "RPC": lambda request, _: {"result": {"data": request.data}}}

    async def run():
        clients = [(await connected(live, True))[0] for _ in range(20)]
        for client in clients:
            await client.ready()
        for round_ in range(5):
            results = await asyncio.gather(*(client.rpc("echo", js([round_, n])) for n, client in enumerate(clients)))
            assert [json.loads(answer.data) for answer in results] == [[round_, n] for n in range(20)]
        for client in clients:
            await client.disconnect()

    asyncio.run(run())
    assert len(back_end.peers) == 2, "one connection of the connect proxy, and one of the RPC proxy"
    assert requests(live, "rpc") == 100 and requests(live, "rpc", "failures_total") == 0


def test_the_back_end_refreshes_expired_sessions(make_server, tmp_path, back_end):
    live = proxied(make_server, tmp_path, back_end.url, {"ping_interval": "4s", "pong_timeout": "3900ms"})

    def soon(**more):
        return {"result": {**more, "expire_at": int(time.time()) + 6}}

    goes_on = threading.Event()
    goes_on.set()
    back_end.answers = {
        "Connect": lambda *_: soon(user="ann"), "Subscribe": lambda *_: soon(),
        "Refresh": lambda *_: soon() if goes_on.is_set() else {"result": {"expired": True}}, "SubRefresh": lambda *_: soon(),
    }

    async def run():
        client, events = await connected(live, True)
        await next_of(events.connected)
        _, subscription_events = await subscribing(client, "room")
        await next_of(subscription_events.subscribed)
        for rpc in ("Refresh", "SubRefresh"):
            await asyncio.to_thread(wait.until, lambda rpc=rpc: len(back_end.of(rpc)) > 1, deadline_s=90, what=rpc)
        assert subscription_events.unsubscribed.empty() and events.disconnected.empty()
        request = back_end.of("SubRefresh")[0][0]
        assert (request.user, request.channel, request.client) == ("ann", "room", client.client_id)
        assert back_end.of("Refresh")[0][0].user == "ann"
        goes_on.clear()
        ended = lambda: any(one["code"] == 3005 for one in live.status()["live"]["ended"])
        await asyncio.to_thread(wait.until, ended, deadline_s=90, what="the end of the session")
        await client.disconnect()

    asyncio.run(run())


def test_tls_to_a_back_end_that_requires_a_certificate(make_server, tmp_path):
    authority = Authority(tmp_path, "ours")
    certificate, key = authority.signed("server", "serverAuth", "DNS:back.end")
    own, own_key = authority.signed("client", "clientAuth", "DNS:steadfast")
    root = authority.certificate.read_bytes()
    back_end = BackEnd(grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())], root, require_client_auth=True))
    back_end.answers = {"Connect": ANN}
    tls = {"enabled": True, "server_ca_pem": str(authority.certificate), "server_name": "back.end", "cert_pem": str(own),
           "key_pem": str(own_key)}
    others = Authority(tmp_path, "others")

    def connects(name, **options):
        config = {**CONFIG, "http_stream": {"enabled": True}, "client": {**CONFIG["client"], "proxy": {"connect": {
            "enabled": True, "endpoint": back_end.url, "timeout": "30s", "grpc": {"tls": {**tls, **options}}}}}}
        live = live_server(make_server, tmp_path, config, name=name)
        stream = Stream(live, "/connection/http_stream", "POST", '{"id":1,"connect":{}}')
        reply = stream.next()
        stream.close()
        return reply

    assert connects("right")["connect"]["data"] == {"welcome": 1}
    for name, wrong in [("name", {"server_name": "other.end"}), ("authority", {"server_ca_pem": str(others.certificate)}),
                        ("own", {"cert_pem": "", "key_pem": ""})]:
        reply = connects(name, **wrong)
        assert reply["error"]["code"] == 100, reply
    assert len(back_end.of("Connect")) == 1
    assert connects("unverified", insecure_skip_verify=True, server_ca_pem="", server_name="")["connect"]["client"]
    back_end.close()
