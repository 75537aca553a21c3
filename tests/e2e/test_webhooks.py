"""Webhooks: retries, dead letters, order, limits and signatures."""

import base64
import collections
import hmac
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from test_users import client, command

from harness import wait
from harness.events import WEBHOOK, event_of, forwarded, notify, webhook


def test_a_failing_webhook_is_retried_until_it_accepts(make_server, tmp_path, hook):
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
    assert [event_of(body)[1] for body in hook.bodies] == [f"k{number}" for number in range(5)], "in order"
    assert {headers["Authorization"] for headers in hook.headers} == {"Bearer of the test"}
    assert server.metrics()['steadfast_webhook_failures_total{webhook="app"}'] == 3
    assert "a webhook did not accept an event" in server.log() and "accepts events again" in server.log()


def test_an_event_names_the_client(make_server, hook):
    server = make_server(settings={"events.webhooks": f"app={hook.url}"})
    s3 = server.s3()
    s3.create_bucket(Bucket="photos")
    notify(s3, "photos", (WEBHOOK + "app", ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]))
    made = command(server, "user", "create", "app", "--grant", "read-write:photos")
    app = client(server, made["key"])
    app.put_object(Bucket="photos", Key="a", Body=b"x")
    s3.copy_object(Bucket="photos", Key="b", CopySource="photos/a")
    app.delete_objects(Bucket="photos", Delete={"Objects": [{"Key": "a"}]})
    wait.until(lambda: len(hook.bodies) == 3, what="all events")
    records = {body["EventName"]: body["Records"][0] for body in hook.bodies}
    assert {name.rpartition(":")[2]: record["userIdentity"]["principalId"] for name, record in records.items()} == {
        "Put": "app", "Copy": "root", "Delete": "app"}
    assert {record["requestParameters"]["sourceIPAddress"] for record in records.values()} == {"127.0.0.1"}


def test_an_absent_webhook_loses_only_the_oldest_events_at_its_bound(make_server, hook):
    server = make_server(settings={"events.webhooks": f"app={hook.url}", "events.webhook_queue": 20,
                                   "events.webhook_parallel": 1})
    s3 = server.s3()
    s3.create_bucket(Bucket="photos")
    notify(s3, "photos", (WEBHOOK + "app", ["s3:ObjectCreated:*"]))
    hook.answer = lambda _: 503
    for number in range(10):
        s3.put_object(Bucket="photos", Key=f"k{number}", Body=b"")
    forwarded(server)
    wait.until(lambda: hook.attempts > 0, what="an attempt")
    server.kill()
    server.start()
    hook.answer = lambda _: 200
    wait.until(lambda: len(hook.bodies) == 10, what="all events")
    assert [event_of(body)[1] for body in hook.bodies] == [f"k{number}" for number in range(10)]
    # Delivered events are not sent again, once their delivery is on the disk.
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
    wait.until(lambda: hook.bodies and event_of(hook.bodies[-1])[1] == "k59", what="the newest")
    assert [event_of(body)[1] for body in hook.bodies[10:]] == [f"k{number}" for number in range(40, 60)]


def test_poison_events_become_dead_letters_that_can_be_redelivered(make_server, hook):
    server = make_server(settings={"events.webhooks": f"app={hook.url}", "events.webhook_tries": 3})
    s3 = server.s3()
    s3.create_bucket(Bucket="photos")
    notify(s3, "photos", (WEBHOOK + "app", ["s3:ObjectCreated:*"]))
    poison = {"fails": 500, "gone": 410, "bad": 422}
    hook.answer = lambda body: poison.get(event_of(body)[1], 200)
    for key in poison:
        s3.put_object(Bucket="photos", Key=key, Body=b"")
    s3.put_object(Bucket="photos", Key="fails", Body=b"the second time")
    count = 0
    while webhook(server, "list")[0]["dead_letters"] < 3:
        s3.put_object(Bucket="photos", Key=f"good{count}", Body=b"")
        count += 1
        wait.until(lambda: len(hook.bodies) == count, what="the good event despite the bad ones")
    letters = {letter["event"]["Key"]: letter["why"] for letter in webhook(server, "dead", "app")}
    assert {key: why.split()[2] for key, why in letters.items()} == {
        f"photos/{key}": str(status) for key, status in poison.items()}, letters
    assert hook.attempts >= count + 3 + 1 + 3, "410 is tried once, the others three times"
    assert 'a webhook does not accept an event: it becomes a dead letter' in server.log()
    assert server.metrics()['steadfast_webhook_dead_total{webhook="app"}'] >= 3
    # The second event of the key followed the first one, which became a dead letter.
    wait.until(lambda: webhook(server, "list")[0]["retrying"] == 1 or webhook(server, "list")[0]["dead_letters"] == 4,
               what="the second event of a key")
    hook.answer = lambda body: 200
    # They survive a crash.
    server.kill()
    server.start()
    retried = webhook(server, "retry", "app")["retried"]
    assert retried in (3, 4)
    wanted = {"fails", "gone", "bad"}
    wait.until(lambda: wanted <= {event_of(body)[1] for body in hook.bodies}, what="the dead letters")
    wait.until(lambda: webhook(server, "list") == [
        {"name": "app", "configured": True, "waiting": 0, "dead_letters": 0, "retrying": 0, "failing": False, "stuck": None}],
        what="an empty queue")


def test_failing_events_at_the_request_limit_do_not_block_others(make_server, hook):
    server = make_server(settings={"events.webhooks": f"app={hook.url}", "events.webhook_parallel": 2})
    s3 = server.s3()
    s3.create_bucket(Bucket="photos")
    notify(s3, "photos", (WEBHOOK + "app", ["s3:ObjectCreated:*"]))
    hook.answer = lambda body: 500 if event_of(body)[1].startswith("bad") else 200
    for number in range(4):
        s3.put_object(Bucket="photos", Key=f"bad{number}", Body=b"")
    wait.until(lambda: webhook(server, "list")[0]["retrying"] >= 2, what="failing events")
    for number in range(9):
        s3.put_object(Bucket="photos", Key=f"good{number}", Body=b"")
    wait.until(lambda: len(hook.bodies) == 9, what="the good events despite the bad ones")
    wait.until(lambda: webhook(server, "list")[0]["retrying"] == 4, what="the failing events")


def test_failing_events_at_the_limit_in_progress_become_dead_letters(make_server, hook):
    server = make_server(settings={"events.webhooks": f"app={hook.url}", "events.webhook_parallel": 2, "events.webhook_tries": 3})
    s3 = server.s3()
    s3.create_bucket(Bucket="photos")
    notify(s3, "photos", (WEBHOOK + "app", ["s3:ObjectCreated:*"]))
    hook.answer = lambda body: 500 if event_of(body)[1].startswith("bad") else 200
    for number in range(16):
        s3.put_object(Bucket="photos", Key=f"bad{number:02}", Body=b"")
    s3.put_object(Bucket="photos", Key="good", Body=b"")
    wait.until(lambda: any(event_of(body)[1] == "good" for body in hook.bodies), 60, what="the good event behind sixteen bad ones")


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
    wait.until(lambda: server.metrics()['steadfast_webhook_delivered_total{webhook="app"}'] == 1, what="the delivery of the event")
    hang.set()
    assert server.metrics()['steadfast_webhook_failures_total{webhook="app"}'] == 3
    assert webhook(server, "list")[0]["dead_letters"] == 0


def test_one_failing_event_does_not_block_later_ones(make_server, hook):
    """Also when more events are queued behind it than memory keeps."""
    server = make_server(settings={"events.webhooks": f"app={hook.url}", "events.webhook_tries": 6})
    s3 = server.s3()
    s3.create_bucket(Bucket="photos")
    notify(s3, "photos", (WEBHOOK + "app", ["s3:ObjectCreated:*"]))
    hook.answer = lambda body: 500 if event_of(body)[1] == "bad" else 200
    s3.put_object(Bucket="photos", Key="bad", Body=b"")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: s3.put_object(Bucket="photos", Key=f"good{number}", Body=b""), range(600)))
    wait.until(lambda: len(hook.bodies) == 600, 120, what="the good events")
    wait.until(lambda: webhook(server, "list")[0]["dead_letters"] == 1, what="the bad one among the dead letters")


def test_the_queue_of_a_removed_webhook_is_skipped_and_purged(make_server, hook):
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

    wait.until(lambda: listed()["retrying"] == 16, what="the limit of events in progress")
    assert listed()["stuck"]["key"] == "photos/k0" and listed()["waiting"] == 20 and listed()["failing"]
    assert webhook(server, "skip", "app") == {"skipped": 16}
    wait.until(lambda: listed()["dead_letters"] == 16, what="dead letters")
    assert webhook(server, "purge", "app") == {"purged": 4}
    wait.until(lambda: (listed()["waiting"], listed()["dead_letters"]) == (0, 16), what="an empty queue")
    # Delivery continues with later events.
    hook.answer = lambda body: 200
    s3.put_object(Bucket="photos", Key="new", Body=b"")
    wait.until(lambda: [event_of(body)[1] for body in hook.bodies] == ["new"], what="the events after it")
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
    done = server.command("webhook", "purge", "unknown", "--data", str(server.data))
    assert done.returncode == 1 and "webhook list" in done.stderr
    assert webhook(server, "purge", "app") == {"purged": 1}
    assert webhook(server, "purge", "app", "--dead") == {"purged": 16}
    assert [queue["name"] for queue in webhook(server, "list")] == ["other"]


def test_webhook_requests_are_parallel_and_ordered_for_each_object(make_server, hook):
    server = make_server(settings={"events.webhooks": f"app={hook.url}", "events.webhook_parallel": 4})
    s3 = server.s3()
    s3.create_bucket(Bucket="photos")
    notify(s3, "photos", (WEBHOOK + "app", ["s3:ObjectCreated:*"]))
    lock, under_way, most, both = threading.Lock(), collections.Counter(), [0], threading.Barrier(4, timeout=20)

    def answer(body):
        key = event_of(body)[1]
        with lock:
            under_way[key] += 1
            assert under_way[key] == 1, "one after another"
            most[0] = max(most[0], sum(under_way.values()))
            first = len(hook.bodies) == 0 and most[0] <= 4 and not both.broken
        try:
            if first:
                # The webhook answers no request before four are open.
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


def test_webhook_requests_are_signed_and_honour_retry_after(make_server, tmp_path, hook, monkeypatch):
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
    times = []

    def answer(_):
        times.append(time.monotonic())
        return 200 if len(times) > 1 else (503, {"Retry-After": "3"})

    hook.answer = answer
    s3.put_object(Bucket="photos", Key="k", Body=b"")
    wait.until(lambda: len(hook.bodies) == 1, what="the event")
    assert times[1] - times[0] >= 2.9, "the delay in Retry-After"
    (headers,), (body,) = hook.headers, hook.raw
    assert headers["Authorization"] == "Bearer of the environment" and headers["X-Tenant"] == "t 1"
    stamp = headers["webhook-timestamp"]
    assert abs(time.time() - int(stamp)) < 300
    assert headers["webhook-id"] == hook.bodies[0]["Records"][0]["responseElements"]["x-amz-request-id"]
    signed = hmac.digest(b"of the test, kept in a file", f"{headers['webhook-id']}.{stamp}.".encode() + body, "sha256")
    assert headers["webhook-signature"] == "v1," + base64.b64encode(signed).decode()
    shown = server.command("serve", "--config", str(config), "--data", str(server.data), "--print-config").stdout
    assert "HOOK_AUTHORIZATION" in shown and secret not in shown and "Bearer of the environment" not in shown


def test_a_webhook_gets_records_in_the_form_of_minio(make_server, hook):
    hooks = f'[{{ name = "app", url = "{hook.url}", format = "minio" }}]'
    server = make_server(settings={"events.webhooks": hooks})
    s3 = server.s3()
    s3.create_bucket(Bucket="photos")
    notify(s3, "photos", (WEBHOOK + "app", ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]))
    s3.put_object(Bucket="photos", Key="a.png", Body=b"1", ContentType="image/png", Metadata={"taken-by": "ann"})
    wait.until(lambda: len(hook.bodies) >= 1, what="the event")
    s3.delete_object(Bucket="photos", Key="a.png")
    wait.until(lambda: len(hook.bodies) >= 2, what="the second event")
    created, removed = (body["Records"][0] for body in hook.bodies)
    assert (created["eventName"], created["eventSource"]) == ("s3:ObjectCreated:Put", "minio:s3")
    described = created["s3"]["object"]
    assert described["contentType"] == "image/png"
    assert described["userMetadata"] == {"content-type": "image/png", "X-Amz-Meta-Taken-By": "ann"}
    assert removed["eventName"] == "s3:ObjectRemoved:Delete" and "contentType" not in removed["s3"]["object"]
