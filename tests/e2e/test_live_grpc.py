"""The server API over gRPC, through grpcio."""

import asyncio
import base64
import json
import os
import signal
import socket
import subprocess
import time

import grpc
import pytest

from harness import protos, wait
from harness.live import API_KEY, CONFIG, DEADLINE_S, api, live_server, restart, token
from harness.server import binary, free_port
from harness.session import connecting, next_of, plain
from test_live import both
from test_live_proxy_tls import Authority

KEY = (("authorization", f"apikey {API_KEY}"),)


def grpc_server(make_server, tmp_path, name="data", settings=None, **options):
    config = {**CONFIG, "grpc_api": {"enabled": True, "address": "127.0.0.1", "port": 0, "key": API_KEY, **options}}
    return live_server(make_server, tmp_path, config, name=name, settings=settings)


@pytest.fixture
def live(make_server, tmp_path):
    return grpc_server(make_server, tmp_path)


class Calls:
    """A channel to a server, and its methods by name."""

    def __init__(self, server, metadata=KEY, credentials=None, **options):
        target, options = f"127.0.0.1:{server.grpc_port}", list(options.items())
        self.channel = (grpc.secure_channel(target, credentials, options) if credentials else grpc.insecure_channel(target, options))
        self.messages, services = protos.load("api")
        self.stub, self.metadata = services.CentrifugoApiStub(self.channel), metadata

    def __call__(self, rpc, request="", *, metadata=None, **fields):
        request = getattr(self.messages, request or f"{rpc}Request")(**fields)
        return getattr(self.stub, rpc)(request, metadata=self.metadata if metadata is None else metadata, timeout=DEADLINE_S)

    def publish(self, channel, data, **fields):
        return self("Publish", channel=channel, data=json.dumps(data).encode(), **fields)

    def history(self, channel, limit=100, **fields):
        return self("History", channel=channel, limit=limit, **fields).result

    def close(self):
        self.channel.close()


@pytest.fixture
def call(live):
    calls = Calls(live)
    yield calls
    calls.close()


def refused(code, call, *args, **fields):
    """The details of a call that must fail with this code."""
    with pytest.raises(grpc.RpcError) as error:
        call(*args, **fields)
    assert error.value.code() == code, error.value
    return error.value


async def connected(server, protobuf, user="ann"):
    async def get_token():
        return token(user)

    client, events = await connecting(server, protobuf, get_token=get_token)
    await client.ready()
    return client, events


@both
def test_every_command_has_the_same_effect_as_over_http(live, call, protobuf):
    subscribe = {"user": "ann", "channel": "news", "data": b'{"hello":1}', "info": b'{"role":"reader"}'}

    async def run():
        client, events = await connected(live, protobuf)
        answer = call("Subscribe", **subscribe)
        assert answer.HasField("result") and not answer.HasField("error")
        ctx = await next_of(events.subscribed)
        assert (ctx.channel, plain(ctx.data)) == ("news", {"hello": 1})
        first = call.publish("news", {"n": 1}, tags={"a": "b"}, idempotency_key="once").result
        assert first.offset == 1 and len(first.epoch) == 8
        assert call.publish("news", {"n": 2}, idempotency_key="once").result == first
        # It is the same API: each protocol sees the effects of the other.
        same = api(live, "publish", channel="news", data={"n": 2}, idempotency_key="once")["result"]
        assert same == {"offset": 1, "epoch": first.epoch}
        assert await next_of(events.publications) == ("news", 1, {"n": 1})
        both = call("Broadcast", channels=["news", "no:such", "short:1"], data=b"[2]").result.responses
        assert [(one.result.offset, one.error.code) for one in both] == [(2, 0), (0, 102), (1, 0)]
        assert await next_of(events.publications) == ("news", 2, [2])
        kept = call.history("news")
        assert [(one.data, one.offset, dict(one.tags)) for one in kept.publications] == [
            (b'{"n": 1}', 1, {"a": "b"}), (b"[2]", 2, {})]
        assert (kept.offset, kept.epoch) == (2, first.epoch)
        assert [one.offset for one in call.history("news", since=first).publications] == [2]
        assert [one.offset for one in call.history("news", limit=1, reverse=True).publications] == [2]
        assert not call.history("news", limit=0).publications, "the position alone"
        there = call("Presence", "ChannelRequest", channel="news").result.presence[client.client_id]
        assert (there.user, there.client, there.chan_info) == ("ann", client.client_id, b'{"role":"reader"}')
        stats = call("PresenceStats", "ChannelRequest", channel="news").result
        assert (stats.num_clients, stats.num_users) == (1, 1)
        found = call("Channels", pattern="n*").result.channels
        assert {name: info.num_clients for name, info in found.items()} == {"news": 1}
        node = call("Info").result.nodes[0]
        assert (node.num_clients, node.num_users, node.num_channels) == (1, 1, 1) and node.version.startswith("steadfast")
        assert call("HistoryRemove", "ChannelRequest", channel="news").HasField("result")
        assert not call.history("news").publications
        assert call("Unsubscribe", user="ann", channel="news").HasField("result")
        assert (await next_of(events.unsubscribed)).channel == "news"
        assert call("Refresh", user="ann", expire_at=int(time.time()) + 1000).HasField("result")
        assert call("Disconnect", user="ann", disconnect={"code": 4700, "reason": "enough"}).HasField("result")
        ended = await next_of(events.disconnected)
        assert ended.code == 4700
        client, events = await connected(live, protobuf)
        assert call("Refresh", user="ann", expired=True).HasField("result")
        wait.until(lambda: any(one["code"] == 3005 for one in live.status()["live"]["ended"]), DEADLINE_S, "the end of the session")
        await client.disconnect()

    asyncio.run(run())


def test_a_batch_runs_in_order_and_has_a_reply_for_each_command(live, call):
    publish = [{"publish": {"channel": "news", "data": b"%d" % n}} for n in range(3)]
    more = [{"history": {"channel": "news", "limit": 10}}, {"publish": {"channel": "no:such", "data": b"1"}}, {},
            {"connections": {}}, {"presence_stats": {"channel": "news"}}, {"info": {}},
            {"broadcast": {"channels": ["a", "b"], "data": b"1"}}]
    replies = call("Batch", commands=publish + more).replies
    assert [reply.publish.offset for reply in replies[:3]] == [1, 2, 3]
    history, unknown, nothing, connections, stats, info, broadcast = replies[3:]
    assert [one.data for one in history.history.publications] == [b"0", b"1", b"2"]
    assert [unknown.error.code, nothing.error.code, connections.error.code] == [102, 104, 104]
    assert stats.HasField("presence_stats") and len(info.info.nodes) == 1 and len(broadcast.broadcast.responses) == 2
    # The server does not even read the commands of a batch that is too long.
    refused(grpc.StatusCode.RESOURCE_EXHAUSTED, call, "Batch", commands=[{}] * 10_001)
    replies = call("Batch", commands=publish, parallel=True).replies
    assert sorted(reply.publish.offset for reply in replies) == [4, 5, 6]


def test_data_is_opaque(live, call):
    """As in Centrifugo: bytes, for clients that accept them."""
    data = bytes(range(256))
    assert call("Publish", channel="bytes", data=data).result.offset == 1
    assert call("Publish", channel="bytes", b64data="AP8=").result.offset == 2
    assert [one.data for one in call.history("bytes").publications] == [data, b"\0\xff"]
    # JSON cannot carry it, so HTTP returns it as Base64.
    found = api(live, "history", channel="bytes", limit=10)["result"]["publications"]
    assert [base64.b64decode(one["b64data"]) for one in found] == [data, b"\0\xff"]
    batch = api(live, "batch", commands=[{"history": {"channel": "bytes", "limit": 1}}])["replies"]
    assert base64.b64decode(batch[0]["history"]["publications"][0]["b64data"]) == data


def test_calls_without_the_key_are_refused(live):
    call = Calls(live)
    for wrong in [(), (("authorization", API_KEY),), (("authorization", "apikey"),), (("authorization", f"apikey {API_KEY}x"),),
                  (("authorization", f"bearer {API_KEY}"),), (("x-api-key", API_KEY),)]:
        for rpc in ("Info", "NoSuchThing"):
            refused(grpc.StatusCode.UNAUTHENTICATED, call, rpc, "InfoRequest", metadata=wrong)
        refused(grpc.StatusCode.UNAUTHENTICATED, call, "Publish", channel="news", data=b"1", metadata=wrong)
    assert not call.history("news").publications
    call.close()


def test_errors_are_in_replies_or_transport_errors_as_configured(make_server, tmp_path, live, call):
    answer = call.publish("no:such", 1)
    assert (answer.error.code, answer.error.message) == (102, "unknown channel") and not answer.HasField("result")
    for rpc, fields, code in [("Publish", {"channel": "news"}, 107), ("Publish", {"channel": "news", "data": b"1", "version": 2}, 107),
                              ("Disconnect", {"user": "ann", "disconnect": {"code": 70000}}, 107)]:
        assert call(rpc, **fields).error.code == code
    assert call("Presence", "ChannelRequest", channel="short:1").error.code == 108
    assert call("Connections", "InfoRequest").error.code == 108
    refused(grpc.StatusCode.UNIMPLEMENTED, call, "NoSuchThing", "InfoRequest")
    mode = (*KEY, ("x-centrifugo-error-mode", "transport"))
    error = refused(grpc.StatusCode.NOT_FOUND, call, "Publish", channel="no:such", data=b"1", metadata=mode)
    assert error.details() == "unknown channel"
    other = grpc_server(make_server, tmp_path, error_mode="transport", name="other")
    calls = Calls(other)
    error = refused(grpc.StatusCode.INVALID_ARGUMENT, calls, "Presence", "ChannelRequest", channel="short:1")
    details = dict(error.trailing_metadata())["grpc-status-details-bin"]
    assert b"type.googleapis.com/centrifugal.centrifugo.api.Error" in details and b"not available" in details
    calls.close()


def test_publications_survive_a_crash(live):
    call = Calls(live)
    for round_ in range(3):
        positions = [call.publish("news", {"round": round_, "n": n}).result for n in range(20)]
        live.kill()
        call.close()
        restart(live)
        call = Calls(live)
        kept = call.history("news", limit=300)
        assert kept.offset == positions[-1].offset == 20 * (round_ + 1) and kept.epoch == positions[-1].epoch
        assert json.loads(kept.publications[-1].data) == {"round": round_, "n": 19}
    call.close()


def test_a_call_sets_the_durability_of_its_publication(live, call):
    def durability(what):
        return (*KEY, ("x-steadfast-durability", what))

    before = {}
    for channel, metadata in [("a", KEY), ("b", durability("sync")), ("c", durability("async"))]:
        before[channel] = call("Publish", metadata=metadata, channel=channel, data=b"1").result.epoch
    command = call.messages.Command(publish=call.messages.PublishRequest(channel="d", data=b"1"))
    before["d"] = call("Batch", metadata=durability("async"), commands=[command]).replies[0].publish.epoch
    assert call("Publish", metadata=durability("perhaps"), channel="a", data=b"2").error.code == 107
    live.kill()
    call.close()
    calls = Calls(restart(live))
    assert {channel for channel in before if calls.history(channel).epoch != before[channel]} == {"c", "d"}
    calls.close()


def test_messages_and_calls_are_bounded(make_server, tmp_path):
    live = grpc_server(make_server, tmp_path, max_receive_message_size=10_000)
    call = Calls(live)
    assert call.publish("news", "x" * 9000).result.offset == 1
    for size in (11_000, 3_000_000):
        refused(grpc.StatusCode.RESOURCE_EXHAUSTED, call.publish, "news", "x" * size)
    requests = [call.messages.PublishRequest(channel="news", data=b"1") for _ in range(2000)]
    pending = [call.stub.Publish.future(request, metadata=KEY, timeout=DEADLINE_S) for request in requests]
    assert sorted(one.result().result.offset for one in pending) == list(range(2, 2002))
    bound = live.metrics()
    assert bound['steadfast_bound_limit{bound="live_grpc_calls"}'] == 256, [name for name in bound if "grpc" in name]
    call.close()


def test_connections_without_calls_are_closed(make_server, tmp_path):
    live = grpc_server(make_server, tmp_path, settings={"limits.header_timeout": "1s"})
    call = Calls(live)
    assert call("Info").result.nodes
    silent, spoken = (socket.create_connection(("127.0.0.1", live.grpc_port), timeout=DEADLINE_S) for _ in range(2))
    spoken.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
    spoilt = socket.create_connection(("127.0.0.1", live.grpc_port), timeout=DEADLINE_S)
    spoilt.sendall(b"GET / HTTP/1.1\r\n\r\n" + os.urandom(1000))
    for one in (silent, spoken, spoilt):
        try:
            while one.recv(4096):
                pass
        except ConnectionResetError:
            pass
        one.close()
    assert call("Info").result.nodes, "on the connection that it has"
    call.close()


def test_the_server_stops_at_once_with_open_connections(live):
    call = Calls(live)
    assert call("Info").result.nodes
    silent = socket.create_connection(("127.0.0.1", live.grpc_port), timeout=DEADLINE_S)
    begin = time.monotonic()
    live.stop()
    assert time.monotonic() - begin < 10 and "cut off" not in live.log()
    refused(grpc.StatusCode.UNAVAILABLE, call, "Info")
    silent.close()
    call.close()


def failing(tmp_path, grpc_api, live_listen="127.0.0.1:0", **config):
    """The output of a server that cannot start."""
    file = tmp_path / "failing.json"
    file.write_text(json.dumps({**CONFIG, **config, "grpc_api": grpc_api}))
    command = [binary(), "serve", "--data", str(tmp_path / "failing"), "--s3-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0",
               "--live-listen", live_listen, "--live-config", str(file)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("STEADFAST_")}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)
    assert ended.returncode != 0
    return ended.stdout + ended.stderr


def test_configuration_errors_stop_the_start(live, tmp_path):
    enabled = {"enabled": True, "address": "127.0.0.1", "port": 0, "key": "k"}
    output = failing(tmp_path, {**enabled, "port": live.grpc_port})
    assert f"live.grpc_api.port: 127.0.0.1:{live.grpc_port} is in use by another process" in output
    port = free_port()
    output = failing(tmp_path, {"enabled": True, "key": "k", "port": port}, live_listen=f"127.0.0.1:{port}")
    assert f"another port of this server is {port} too" in output
    assert "grpc_api.key" in failing(tmp_path, {"enabled": True, "port": 0})
    assert "grpc_api.tls.cert_pem" in failing(tmp_path, {**enabled, "tls": {"enabled": True}})
    assert "set live.listen" in failing(tmp_path, enabled, live_listen="")
    assert "uni_grpc" in failing(tmp_path, enabled, uni_grpc={"enabled": True})


def test_no_port_is_open_unless_it_is_enabled(make_server, tmp_path):
    live = live_server(make_server, tmp_path)
    assert live.grpc_port is None
    listening = subprocess.run(["ls", "-l", f"/proc/{live.pid}/fd"], capture_output=True, text=True, check=True).stdout
    mine = {line.rsplit("socket:[", 1)[1].rstrip("]") for line in listening.splitlines() if "socket:[" in line}
    ports = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table, encoding="ascii") as lines:
            fields = [line.split() for line in lines][1:]
        ports |= {int(row[1].rsplit(":", 1)[1], 16) for row in fields if row[3] == "0A" and row[9] in mine}
    assert ports == {live.s3_port, live.admin_port, live.live_port}


def test_without_a_key_the_log_warns(make_server, tmp_path):
    live = grpc_server(make_server, tmp_path, key="")
    assert "no key is set" in live.log()
    call = Calls(live, metadata=())
    assert call.publish("news", 1).result.offset == 1
    call.close()


def test_over_tls_with_certificates_on_both_sides(make_server, tmp_path):
    authority, others = Authority(tmp_path, "ours"), Authority(tmp_path, "others")
    certificate, key = authority.signed("server", "serverAuth", "IP:127.0.0.1")
    tls = {"enabled": True, "cert_pem": str(certificate), "key_pem": key.read_text(), "client_ca_pem": str(authority.certificate)}
    live = grpc_server(make_server, tmp_path, tls=tls)

    def calls(roots, signer):
        certificate, key = signer.signed("client", "clientAuth", "DNS:back.end") if signer else (None, None)
        credentials = grpc.ssl_channel_credentials(roots.certificate.read_bytes(), key and key.read_bytes(),
                                                   certificate and certificate.read_bytes())
        return Calls(live, credentials=credentials)

    call = calls(authority, authority)
    assert call.publish("news", 1).result.offset == 1
    refused(grpc.StatusCode.UNAUTHENTICATED, call, "Info", metadata=())
    call.close()
    for roots, signer in [(others, authority), (authority, others), (authority, None)]:
        call = calls(roots, signer)
        refused(grpc.StatusCode.UNAVAILABLE, call, "Info")
        call.close()
    plainly = Calls(live)
    refused(grpc.StatusCode.UNAVAILABLE, plainly, "Info")
    plainly.close()


def test_a_stop_waits_for_calls(live):
    """No answered call is lost, and no call in flight is broken off."""
    call = Calls(live)
    requests = (call.messages.PublishRequest(channel="news", data=b"%d" % n) for n in range(500))
    pending = [call.stub.Publish.future(request, metadata=KEY, timeout=DEADLINE_S) for request in requests]
    pending[0].result()
    os.kill(live.pid, signal.SIGTERM)
    answered = []
    for one in pending:
        try:
            answered.append(one.result().result.offset)
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.UNAVAILABLE, error
    call.close()
    assert live.process.wait(DEADLINE_S) == 0
    restart(live)
    call = Calls(live)
    kept = {one.offset for one in call.history("news", limit=300).publications} | {
        one.offset for one in call.history("news", limit=300, reverse=True).publications}
    assert set(answered) <= kept and answered, (len(answered), len(kept))
    call.close()
