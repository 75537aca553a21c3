"""Servers with a live port, tokens for it, and its API."""

import base64
import hashlib
import hmac
import json
import urllib.request

SECRET = "a secret of the tests"
API_KEY = "a key of the tests"
CONFIG = {
    # A slow machine must not end a session that is connecting.
    "client": {"token": {"hmac_secret_key": SECRET}, "queue_max_size": 200_000, "stale_close_delay": "60s"},
    "http_api": {"key": API_KEY},
    "channel": {
        "without_namespace": {
            "presence": True, "join_leave": True, "force_push_join_leave": True,
            "history_size": 1000, "history_ttl": "1h", "force_recovery": True,
            "allow_subscribe_for_client": True, "allow_publish_for_subscriber": True,
            "allow_presence_for_subscriber": True, "allow_history_for_subscriber": True,
            "allowed_delta_types": ["fossil"], "delta_publish": True, "allow_tags_filter": True,
        },
        "namespaces": [
            {"name": "passing", "allow_subscribe_for_client": True},
            {"name": "short", "history_size": 3, "history_ttl": "1h", "force_recovery": True,
             "allow_subscribe_for_client": True},
        ],
    },
}
DEADLINE_S = 20


def token(user="ann", secret=SECRET, **claims):
    def part(value):
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")

    signed = part({"alg": "HS256", "typ": "JWT"}) + b"." + part({"sub": user, **claims})
    mac = hmac.new(secret.encode(), signed, hashlib.sha256).digest()
    return (signed + b"." + base64.urlsafe_b64encode(mac).rstrip(b"=")).decode()


def live_server(make_server, tmp_path, config=None, **options):
    """A server with a live port of its own."""
    file = tmp_path / "live.json"
    file.write_text(json.dumps(config or CONFIG))
    return make_server(args=["--live-listen", "127.0.0.1:0", "--live-config", str(file)], **options)


def restart(server):
    """Restarts the server on the same port, as clients expect."""
    server.args = ["--live-listen", f"{server.address}:{server.live_port}", *server.args[2:]]
    return server.start()


def missed(server, channel, values):
    """Publishes what no session can have received: starts a killed server at another port, and
    kills it again."""
    port = server.live_port
    server.args = ["--live-listen", "127.0.0.1:0", *server.args[2:]]
    server.start()
    for value in values:
        api(server, "publish", channel=channel, data=value)
    server.kill()
    server.live_port = port


def api(server, method, key=API_KEY, headers=(), **params):
    request = urllib.request.Request(f"http://{server.address}:{server.live_port}/api/{method}", method="POST",
                                     data=json.dumps(params).encode(), headers={"X-API-Key": key, **dict(headers)})
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
        return json.load(answer)
