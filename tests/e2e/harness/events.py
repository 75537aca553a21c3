"""Events of objects: channels that mirror buckets, a webhook, and bucket notifications."""

import http.server
import json
import threading
import urllib.parse

from . import wait
from .live import CONFIG, api

KEPT = {"history_size": 100_000, "history_ttl": "10h", "force_recovery": True, "allow_subscribe_for_client": True,
        "allow_tags_filter": True}
MIRRORING = {
    **CONFIG,
    "channel": {"namespaces": [
        {"name": "changes", **KEPT},
        {"name": "files", **KEPT, "mirror_bucket": "media", "mirror_prefix": "rooms/", "mirror_depth": 1},
        {"name": "passing", "allow_subscribe_for_client": True},
    ]},
}
CHANNEL, WEBHOOK = "arn:steadfast:channel:::", "arn:steadfast:webhook:::"


class Hook:
    """A webhook that records its requests, and answers as a test sets it."""

    def __init__(self):
        self.bodies, self.headers, self.raw, self.answer, self.attempts = [], [], [], lambda body: 200, 0
        hook = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                body = json.loads(raw)
                hook.attempts += 1
                answer = hook.answer(body)
                status, headers = answer if isinstance(answer, tuple) else (answer, {})
                if status == 200:
                    hook.bodies.append(body)
                    hook.headers.append(self.headers)
                    hook.raw.append(raw)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_address[1]}/hook"

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def event_of(body):
    """Event and key of a message."""
    (record,) = body["Records"]
    return record["eventName"], urllib.parse.unquote_plus(record["s3"]["object"]["key"])


def history(server, channel):
    """All publications of a channel."""
    found = []
    while True:
        since = {"since": {"offset": found[-1]["offset"], "epoch": epoch}} if found else {}
        result = api(server, "history", channel=channel, limit=1000, **since)["result"]
        epoch = result["epoch"]
        if not result["publications"]:
            return found
        found += result["publications"]


def waiting(server):
    return server.metrics()['steadfast_bound_used{bound="store_events"}']


def forwarded(server):
    wait.until(lambda: waiting(server) == 0, what="all events to be forwarded")


def notify(s3, bucket, *rules, element="Topic"):
    """Sets the notifications of a bucket: each is an ARN, events, and optionally a prefix and a
    suffix."""
    def one(number, arn, events, prefix=None, suffix=None):
        filters = [{"Name": name, "Value": value} for name, value in [("prefix", prefix), ("suffix", suffix)] if value]
        return {"Id": f"rule-{number}", f"{element}Arn": arn, "Events": events,
                **({"Filter": {"Key": {"FilterRules": filters}}} if filters else {})}

    configuration = {f"{element}Configurations": [one(number, *rule) for number, rule in enumerate(rules)]}
    s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration=configuration)
    return configuration


def webhook(server, *args):
    """The output of `steadfast webhook`."""
    done = server.command("webhook", *args, "--data", str(server.data), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)
