"""Configuration files and variables of Centrifugo v6, taken over as they are."""

import asyncio
import json
import pathlib
import re
import subprocess
import urllib.error
import urllib.request

import pytest
from centrifuge import Client

from harness.live import API_KEY, DEADLINE_S, token
from harness.server import binary, free_port
from harness.session import SubscriptionEvents, next_of

FILES = pathlib.Path(__file__).parent / "centrifugo"
# What `centrifugo genconfig` and `centrifugo defaultconfig` of 6.9.1 print, and files as in production.
PRINTED = [f"{command}.{ending}" for command in ("genconfig", "defaultconfig") for ending in ("json", "yaml", "toml")]
PRODUCTION = ["chat.yaml", "live-video.json", "dashboards.toml"]


def check(path, **variables):
    """`steadfast live check`: (exit status, output)."""
    done = subprocess.run([binary(), "live", "check", str(path)], capture_output=True, text=True, timeout=30, check=False,
                          env={"PATH": "/usr/bin:/bin", **variables})
    return done.returncode, done.stdout


def fetch(port, path, body=None, key=API_KEY):
    """(status, body) of a request of a back end."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=body, headers={"X-API-Key": key})
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read()


async def subscribed(port, path, own_token, channel):
    """A session of centrifuge-python with a subscription, and the events of the latter."""
    client = Client(f"ws://127.0.0.1:{port}{path}", token=own_token, timeout=DEADLINE_S)
    await client.connect()
    events = SubscriptionEvents()
    await client.new_subscription(channel, events=events).subscribe()
    await next_of(events.subscribed)
    return client, events


@pytest.fixture
def start(make_server, monkeypatch):
    """Starts a server with one of the files, on free ports."""

    def with_file(name, **variables):
        for variable, value in variables.items():
            monkeypatch.setenv(variable, value)
        # The ports in the files may be in use on this machine.
        return make_server(args=["--live-listen", "127.0.0.1:0", "--live-config", str(FILES / name)])

    return with_file


@pytest.mark.parametrize("name", PRINTED)
def test_what_centrifugo_prints_is_valid(start, name):
    code, text = check(FILES / name)
    assert code == 0 and "unknown to Centrifugo" not in text, text
    server = start(name)
    assert "Centrifugo does not know" not in server.log(), server.log()


@pytest.mark.parametrize("name", PRODUCTION)
def test_files_of_production_start_unchanged(start, name):
    code, text = check(FILES / name, CENTRIFUGO_VAR_INTERNAL="x")
    assert code == 0 and "unknown to Centrifugo" not in text, text
    server = start(name, CENTRIFUGO_VAR_INTERNAL="x", CENTRIFUGO_HTTP_SERVER_INTERNAL_PORT=str(free_port()))
    # One line lists what has no effect here.
    lines = [line for line in server.log().splitlines() if "without effect here" in line]
    assert len(lines) == 1 and "log" in lines[0] and "admin" in lines[0] or name == "dashboards.toml", server.log()


def test_a_chat_with_an_internal_port(start):
    internal = free_port()
    server = start("chat.yaml", CENTRIFUGO_HTTP_SERVER_INTERNAL_PORT=str(internal))
    assert f"internal=http://127.0.0.1:{internal}" in server.log()
    # Clients have the port of the clients, back ends the other one.
    assert fetch(server.live_port, "/api/info", b"{}")[0] == 404
    assert fetch(server.live_port, "/health")[0] == 404
    assert fetch(internal, "/health")[0] == 200
    assert fetch(internal, "/connection/websocket")[0] == 404
    claims = {"aud": "chat", "iss": "https://auth.example.com"}

    async def run():
        # The second token is signed with the previous key.
        tokens = token("ann", **claims), token("bob", "the secret before", **claims)
        sessions = [await subscribed(server.live_port, "/connection/websocket", own, "room:1") for own in tokens]
        status, text = fetch(internal, "/api/publish", b'{"channel": "room:1", "data": {"a": 1}}')
        assert status == 200 and json.loads(text)["result"]["offset"] == 1, text
        for client, events in sessions:
            assert await next_of(events.publications) == {"a": 1}
            await client.disconnect()

    asyncio.run(run())


def test_variables_alone_configure_the_server(make_server, monkeypatch, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("a secret of the tests\n")
    for name, value in {
            "CLIENT_TOKEN_HMAC_SECRET_KEY_FILE": str(secret), "HTTP_API_KEY": API_KEY, "HTTP_API_HANDLER_PREFIX": "/v1",
            "WEBSOCKET_HANDLER_PREFIX": "/ws", "CHANNEL_NAMESPACES": json.dumps([{"name": "room"}]),
            "CHANNEL_NAMESPACES_ROOM_ALLOW_SUBSCRIBE_FOR_CLIENT": "true", "CLENT_INSECURE": "true"}.items():
        monkeypatch.setenv(f"CENTRIFUGO_{name}", value)
    server = make_server(args=["--live-listen", "127.0.0.1:0"])
    assert "CENTRIFUGO_CLENT_INSECURE" in server.log()
    assert fetch(server.live_port, "/api/info", b"{}")[0] == 404
    assert fetch(server.live_port, "/v1/info", b"{}")[0] == 200
    assert fetch(server.live_port, "/connection/websocket")[0] == 404

    async def run():
        client, _ = await subscribed(server.live_port, "/ws", token(), "room:1")
        await client.disconnect()

    asyncio.run(run())


def test_the_port_of_the_file(make_server, tmp_path):
    port = free_port()
    file = tmp_path / "live.yaml"
    file.write_text(f"http_server:\n  address: 127.0.0.1\n  port: {port}\nhttp_api:\n  disabled: true\n")
    server = make_server(args=["--live-config", str(file)], settings={"live.listen": "127.0.0.1:8000"})
    assert f"live=http://127.0.0.1:{port}" in server.log()
    assert fetch(port, "/api/info", b"{}")[0] == 404
    assert fetch(port, "/health")[0] == 200


def test_all_that_is_refused_is_named(tmp_path):
    file = tmp_path / "live.json"
    file.write_text(json.dumps({"uni_grpc": {"enabled": True}, "consumers": [{"name": "a", "type": "kafka"}],
                                "client": {"channel_limit": "many"}, "admin": {"enabled": True}}))
    code, text = check(file)
    assert code == 3, text
    assert re.search(r"client\.channel_limit: expected a number.*consumers: .*uni_grpc: ", text), text


def refused_by_a_start(path, tmp_path, **variables):
    """The message of `steadfast serve --live-config`, which leaves nothing behind."""
    data = tmp_path / "data of a refused start"
    command = [binary(), "serve", "--data", str(data), "--live-config", str(path), "--s3-listen", "127.0.0.1:0",
               "--admin-listen", "127.0.0.1:0", "--set", "data.pool_size=64 MiB"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False,
                          env={"PATH": "/usr/bin:/bin", **variables})
    assert done.returncode != 0 and not data.exists(), done.stderr
    return done.stderr.strip().splitlines()[-1].removeprefix("steadfast: ")


LOCAL = {"http_server": {"address": "127.0.0.1", "port": 0}}


@pytest.mark.parametrize("options, why", [
    ({"client": {"token": {"rsa_public_key": "no key"}}}, "client.token.rsa_public_key: not a key in PEM"),
    ({"client": {"token": {"ecdsa_public_key": "no key"}}}, "client.token.ecdsa_public_key: not a key in PEM"),
    ({"client": {"subscription_token": {"enabled": True, "rsa_public_key": "no key"}}}, "client.subscription_token.rsa_"),
    ({"client": {"token": {"hmac_secret_key_file": "/no/such"}}}, "/no/such"),
    ({"http_server": {"tls": {"enabled": True, "cert_pem": "/no/such.pem", "key_pem": "/no/such.pem"}}}, "/no/such.pem"),
    ({"http_server": {"internal_port": "1", "internal_tls": {"enabled": True, "cert_pem": "/no/such.pem"}}}, "/no/such.pem"),
    ({"http_server": {"address": "no such host.invalid", "port": 8000}}, "no such host.invalid"),
    ({"grpc_api": {"enabled": True, "key": "k", "tls": {"enabled": True, "cert_pem": "/no/such.pem"}}}, "/no/such.pem"),
    ({"grpc_api": {"enabled": True, "key": "k", "port": 8000}, "http_server": {"port": 8000}}, "live.grpc_api.port"),
    ({"client": {"insecure": True}, "http_server": {"address": "0.0.0.0", "port": 8000}}, "live.client.insecure"),
    ({"token_hmac_secret_key": "a", "namespaces": []}, "version 5 or older (it has namespaces, token_hmac_secret_key)"),
])
def test_the_check_refuses_what_a_start_refuses(tmp_path, options, why):
    file = tmp_path / "live.json"
    file.write_text(json.dumps({**LOCAL, **options}))
    code, text = check(file)
    assert code == 3 and why in text, text
    assert refused_by_a_start(file, tmp_path) == text.strip()


def test_the_check_knows_the_settings_of_the_server(tmp_path):
    file = tmp_path / "live.json"
    file.write_text(json.dumps({"client": {"insecure": True}, "http_server": {"port": 8000}}))
    assert check(file)[0] == 3
    code, text = check(file, STEADFAST_LIVE_INSECURE_ANYWHERE="true")
    assert code == 0 and "valid" in text, text


def test_values_that_look_like_variables_are_warned_of(make_server, tmp_path):
    file = tmp_path / "live.json"
    file.write_text(json.dumps({**LOCAL, "client": {"token": {"hmac_secret_key": "${TOKEN_SECRET:-the default}"}}}))
    code, text = check(file)
    warning = "client.token.hmac_secret_key: ${TOKEN_SECRET} is taken as it stands"
    assert code == 0 and warning in text and "CENTRIFUGO_CLIENT_TOKEN_HMAC_SECRET_KEY" in text, text
    own = tmp_path / "steadfast.toml"
    own.write_text('[admin]\ntoken = "${ADMIN_TOKEN}"\n')
    server = make_server(args=["--live-listen", "127.0.0.1:0", "--live-config", str(file), "--config", str(own)])
    log = server.log()
    assert warning in log and "admin.token: ${ADMIN_TOKEN} is taken as it stands" in log, log
    assert "STEADFAST_ADMIN_TOKEN" in log and "the default" not in log + text, log


def test_lists_of_names_in_variables(make_server, monkeypatch):
    for name, value in {
            "CLIENT_TOKEN_HMAC_SECRET_KEY": "a secret of the tests", "HTTP_API_KEY": API_KEY,
            "CHANNEL_NAMESPACES": "small-history other", "CHANNEL_NAMESPACES_SMALL_HISTORY_HISTORY_SIZE": "2",
            "CHANNEL_NAMESPACES_SMALL_HISTORY_HISTORY_TTL": "60s"}.items():
        monkeypatch.setenv(f"CENTRIFUGO_{name}", value)
    server = make_server(args=["--live-listen", "127.0.0.1:0"])
    for _ in range(3):
        assert fetch(server.live_port, "/api/publish", b'{"channel": "small-history:a", "data": {}}')[0] == 200
    status, text = fetch(server.live_port, "/api/history", b'{"channel": "small-history:a", "limit": 10}')
    assert status == 200 and len(json.loads(text)["result"]["publications"]) == 2, text
