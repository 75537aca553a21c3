"""Events of objects: notifications of buckets to channels and webhooks, and channels that mirror buckets."""

import asyncio
import base64
import collections
import hmac
import http.server
import json
import threading
import time
import urllib.parse
from concurrent.futures import ThreadPoolExecutor

import pytest
from botocore.exceptions import ClientError

from harness import wait
from harness.live import CONFIG, again, api, live_server, token
from harness.session import connecting, next_of
from test_live import both
from test_live_proxies import subscribing

KEPT = {"history_size": 100_000, "history_ttl": "10h", "force_recovery": True, "allow_subscribe_for_client": True,
        "allow_tags_filter": True}
MIRRORING = {
    **CONFIG,
    "channel": {"namespaces": [
        {"name": "told", **KEPT},
        {"name": "files", **KEPT, "mirror_bucket": "media", "mirror_prefix": "rooms/", "mirror_depth": 1},
        {"name": "passing", "allow_subscribe_for_client": True},
    ]},
}
CHANNEL, WEBHOOK = "arn:steadfast:channel:::", "arn:steadfast:webhook:::"


class Hook:
    """A webhook that remembers what it was told, and answers as a test says."""

    def __init__(self):
        self.bodies, self.headers, self.raw, self.answer, self.asked = [], [], [], lambda body: 200, 0
        hook = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                body = json.loads(raw)
                hook.asked += 1
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


@pytest.fixture
def hook():
    found = Hook()
    yield found
    found.close()


def told(body):
    """Event and key of a message."""
    (record,) = body["Records"]
    return record["eventName"], urllib.parse.unquote_plus(record["s3"]["object"]["key"])


def history(server, channel):
    """All that was published into a channel."""
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
    """Sets the notifications of a bucket: each is an ARN, events, and perhaps a prefix and a suffix."""
    def one(number, arn, events, prefix=None, suffix=None):
        filters = [{"Name": name, "Value": value} for name, value in [("prefix", prefix), ("suffix", suffix)] if value]
        return {"Id": f"rule-{number}", f"{element}Arn": arn, "Events": events,
                **({"Filter": {"Key": {"FilterRules": filters}}} if filters else {})}

    configuration = {f"{element}Configurations": [one(number, *rule) for number, rule in enumerate(rules)]}
    s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration=configuration)
    return configuration


@both
def test_channels_mirror_a_bucket_for_a_real_client(make_server, tmp_path, protobuf):
    server = live_server(make_server, tmp_path, MIRRORING)
    s3 = server.s3()
    s3.create_bucket(Bucket="media")

    async def run():
        client, _ = await connecting(server, protobuf, token=token("ann"))
        _, all_rooms = await subscribing(client, "files:/")
        _, room = await subscribing(client, "files:/42")
        for heard in (all_rooms, room):
            await next_of(heard.subscribed)
        put = await asyncio.to_thread(s3.put_object, Bucket="media", Key="rooms/42/a cat & ü.png", Body=b"x" * 300_000)
        await asyncio.to_thread(s3.put_object, Bucket="media", Key="elsewhere", Body=b"")
        await asyncio.to_thread(s3.put_object, Bucket="media", Key="rooms/7/b", Body=b"")
        await asyncio.to_thread(s3.delete_object, Bucket="media", Key="rooms/42/a cat & ü.png")
        (record,) = (await next_of(room.publications))["Records"]
        assert record["eventSource"] == "aws:s3" and record["s3"]["bucket"]["name"] == "media"
        assert record["s3"]["object"]["key"] == "rooms/42/a+cat+%26+%C3%BC.png"
        assert record["s3"]["object"]["size"] == 300_000 and f'"{record["s3"]["object"]["eTag"]}"' == put["ETag"]
        assert told(await next_of(room.publications)) == ("ObjectRemoved:Delete", "rooms/42/a cat & ü.png")
        heard = [told(await next_of(all_rooms.publications)) for _ in range(3)]
        assert heard == [("ObjectCreated:Put", "rooms/42/a cat & ü.png"), ("ObjectCreated:Put", "rooms/7/b"),
                         ("ObjectRemoved:Delete", "rooms/42/a cat & ü.png")]
        assert room.publications.empty() and all_rooms.publications.empty()
        await client.disconnect()

    asyncio.run(run())
    forwarded(server)
    first = api(server, "history", channel="files:/42", limit=1)["result"]["publications"][0]
    assert first["tags"]["event"] == "ObjectCreated:Put"


def test_every_kind_of_change_is_told_to_a_channel_and_a_webhook(make_server, tmp_path, hook):
    server = live_server(make_server, tmp_path, MIRRORING,
                         settings={"events.webhooks": f"app={hook.url}", "events.webhook_parallel": 1})
    s3 = server.s3()
    s3.create_bucket(Bucket="photos")
    s3.put_object(Bucket="photos", Key="early", Body=b"")
    given = notify(s3, "photos", (CHANNEL + "told:all", ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]),
                   (WEBHOOK + "app", ["s3:ObjectRemoved:Delete", "s3:ObjectCreated:Copy"], "d", ".x"))
    found = s3.get_bucket_notification_configuration(Bucket="photos")
    assert found["TopicConfigurations"] == given["TopicConfigurations"]

    s3.put_object(Bucket="photos", Key="d/1.x", Body=b"1")
    s3.copy_object(Bucket="photos", Key="d/2.x", CopySource="photos/d/1.x")
    s3.copy_object(Bucket="photos", Key="d/2.x", CopySource="photos/d/2.x", MetadataDirective="REPLACE", Metadata={"a": "b"})
    s3.put_object_tagging(Bucket="photos", Key="d/2.x", Tagging={"TagSet": [{"Key": "t", "Value": "v"}]})
    upload = s3.create_multipart_upload(Bucket="photos", Key="d/3.x")["UploadId"]
    part = s3.upload_part(Bucket="photos", Key="d/3.x", UploadId=upload, PartNumber=1, Body=b"3" * 10)
    s3.complete_multipart_upload(Bucket="photos", Key="d/3.x", UploadId=upload, MultipartUpload={
        "Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]})
    s3.delete_object(Bucket="photos", Key="never there")
    s3.delete_objects(Bucket="photos", Delete={"Objects": [{"Key": "early"}, {"Key": "d/1.x"}, {"Key": "nothing"}]})
    # The configuration is that of the time of the change.
    s3.put_bucket_notification_configuration(Bucket="photos", NotificationConfiguration={})
    s3.put_object(Bucket="photos", Key="d/late.x", Body=b"")
    assert "TopicConfigurations" not in s3.get_bucket_notification_configuration(Bucket="photos")
    forwarded(server)

    publications = history(server, "told:all")
    assert [told(publication["data"]) for publication in publications] == [
        ("ObjectCreated:Put", "d/1.x"), ("ObjectCreated:Copy", "d/2.x"), ("ObjectCreated:Copy", "d/2.x"),
        ("ObjectCreated:CompleteMultipartUpload", "d/3.x"), ("ObjectRemoved:Delete", "early"),
        ("ObjectRemoved:Delete", "d/1.x")]
    assert {p["data"]["Records"][0]["s3"]["configurationId"] for p in publications} == {"rule-0"}
    sequencers = [p["data"]["Records"][0]["s3"]["object"]["sequencer"] for p in publications[1:3]]
    assert sequencers[0] < sequencers[1]
    wait.until(lambda: len(hook.bodies) >= 3, what="the webhook to be told")
    assert [(body["EventName"], body["Key"]) for body in hook.bodies] == [
        ("s3:ObjectCreated:Copy", "photos/d/2.x"), ("s3:ObjectCreated:Copy", "photos/d/2.x"), ("s3:ObjectRemoved:Delete", "photos/d/1.x")]
    wait.until(lambda: server.metrics()['steadfast_webhook_delivered_total{webhook="app"}'] == 3, what="the count")


def test_a_webhook_that_fails_is_asked_until_it_takes_the_event(make_server, tmp_path, hook):
    config = tmp_path / "config.toml"
    config.write_text(f'[events]\nwebhook_timeout = "500ms"\nwebhook_parallel = 1\nwebhooks = [{{ name = "app", url = "{hook.url}", '
                      'authorization = "Bearer of the test" }]\n')
    server = make_server(args=["--config", str(config)])
    s3 = server.s3()
    s3.create_bucket(Bucket="photos")
    notify(s3, "photos", ("arn:minio:sqs:us-east-1:app:webhook", ["s3:ObjectCreated:*"]), element="Queue")
    hang, answers = threading.Event(), [500, 404, "hang"]

    def answer(_):
        how = answers.pop(0) if answers else 200
        if how == "hang":
            hang.wait(20)
            return 500
        return how

    hook.answer = answer
    for number in range(5):
        s3.put_object(Bucket="photos", Key=f"k{number}", Body=b"")
    wait.until(lambda: len(hook.bodies) == 5, what="all events")
    hang.set()
    assert [told(body)[1] for body in hook.bodies] == [f"k{number}" for number in range(5)], "in order"
    assert {headers["Authorization"] for headers in hook.headers} == {"Bearer of the test"}
    assert server.metrics()['steadfast_webhook_failures_total{webhook="app"}'] == 3
    assert "a webhook did not take an event" in server.log() and "takes events again" in server.log()


def test_a_webhook_that_is_away_loses_nothing_by_a_crash_and_the_oldest_at_its_bound(make_server, hook):
    server = make_server(settings={"events.webhooks": f"app={hook.url}", "events.webhook_queue": 20,
                                   "events.webhook_parallel": 1})
    s3 = server.s3()
    s3.create_bucket(Bucket="photos")
    notify(s3, "photos", (WEBHOOK + "app", ["s3:ObjectCreated:*"]))
    hook.answer = lambda _: 503
    for number in range(10):
        s3.put_object(Bucket="photos", Key=f"k{number}", Body=b"")
    forwarded(server)
    wait.until(lambda: hook.asked > 0, what="an attempt")
    server.kill()
    server.start()
    hook.answer = lambda _: 200
    wait.until(lambda: len(hook.bodies) == 10, what="all events")
    assert [told(body)[1] for body in hook.bodies] == [f"k{number}" for number in range(10)]
    # What was taken does not come again, once that is on the disk.
    wait.until(lambda: server.metrics()['steadfast_webhook_delivered_total{webhook="app"}'] == 10, what="the count")
    assert server.stop() == 0
    hook.answer = lambda _: 503
    server.start()
    s3 = server.s3()
    for number in range(10, 60):
        s3.put_object(Bucket="photos", Key=f"k{number}", Body=b"")
    forwarded(server)
    assert server.stop() == 0
    server.start()
    hook.answer = lambda _: 200
    wait.until(lambda: hook.bodies and told(hook.bodies[-1])[1] == "k59", what="the newest")
    assert [told(body)[1] for body in hook.bodies[10:]] == [f"k{number}" for number in range(40, 60)]


def webhook(server, *args):
    """What `steadfast webhook` says."""
    done = server.command("webhook", *args, "--data", str(server.data), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_poison_events_stop_nobody_and_become_dead_letters_that_can_be_posted_again(make_server, hook):
    server = make_server(settings={"events.webhooks": f"app={hook.url}", "events.webhook_tries": 3})
    s3 = server.s3()
    s3.create_bucket(Bucket="photos")
    notify(s3, "photos", (WEBHOOK + "app", ["s3:ObjectCreated:*"]))
    poison = {"fails": 500, "gone": 410, "bad": 422}
    hook.answer = lambda body: poison.get(told(body)[1], 200)
    for key in poison:
        s3.put_object(Bucket="photos", Key=key, Body=b"")
    s3.put_object(Bucket="photos", Key="fails", Body=b"the second time")
    count = 0
    while webhook(server, "list")[0]["dead_letters"] < 3:
        s3.put_object(Bucket="photos", Key=f"good{count}", Body=b"")
        count += 1
        wait.until(lambda: len(hook.bodies) == count, what="a good event, whatever is bad")
    letters = {letter["event"]["Key"]: letter["why"] for letter in webhook(server, "dead", "app")}
    assert {key: why.split()[2] for key, why in letters.items()} == {
        f"photos/{key}": str(status) for key, status in poison.items()}, letters
    assert hook.asked >= count + 3 + 1 + 3, "410 is asked once, the others three times"
    assert 'a webhook does not take an event: it is put among its dead letters' in server.log()
    assert server.metrics()['steadfast_webhook_dead_total{webhook="app"}'] >= 3
    # The second event of the key came behind the first one, which was given up.
    wait.until(lambda: webhook(server, "list")[0]["retrying"] == 1 or webhook(server, "list")[0]["dead_letters"] == 4,
               what="the second event of a key")
    hook.answer = lambda body: 200
    # A crash takes none of them.
    server.kill()
    server.start()
    retried = webhook(server, "retry", "app")["retried"]
    assert retried in (3, 4)
    wanted = {"fails", "gone", "bad"}
    wait.until(lambda: wanted <= {told(body)[1] for body in hook.bodies}, what="the dead letters")
    wait.until(lambda: webhook(server, "list") == [
        {"name": "app", "configured": True, "waiting": 0, "dead_letters": 0, "retrying": 0, "failing": False, "stuck": None}],
        what="an empty queue")


def test_as_many_events_that_fail_as_there_are_requests_at_a_time_hold_up_no_other(make_server, hook):
    server = make_server(settings={"events.webhooks": f"app={hook.url}", "events.webhook_parallel": 2})
    s3 = server.s3()
    s3.create_bucket(Bucket="photos")
    notify(s3, "photos", (WEBHOOK + "app", ["s3:ObjectCreated:*"]))
    hook.answer = lambda body: 500 if told(body)[1].startswith("bad") else 200
    for number in range(4):
        s3.put_object(Bucket="photos", Key=f"bad{number}", Body=b"")
    wait.until(lambda: webhook(server, "list")[0]["retrying"] >= 2, what="events that fail")
    for number in range(9):
        s3.put_object(Bucket="photos", Key=f"good{number}", Body=b"")
    wait.until(lambda: len(hook.bodies) == 9, what="good events, whatever is bad")
    wait.until(lambda: webhook(server, "list")[0]["retrying"] == 4, what="those that fail")


def test_as_many_events_that_fail_as_may_be_begun_become_dead_letters(make_server, hook):
    server = make_server(settings={"events.webhooks": f"app={hook.url}", "events.webhook_parallel": 2, "events.webhook_tries": 3})
    s3 = server.s3()
    s3.create_bucket(Bucket="photos")
    notify(s3, "photos", (WEBHOOK + "app", ["s3:ObjectCreated:*"]))
    hook.answer = lambda body: 500 if told(body)[1].startswith("bad") else 200
    for number in range(16):
        s3.put_object(Bucket="photos", Key=f"bad{number:02}", Body=b"")
    s3.put_object(Bucket="photos", Key="good", Body=b"")
    wait.until(lambda: any(told(body)[1] == "good" for body in hook.bodies), 60, what="the good event behind sixteen bad ones")


def test_a_webhook_that_does_not_answer_makes_no_dead_letters(make_server, hook):
    server = make_server(settings={"events.webhooks": f"app={hook.url}", "events.webhook_tries": 2, "events.webhook_timeout": "300ms"})
    s3 = server.s3()
    s3.create_bucket(Bucket="photos")
    notify(s3, "photos", (WEBHOOK + "app", ["s3:ObjectCreated:*"]))
    hang, unanswered = threading.Event(), iter(range(3))

    def answer(_):
        if next(unanswered, None) is not None:
            hang.wait(20)
        return 200

    hook.answer = answer
    s3.put_object(Bucket="photos", Key="k", Body=b"")
    wait.until(lambda: server.metrics()['steadfast_webhook_delivered_total{webhook="app"}'] == 1, what="the event to be taken")
    hang.set()
    assert server.metrics()['steadfast_webhook_failures_total{webhook="app"}'] == 3
    assert webhook(server, "list")[0]["dead_letters"] == 0


def test_one_event_that_fails_does_not_keep_what_is_behind_it(make_server, hook):
    """Also where more has been taken behind it than is kept in memory."""
    server = make_server(settings={"events.webhooks": f"app={hook.url}", "events.webhook_tries": 6})
    s3 = server.s3()
    s3.create_bucket(Bucket="photos")
    notify(s3, "photos", (WEBHOOK + "app", ["s3:ObjectCreated:*"]))
    hook.answer = lambda body: 500 if told(body)[1] == "bad" else 200
    s3.put_object(Bucket="photos", Key="bad", Body=b"")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: s3.put_object(Bucket="photos", Key=f"good{number}", Body=b""), range(600)))
    wait.until(lambda: len(hook.bodies) == 600, 120, what="the good events")
    wait.until(lambda: webhook(server, "list")[0]["dead_letters"] == 1, what="the bad one among the dead letters")


def test_what_waits_for_a_webhook_is_skipped_and_purged_also_when_it_is_not_configured_any_more(make_server, hook):
    settings = {"events.webhooks": f"app={hook.url},other={hook.url}", "events.webhook_parallel": 2}
    server = make_server(settings=settings)
    s3 = server.s3()
    s3.create_bucket(Bucket="photos")
    notify(s3, "photos", (WEBHOOK + "app", ["s3:ObjectCreated:*"]))
    hook.answer = lambda body: 503
    for number in range(20):
        s3.put_object(Bucket="photos", Key=f"k{number}", Body=b"")
    forwarded(server)

    def listed(name="app"):
        return {queue["name"]: queue for queue in webhook(server, "list")}[name]

    wait.until(lambda: listed()["retrying"] == 16, what="as many to be tried as may be begun")
    assert listed()["stuck"]["key"] == "photos/k0" and listed()["waiting"] == 20 and listed()["failing"]
    assert webhook(server, "skip", "app") == {"skipped": 16}
    wait.until(lambda: listed()["dead_letters"] == 16, what="dead letters")
    assert webhook(server, "purge", "app") == {"purged": 4}
    wait.until(lambda: (listed()["waiting"], listed()["dead_letters"]) == (0, 16), what="an empty queue")
    # It goes on with what comes.
    hook.answer = lambda body: 200
    s3.put_object(Bucket="photos", Key="new", Body=b"")
    wait.until(lambda: [told(body)[1] for body in hook.bodies] == ["new"], what="what came after it")
    hook.answer = lambda body: 503
    s3.put_object(Bucket="photos", Key="left", Body=b"")
    forwarded(server)
    assert server.stop() == 0
    server.settings["events.webhooks"] = f"other={hook.url}"
    server.start()
    found = listed()
    assert (found["configured"], found["waiting"], found["dead_letters"]) == (False, 1, 16)
    done = server.command("webhook", "retry", "app", "--data", str(server.data))
    assert done.returncode == 1 and "there is no webhook" in done.stderr
    done = server.command("webhook", "purge", "nobody", "--data", str(server.data))
    assert done.returncode == 1 and "webhook list" in done.stderr
    assert webhook(server, "purge", "app") == {"purged": 1}
    assert webhook(server, "purge", "app", "--dead") == {"purged": 16}
    assert [queue["name"] for queue in webhook(server, "list")] == ["other"]


def test_webhooks_are_posted_to_in_parallel_and_in_order_for_each_object(make_server, hook):
    server = make_server(settings={"events.webhooks": f"app={hook.url}", "events.webhook_parallel": 4})
    s3 = server.s3()
    s3.create_bucket(Bucket="photos")
    notify(s3, "photos", (WEBHOOK + "app", ["s3:ObjectCreated:*"]))
    lock, under_way, most, both = threading.Lock(), collections.Counter(), [0], threading.Barrier(4, timeout=20)

    def answer(body):
        key = told(body)[1]
        with lock:
            under_way[key] += 1
            assert under_way[key] == 1, "one after another"
            most[0] = max(most[0], sum(under_way.values()))
            first = len(hook.bodies) == 0 and most[0] <= 4 and not both.broken
        try:
            if first:
                # None is answered before four are there.
                both.wait()
        except threading.BrokenBarrierError:
            pass
        with lock:
            under_way[key] -= 1
        return 200

    hook.answer = answer
    for number in range(60):
        s3.put_object(Bucket="photos", Key=f"k{number % 6}", Body=b"x" * number)
    wait.until(lambda: len(hook.bodies) == 60, what="all events")
    assert most[0] == 4
    sizes = collections.defaultdict(list)
    for body in hook.bodies:
        record = body["Records"][0]["s3"]["object"]
        sizes[record["key"]].append(record["size"])
    assert sizes == {f"k{n}": list(range(n, 60, 6)) for n in range(6)}


def test_webhooks_get_signed_requests_and_are_waited_for(make_server, tmp_path, hook, monkeypatch):
    secret = base64.b64encode(b"of the test, kept in a file").decode()
    (tmp_path / "secret").write_text(f"whsec_{secret}\n")
    monkeypatch.setenv("HOOK_AUTHORIZATION", "Bearer of the environment")
    config = tmp_path / "config.toml"
    config.write_text(f'[events]\nwebhooks = [{{ name = "app", url = "{hook.url}", authorization_env = "HOOK_AUTHORIZATION", '
                      f'secret_file = "{tmp_path}/secret", headers = {{ "X-Tenant" = "t 1" }} }}]\n')
    server = make_server(args=["--config", str(config)])
    s3 = server.s3()
    s3.create_bucket(Bucket="photos")
    notify(s3, "photos", (WEBHOOK + "app", ["s3:ObjectCreated:*"]))
    asked = []

    def answer(_):
        asked.append(time.monotonic())
        return 200 if len(asked) > 1 else (503, {"Retry-After": "3"})

    hook.answer = answer
    s3.put_object(Bucket="photos", Key="k", Body=b"")
    wait.until(lambda: len(hook.bodies) == 1, what="the event")
    assert asked[1] - asked[0] >= 2.9, "as long as it asked for"
    (headers,), (body,) = hook.headers, hook.raw
    assert headers["Authorization"] == "Bearer of the environment" and headers["X-Tenant"] == "t 1"
    stamp = headers["webhook-timestamp"]
    assert abs(time.time() - int(stamp)) < 300
    assert headers["webhook-id"] == hook.bodies[0]["Records"][0]["responseElements"]["x-amz-request-id"]
    signed = hmac.digest(b"of the test, kept in a file", f"{headers['webhook-id']}.{stamp}.".encode() + body, "sha256")
    assert headers["webhook-signature"] == "v1," + base64.b64encode(signed).decode()
    shown = server.command("serve", "--config", str(config), "--data", str(server.data), "--print-config").stdout
    assert "HOOK_AUTHORIZATION" in shown and secret not in shown and "Bearer of the environment" not in shown


def test_each_acknowledged_change_is_told_once_and_in_order_through_kill_9(make_server, tmp_path, hook):
    server = live_server(make_server, tmp_path, MIRRORING, settings={"events.webhooks": f"app={hook.url}"})
    s3 = server.s3()
    s3.create_bucket(Bucket="media")
    notify(s3, "media", (WEBHOOK + "app", ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]))
    done = collections.defaultdict(list)

    def write(writer, stop):
        key = f"rooms/{writer % 3}/{writer}"
        number = 0
        while not stop.is_set():
            number += 1
            asked = ("ObjectRemoved:Delete", 0) if number % 4 == 0 else ("ObjectCreated:Put", number + 1000 * writer)
            try:
                if number % 4 == 0:
                    s3.delete_object(Bucket="media", Key=key)
                else:
                    s3.put_object(Bucket="media", Key=key, Body=b"x" * asked[1])
            except Exception:  # pylint: disable=broad-except
                # It may have happened, or not.
                done[key].append((asked, False))
                return
            done[key].append((asked, True))

    for round_ in range(4):
        stop = threading.Event()
        threads = [threading.Thread(target=write, args=(round_ * 6 + n, stop)) for n in range(6)]
        before = sum(map(len, done.values()))
        for thread in threads:
            thread.start()
        wait.until(lambda b=before: sum(map(len, done.values())) > b + 150, what="some writes")
        server.kill()
        stop.set()
        for thread in threads:
            thread.join()
        again(server)
        s3 = server.s3()
    forwarded(server)

    def by_key(records):
        found = collections.defaultdict(list)
        for record in records:
            found[record["s3"]["object"]["key"]].append((record["eventName"], record["s3"]["object"].get("size", 0)))
        return found

    records = [p["data"]["Records"][0] for p in history(server, "files:/")]
    ids = [record["responseElements"]["x-amz-request-id"] for record in records]
    assert len(set(ids)) == len(ids), "each once"
    channel = by_key(records)
    rooms = by_key(p["data"]["Records"][0] for room in range(3) for p in history(server, f"files:/{room}"))
    count = len(ids)
    wait.until(lambda: len({b["Records"][0]["responseElements"]["x-amz-request-id"] for b in hook.bodies}) >= count,
               what="the webhook to be told")
    posted = {}
    for body in hook.bodies:
        # Those of a page may come again after a crash, in their order.
        posted.setdefault(body["Records"][0]["responseElements"]["x-amz-request-id"], body["Records"][0])
    assert by_key(posted.values()) == channel == rooms
    for key, changes in done.items():
        certain = [change for change, answered in changes if answered]
        # The last may not have been answered, and have happened all the same.
        assert channel[key] in (certain, [change for change, _ in changes]), key
        there = channel[key][-1][0] == "ObjectCreated:Put"
        keys = [found["Key"] for found in s3.list_objects_v2(Bucket="media", Prefix=key).get("Contents", [])]
        assert (key in keys) == there


def test_what_cannot_be_told_is_refused_with_a_reason(make_server, tmp_path, hook):
    server = live_server(make_server, tmp_path, MIRRORING, settings={"events.webhooks": f"app={hook.url}"})
    s3 = server.s3()
    s3.create_bucket(Bucket="photos")
    everything = ["s3:ObjectCreated:*"]
    for rule, says in [
        ((CHANNEL + "nowhere:x", everything), "unknown channel"),
        ((CHANNEL + "passing:x", everything), "history_size"),
        ((CHANNEL, everything), "bad request"),
        ((WEBHOOK + "other", everything), "there are: app"),
        (("arn:aws:sns:us-east-1:123456789012:topic", everything), "arn:steadfast:channel:::NAME"),
        ((WEBHOOK + "app", ["s3:ObjectRestore:*"]), "s3:ObjectRestore:*"),
        ((WEBHOOK + "app", everything, "x" * 1025), "1024"),
    ]:
        with pytest.raises(ClientError) as refused:
            notify(s3, "photos", rule)
        assert refused.value.response["Error"]["Code"] == "InvalidArgument"
        assert says in refused.value.response["Error"]["Message"], refused.value
    with pytest.raises(ClientError, match="NoSuchBucket"):
        notify(s3, "nowhere", (WEBHOOK + "app", everything))
    assert "TopicConfigurations" not in s3.get_bucket_notification_configuration(Bucket="photos")
    # Channels of the server's own are nobody's to read or to write.
    for method, params in [("history", {"limit": 10}), ("publish", {"data": {}}), ("presence", {})]:
        assert api(server, method, channel="\0webhook/app", **params)["error"]["code"] == 107


def test_writers_wait_while_events_cannot_be_forwarded(make_server, tmp_path):
    config = {**MIRRORING, "channel": {"namespaces": [{"name": "told", **KEPT}]}}
    server = live_server(make_server, tmp_path, config, settings={"events.waiting": 5, "store.write_wait": "300ms"})
    s3 = server.s3()
    s3.create_bucket(Bucket="photos")
    notify(s3, "photos", (CHANNEL + "told:x", ["s3:ObjectCreated:*"]))
    for number in range(50):
        s3.put_object(Bucket="photos", Key=f"k{number}", Body=b"")
    forwarded(server)
    assert len(history(server, "told:x")) == 50, "forwarding keeps up"
    # A namespace that is gone takes nothing with it: its events are left out, and that is said.
    server.stop()
    (tmp_path / "live.json").write_text(json.dumps({**config, "channel": {}}))
    again(server)
    s3 = server.s3()
    for number in range(20):
        s3.put_object(Bucket="photos", Key=f"k{number}", Body=b"")
    forwarded(server)
    assert "told:x: unknown channel" in server.log()


def test_a_target_on_a_missing_disk_holds_up_no_other(make_server, tmp_path, hook):
    names = [f"hook{n}" for n in range(6)]
    server = live_server(make_server, tmp_path, MIRRORING, pool_size="512 MiB", extent_size="8 MiB", settings={
        "data.disks": "d0,d1", "store.cache": "0 B", "store.write_wait": "300ms",
        "events.webhooks": ",".join(f"{name}={hook.url}/{name}" for name in names)})
    s3 = server.s3()
    s3.create_bucket(Bucket="photos")
    channels = [f"told:c{n}" for n in range(6)]
    notify(s3, "photos", *[(CHANNEL + channel, ["s3:ObjectCreated:*"]) for channel in channels],
           *[(WEBHOOK + name, ["s3:ObjectCreated:*"]) for name in names])
    assert server.stop() == 0
    (server.data / "d0").rename(tmp_path / "away")
    again(server)
    stored = [f"k{n}" for n in range(60) if server.request("PUT", f"/photos/k{n}", b"")[0] == 200]
    assert 10 < len(stored) < 50

    def taken():
        return collections.Counter(body["Records"][0]["s3"]["configurationId"] for body in hook.bodies)

    def reached():
        found = [api(server, "history", channel=channel, limit=100) for channel in channels]
        return sum(len(said["result"]["publications"]) == len(stored) for said in found if "result" in said)

    wait.until(lambda: len(stored) in taken().values() and reached(), what="those that are there to be told of all")
    assert reached() < len(channels), "some are on the missing disk"
    assert waiting(server) > 0, "their events are kept"
    assert server.stop() == 0
    (tmp_path / "away").rename(server.data / "d0")
    again(server)
    forwarded(server)
    assert reached() == len(channels)
    wait.until(lambda: len(taken()) == len(names) and min(taken().values()) >= len(stored), what="every webhook")


def test_a_full_pool_of_listened_objects_is_emptied_again(make_server, tmp_path):
    server = live_server(make_server, tmp_path, MIRRORING, pool_size="64 MiB", extent_size="2 MiB",
                         settings={"store.write_wait": "2s", "events.waiting": 50})
    s3 = server.s3()
    s3.create_bucket(Bucket="media")
    keys = []
    with pytest.raises(ClientError, match="InsufficientStorage"):
        for number in range(2000):
            s3.put_object(Bucket="media", Key=f"rooms/1/{number}", Body=b"x" * 100_000)
            keys.append(f"rooms/1/{number}")
    assert len(keys) > 300
    for key in keys:
        s3.delete_object(Bucket="media", Key=key)
    forwarded(server)
    # Whatever was refused was not told.
    assert [told(p["data"]) for p in history(server, "files:/1")] == [
        *[("ObjectCreated:Put", key) for key in keys], *[("ObjectRemoved:Delete", key) for key in keys]]
    wait.until(lambda: put_again(s3), what="room again")


def put_again(s3):
    try:
        return s3.put_object(Bucket="media", Key="rooms/1/again", Body=b"x" * 100_000)
    except ClientError:
        return None
