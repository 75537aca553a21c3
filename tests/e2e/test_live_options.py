"""Options of Centrifugo for tokens, sessions and proxies, on the wire. The answers are those of
Centrifugo 6.9.1."""

import json
import time

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync import client as sync

from harness.live import CONFIG, DEADLINE_S, SECRET, api, live_server, token
from test_live_grpc_proxies import back_end as grpc_back_end  # noqa: F401
from test_live_jwks import Key
from test_live_proxies import back_end  # noqa: F401


def with_client(**options):
    return {**CONFIG, "client": {**CONFIG["client"], **options}}


def with_token(**options):
    return with_client(token={"hmac_secret_key": SECRET, **options})


class Session:
    """A session over WebSocket; `code` is the close code once it has ended."""

    def __init__(self, server, sent=(), **connect):
        self.socket = sync.connect(f"ws://{server.address}:{server.live_port}/connection/websocket",
                                   additional_headers=sent, open_timeout=DEADLINE_S, max_size=None)
        self.code = None
        self.reply = self.ask(connect=connect)

    def replies(self):
        """What the server sends, until it ends the session."""
        try:
            while True:
                yield from map(json.loads, self.socket.recv(timeout=DEADLINE_S).splitlines())
        except ConnectionClosed as closed:
            self.code = closed.rcvd.code

    def ask(self, **command):
        """The reply; empty if the session ends instead."""
        self.socket.send(json.dumps({"id": 1, **command}))
        return next((reply for reply in self.replies() if reply.get("id") == 1), {})

    def user(self):
        """The user that the server knows, as others see it."""
        channel = f"who{time.monotonic_ns()}"
        assert "error" not in self.ask(subscribe={"channel": channel})
        clients = self.ask(presence={"channel": channel})["presence"]["presence"].values()
        return [client.get("user", "") for client in clients]


def refused(server, **connect):
    """The close code of a session that is refused."""
    return Session(server, **connect).code


def test_keys_of_hmac_rotate(make_server, tmp_path):
    until = int(time.time()) + 3600
    options = {"hmac_secret_key": "new", "hmac_previous_secret_key": SECRET}
    live = live_server(make_server, tmp_path, with_client(token={**options, "hmac_previous_secret_key_valid_until": until}))
    assert Session(live, token=token(secret="new")).user() == ["ann"]
    assert Session(live, token=token("bob")).user() == ["bob"]
    assert refused(live, token=token(secret="other")) == 3500
    assert SECRET not in live.log()


def test_the_previous_key_ends(make_server, tmp_path):
    options = {"hmac_secret_key": "new", "hmac_previous_secret_key": SECRET, "hmac_previous_secret_key_valid_until": 1}
    live = live_server(make_server, tmp_path, with_client(token=options))
    assert Session(live, token=token(secret="new")).user() == ["ann"]
    assert refused(live, token=token()) == 3500


def test_claims_of_tokens(make_server, tmp_path):
    options = {"user_id_claim": "account.id", "issuer_regex": "^https://id/(one|two)$", "audience_regex": "live"}
    live = live_server(make_server, tmp_path, with_token(**options))
    claims = {"iss": "https://id/two", "aud": ["x", "alive"], "account": {"id": 42}}
    assert Session(live, token=token(**claims)).user() == ["42"]
    for wrong in ({"iss": "https://id/three"}, {"aud": "other"}, {"aud": None}, {"iss": None}):
        assert refused(live, token=token(**{**claims, **wrong})) == 3500, wrong


def test_each_issuer_has_its_keys(make_server, tmp_path, back_end):  # noqa: F811
    one, two = Key(tmp_path, "key1"), Key(tmp_path, "key2")
    options = {"jwks_public_endpoint": back_end.url("/{{realm}}/keys"), "issuer_regex": "^https://id/(?P<realm>one|two)$"}
    live = live_server(make_server, tmp_path, with_client(token=options))
    back_end.answers = {"/one/keys": {"keys": [one.public()]}, "/two/keys": {"keys": [two.public()]}}
    assert Session(live, token=one.token(iss="https://id/one")).user() == ["ann"]
    assert Session(live, token=two.token(iss="https://id/two")).user() == ["ann"]
    # Not the issuer's own key: the server cannot know it, or has just fetched a set without it.
    assert "connect" not in Session(live, token=one.token(iss="https://id/two")).reply
    assert refused(live, token=one.token(iss="https://id/three")) == 3500
    assert {path for path, *_ in back_end.requests} == {"/one/keys", "/two/keys"}


def test_unsafe_placeholders_are_refused(make_server, tmp_path):
    file = tmp_path / "unsafe.json"
    options = {"jwks_public_endpoint": "https://{{host}}/keys", "issuer_regex": "^https://(?P<host>.*)$"}
    file.write_text(json.dumps(with_client(token=options)))
    server = make_server(start=False)
    found = server.command("serve", "--data", str(tmp_path / "none"), "--live-config", str(file), "--print-config")
    assert found.returncode != 0 and "issuer_regex" in found.stderr, found.stderr


def test_tokens_without_a_user_are_refused(make_server, tmp_path):
    live = live_server(make_server, tmp_path, with_client(disallow_anonymous_connection_tokens=True))
    assert refused(live, token=token("")) == 3507
    assert Session(live, token=token()).user() == ["ann"]


def test_signatures_are_not_checked_on_request(make_server, tmp_path):
    live = live_server(make_server, tmp_path, with_client(insecure_skip_token_signature_verify=True))
    assert "insecure_skip_token_signature_verify" in live.log()
    assert Session(live, token=token("eve", secret="any")).user() == ["eve"]
    assert Session(live, token=token("eve", secret="any", exp=1)).reply["error"]["code"] == 109


def test_a_proxy_in_front_names_the_user_in_a_header(make_server, tmp_path):
    personal = {"enabled": True}
    options = {"user_id_http_header": "X-User-Id", "subscribe_to_user_personal_channel": personal}
    live = live_server(make_server, tmp_path, with_client(**options))
    ann = Session(live, {"X-User-ID": "ann"}, subs={"news": {}})
    assert "subs" not in ann.reply["connect"] and ann.user() == ["ann"]
    for headers in ({}, {"X-User-ID": ""}, {"X-User": "ann"}):
        assert Session(live, headers).code == 3501, headers
    assert Session(live, (), headers={"X-User-Id": "ann"}).code == 3501, "a header in the connect command is the client's own"
    bob = Session(live, {"X-User-ID": "ann"}, token=token("bob"))
    assert list(bob.reply["connect"]["subs"]) == ["#bob"] and bob.user() == ["bob"]


@pytest.mark.parametrize("included", [False, True])
def test_the_time_of_the_server(make_server, tmp_path, included):
    live = live_server(make_server, tmp_path, with_client(connect_include_server_time=included))
    reply = Session(live, token=token()).reply["connect"]
    assert ("time" in reply) == included
    assert not included or abs(reply["time"] / 1000 - time.time()) < 60


def test_one_session_for_each_user(make_server, tmp_path):
    personal = {"enabled": True, "single_connection": True}
    live = live_server(make_server, tmp_path, with_client(subscribe_to_user_personal_channel=personal))
    first, bob = Session(live, token=token()), Session(live, token=token("bob"))
    second = Session(live, token=token())
    assert all("push" in reply for reply in first.replies()) and first.code == 3504
    assert second.user() == ["ann"] and bob.user() == ["bob"]


def test_the_ping_method(make_server, tmp_path):
    live = live_server(make_server, tmp_path, {**CONFIG, "rpc": {"ping": {"enabled": True}}})
    session = Session(live, token=token())
    assert session.ask(rpc={"method": "ping"}) == {"id": 1, "rpc": {}}
    assert session.ask(rpc={"method": "other"})["error"]["code"] == 104


def test_the_newest_publication_comes_with_a_subscription(make_server, tmp_path):
    namespace = {**CONFIG["channel"]["without_namespace"], "force_recovery_mode": "cache", "auto_cache_recover": True,
                 "history_meta_ttl": "2000h"}
    config = {**CONFIG, "channel": {"without_namespace": namespace, "history_meta_ttl": "1000h"}}
    live = live_server(make_server, tmp_path, config)
    for data in (1, 2):
        api(live, "publish", channel="news", data=data)
    session = Session(live, token=token())
    found = session.ask(subscribe={"channel": "news"})["subscribe"]
    assert [one["data"] for one in found["publications"]] == [2] and found["recovered"] and found["was_recovering"]
    empty = session.ask(subscribe={"channel": "empty"})["subscribe"]
    assert "recovered" not in empty and empty["was_recovering"]
    personal = Session(live, token=token(channels=["news"])).reply["connect"]["subs"]["news"]
    assert [one["data"] for one in personal["publications"]] == [2]


def test_static_metadata_of_proxies(make_server, tmp_path, grpc_back_end):  # noqa: F811
    proxy = {"enabled": True, "endpoint": grpc_back_end.url, "timeout": "60s", "http_headers": ["X-Own"], "grpc_metadata": ["any"],
             "grpc": {"static_metadata": {"X-Static": "yes", "X-Own": "server"}, "compression": True,
                      "tls": {"client_ca_pem": "unused"}}}
    live = live_server(make_server, tmp_path, with_client(proxy={"connect": proxy}))
    grpc_back_end.answers = {"Connect": {"result": {"user": "ann"}}}
    for headers, own in (({}, "server"), ({"X-Own": "client", "Any": "x"}, "client")):
        assert Session(live, headers).user() == ["ann"]
        _, metadata, _ = grpc_back_end.of("Connect")[-1]
        assert (metadata["x-static"], metadata["x-own"]) == ("yes", own) and "any" not in metadata
