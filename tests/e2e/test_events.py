"""Events of objects: bucket notifications to channels and webhooks, and channels that mirror
buckets."""

import asyncio
import collections
import json
import threading

import pytest
from botocore.exceptions import ClientError

from harness import wait
from harness.events import CHANNEL, KEPT, MIRRORING, WEBHOOK, event_of, forwarded, history, notify, waiting
from harness.live import api, live_server, restart, token
from harness.session import connecting, next_of
from test_live import both
from test_live_proxies import subscribing


@both
def test_channels_mirror_a_bucket_for_a_real_client(make_server, tmp_path, protobuf):
    server = live_server(make_server, tmp_path, MIRRORING)
    s3 = server.s3()
    s3.create_bucket(Bucket="media")

    async def run():
        client, _ = await connecting(server, protobuf, token=token("ann"))
        _, all_rooms = await subscribing(client, "files:/")
        _, room = await subscribing(client, "files:/42")
        for received in (all_rooms, room):
            await next_of(received.subscribed)
        put = await asyncio.to_thread(s3.put_object, Bucket="media", Key="rooms/42/a cat & ü.png", Body=b"x" * 300_000)
        await asyncio.to_thread(s3.put_object, Bucket="media", Key="elsewhere", Body=b"")
        await asyncio.to_thread(s3.put_object, Bucket="media", Key="rooms/7/b", Body=b"")
        await asyncio.to_thread(s3.delete_object, Bucket="media", Key="rooms/42/a cat & ü.png")
        (record,) = (await next_of(room.publications))["Records"]
        assert record["eventSource"] == "aws:s3" and record["s3"]["bucket"]["name"] == "media"
        assert record["s3"]["object"]["key"] == "rooms/42/a+cat+%26+%C3%BC.png"
        assert record["s3"]["object"]["size"] == 300_000 and f'"{record["s3"]["object"]["eTag"]}"' == put["ETag"]
        assert event_of(await next_of(room.publications)) == ("ObjectRemoved:Delete", "rooms/42/a cat & ü.png")
        received = [event_of(await next_of(all_rooms.publications)) for _ in range(3)]
        assert received == [("ObjectCreated:Put", "rooms/42/a cat & ü.png"), ("ObjectCreated:Put", "rooms/7/b"),
                         ("ObjectRemoved:Delete", "rooms/42/a cat & ü.png")]
        assert room.publications.empty() and all_rooms.publications.empty()
        await client.disconnect()

    asyncio.run(run())
    forwarded(server)
    first = api(server, "history", channel="files:/42", limit=1)["result"]["publications"][0]
    assert first["tags"]["event"] == "ObjectCreated:Put"


def test_every_kind_of_change_reaches_a_channel_and_a_webhook(make_server, tmp_path, hook):
    server = live_server(make_server, tmp_path, MIRRORING,
                         settings={"events.webhooks": f"app={hook.url}", "events.webhook_parallel": 1})
    s3 = server.s3()
    s3.create_bucket(Bucket="photos")
    s3.put_object(Bucket="photos", Key="early", Body=b"")
    given = notify(s3, "photos", (CHANNEL + "changes:all", ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]),
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
    # The configuration at the time of the change applies.
    s3.put_bucket_notification_configuration(Bucket="photos", NotificationConfiguration={})
    s3.put_object(Bucket="photos", Key="d/late.x", Body=b"")
    assert "TopicConfigurations" not in s3.get_bucket_notification_configuration(Bucket="photos")
    forwarded(server)

    publications = history(server, "changes:all")
    assert [event_of(publication["data"]) for publication in publications] == [
        ("ObjectCreated:Put", "d/1.x"), ("ObjectCreated:Copy", "d/2.x"), ("ObjectCreated:Copy", "d/2.x"),
        ("ObjectCreated:CompleteMultipartUpload", "d/3.x"), ("ObjectRemoved:Delete", "early"),
        ("ObjectRemoved:Delete", "d/1.x")]
    assert {p["data"]["Records"][0]["s3"]["configurationId"] for p in publications} == {"rule-0"}
    sequencers = [p["data"]["Records"][0]["s3"]["object"]["sequencer"] for p in publications[1:3]]
    assert sequencers[0] < sequencers[1]
    wait.until(lambda: len(hook.bodies) >= 3, what="the webhook requests")
    assert [(body["EventName"], body["Key"]) for body in hook.bodies] == [
        ("s3:ObjectCreated:Copy", "photos/d/2.x"), ("s3:ObjectCreated:Copy", "photos/d/2.x"), ("s3:ObjectRemoved:Delete", "photos/d/1.x")]
    wait.until(lambda: server.metrics()['steadfast_webhook_delivered_total{webhook="app"}'] == 3, what="the count")


def test_events_are_complete_and_ordered_through_kill_9(make_server, tmp_path, hook):
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
            change = ("ObjectRemoved:Delete", 0) if number % 4 == 0 else ("ObjectCreated:Put", number + 1000 * writer)
            try:
                if number % 4 == 0:
                    s3.delete_object(Bucket="media", Key=key)
                else:
                    s3.put_object(Bucket="media", Key=key, Body=b"x" * change[1])
            except Exception:  # pylint: disable=broad-except
                # The outcome is unknown.
                done[key].append((change, False))
                return
            done[key].append((change, True))

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
        restart(server)
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
               what="the webhook requests")
    posted = {}
    for body in hook.bodies:
        # Events of one page may be sent again after a crash, in their order.
        posted.setdefault(body["Records"][0]["responseElements"]["x-amz-request-id"], body["Records"][0])
    assert by_key(posted.values()) == channel == rooms
    for key, changes in done.items():
        certain = [change for change, answered in changes if answered]
        # The last write may have taken effect without an answer.
        assert channel[key] in (certain, [change for change, _ in changes]), key
        there = channel[key][-1][0] == "ObjectCreated:Put"
        keys = [found["Key"] for found in s3.list_objects_v2(Bucket="media", Prefix=key).get("Contents", [])]
        assert (key in keys) == there


def test_invalid_notification_rules_are_refused_with_a_reason(make_server, tmp_path, hook):
    server = live_server(make_server, tmp_path, MIRRORING, settings={"events.webhooks": f"app={hook.url}"})
    s3 = server.s3()
    s3.create_bucket(Bucket="photos")
    everything = ["s3:ObjectCreated:*"]
    for rule, reason in [
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
        assert reason in refused.value.response["Error"]["Message"], refused.value
    with pytest.raises(ClientError, match="NoSuchBucket"):
        notify(s3, "nowhere", (WEBHOOK + "app", everything))
    assert "TopicConfigurations" not in s3.get_bucket_notification_configuration(Bucket="photos")
    # No client may read or write the server's own channels.
    for method, params in [("history", {"limit": 10}), ("publish", {"data": {}}), ("presence", {})]:
        assert api(server, method, channel="\0webhook/app", **params)["error"]["code"] == 107


def test_writers_wait_while_events_cannot_be_forwarded(make_server, tmp_path):
    config = {**MIRRORING, "channel": {"namespaces": [{"name": "changes", **KEPT}]}}
    server = live_server(make_server, tmp_path, config, settings={"events.waiting": 5, "store.write_wait": "5s"})
    s3 = server.s3()
    s3.create_bucket(Bucket="photos")
    notify(s3, "photos", (CHANNEL + "changes:x", ["s3:ObjectCreated:*"]))
    for number in range(50):
        s3.put_object(Bucket="photos", Key=f"k{number}", Body=b"")
    forwarded(server)
    assert len(history(server, "changes:x")) == 50, "forwarding keeps up"
    # A removed namespace does not hold up others: the server drops its events, and logs that.
    server.stop()
    (tmp_path / "live.json").write_text(json.dumps({**config, "channel": {}}))
    restart(server)
    s3 = server.s3()
    for number in range(20):
        s3.put_object(Bucket="photos", Key=f"k{number}", Body=b"")
    forwarded(server)
    assert "changes:x: unknown channel" in server.log()


def test_a_target_on_a_missing_disk_does_not_block_others(make_server, tmp_path, hook):
    names = [f"hook{n}" for n in range(6)]
    server = live_server(make_server, tmp_path, MIRRORING, pool_size="512 MiB", extent_size="8 MiB", settings={
        "data.disks": "d0,d1", "store.cache": "0 B", "store.write_wait": "300ms",
        "events.webhooks": ",".join(f"{name}={hook.url}/{name}" for name in names)})
    # A busy machine may need longer for a flush than the short `write_wait`.
    s3 = server.s3(attempts=10)
    s3.create_bucket(Bucket="photos")
    channels = [f"changes:c{n}" for n in range(6)]
    notify(s3, "photos", *[(CHANNEL + channel, ["s3:ObjectCreated:*"]) for channel in channels],
           *[(WEBHOOK + name, ["s3:ObjectCreated:*"]) for name in names])
    assert server.stop() == 0
    (server.data / "d0").rename(tmp_path / "away")
    restart(server)
    stored = [f"k{n}" for n in range(60) if server.request("PUT", f"/photos/k{n}", b"")[0] == 200]
    assert 10 < len(stored) < 50

    def taken():
        return collections.Counter(body["Records"][0]["s3"]["configurationId"] for body in hook.bodies)

    def reached():
        found = [api(server, "history", channel=channel, limit=100) for channel in channels]
        return sum(len(reply["result"]["publications"]) == len(stored) for reply in found if "result" in reply)

    wait.until(lambda: len(stored) in taken().values() and reached(), what="the targets on present disks")
    assert reached() < len(channels), "some are on the missing disk"
    assert waiting(server) > 0, "their events are kept"
    assert server.stop() == 0
    (tmp_path / "away").rename(server.data / "d0")
    restart(server)
    forwarded(server)
    assert reached() == len(channels)
    wait.until(lambda: len(taken()) == len(names) and min(taken().values()) >= len(stored), what="every webhook")


def test_a_full_pool_with_notifications_can_be_emptied(make_server, tmp_path):
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
    # A refused write causes no event.
    assert [event_of(p["data"]) for p in history(server, "files:/1")] == [
        *[("ObjectCreated:Put", key) for key in keys], *[("ObjectRemoved:Delete", key) for key in keys]]
    wait.until(lambda: retry_put(s3), what="free space")


def retry_put(s3):
    try:
        return s3.put_object(Bucket="media", Key="rooms/1/again", Body=b"x" * 100_000)
    except ClientError:
        return None
