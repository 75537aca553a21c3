"""A state of an archive is served read-only, straight from the archive."""

import json
import os
import pathlib
import shutil
import time

import pytest
from botocore.exceptions import ClientError

from harness import load, sign, wait
from harness.live import api, live_server
from test_archive import BUCKET, archive_settings, caught_up, fill, names, store  # noqa: F401
from test_tools import BIN
from test_tools import run as aws
from test_restore import POOL, archive_of, gateway, keys  # noqa: F401
from test_users import command


def point(make_server, server, *time_of, name="point", **settings):
    """A server of a state of another server's archive, with the same live port's configuration. Its
    index is in a directory beside its log."""
    one = make_server(name, start=False, settings={**server.settings, **settings})
    scratch = pathlib.Path(f"{one.data}.tmp")
    scratch.mkdir(parents=True)
    one.args = [*server.args, "--at", server.settings["archive.to"], *time_of]
    environment = one.environment
    one.environment = lambda: {**environment(), "TMPDIR": str(scratch)}
    one.scratch = scratch
    return one


def with_segment(server):
    """Writes more than fits into a head, so that a segment has what was written before. A time,
    in whole seconds, of which the last state has it."""
    server.s3().create_bucket(Bucket="filler")
    for n in range(240):
        server.s3().put_object(Bucket="filler", Key=f"k{n}", Body=load.content(n, 1000))
        if n % 80 == 0:
            caught_up(server)
    at = caught_up(server)["looked_ms"] // 1000 * 1000 + 1000
    wait.until(lambda: time.time() * 1000 > at, what="the next second")
    return at


def utc(ms):
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ms / 1000))


def contents(server):
    return {key: server.s3().get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in keys(server)}


def history(server, channel="news"):
    answer = api(server, "history", channel=channel, limit=1000)["result"]
    return [publication["data"] for publication in answer["publications"]], answer["offset"], answer["epoch"]


def refusal(call, **arguments):
    with pytest.raises(ClientError) as refused:
        call(**arguments)
    return refused.value.response["ResponseMetadata"]["HTTPStatusCode"], refused.value.response["Error"]["Code"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["steadfast", "file", "versitygw"])
def test_an_earlier_state_is_served_and_the_newest(make_server, request, tmp_path, kind):
    server = live_server(make_server, tmp_path, settings=archive_of(kind, request, tmp_path), **POOL)
    s3 = server.s3()
    s3.create_bucket(Bucket=BUCKET)
    fill(server, 40)
    s3.put_object(Bucket=BUCKET, Key="large", Body=load.content(5, 7_000_000))
    upload = s3.create_multipart_upload(Bucket=BUCKET, Key="parts")["UploadId"]
    part = s3.upload_part(Bucket=BUCKET, Key="parts", UploadId=upload, PartNumber=1, Body=load.content(7, 5 << 20))
    s3.complete_multipart_upload(Bucket=BUCKET, Key="parts", UploadId=upload,
                                 MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]})
    s3.delete_object(Bucket=BUCKET, Key="k3")
    [api(server, "publish", channel="news", data=n) for n in range(20)]
    first = contents(server), history(server)
    at = with_segment(server)
    fill(server, 20, start=30)
    for n in range(30):
        s3.delete_object(Bucket=BUCKET, Key=f"k{n}")
    s3.delete_object(Bucket=BUCKET, Key="large")
    [api(server, "publish", channel="news", data=n) for n in range(20, 30)]
    caught_up(server)
    newest = contents(server), history(server)

    early = point(make_server, server, utc(at)).start()
    assert (contents(early), history(early)) == first
    status = json.loads(early.admin("/status")[1])
    assert status["ready"] and 0 <= at - status["point"]["time_ms"] < 10_000, (at, status["point"])
    late = point(make_server, server, name="newest").start()
    assert (contents(late), history(late)) == newest

    # Reads of parts of an object, and nothing that writes.
    one = early.s3()
    ranged = one.get_object(Bucket=BUCKET, Key="large", Range="bytes=3000000-3000009")["Body"].read()
    assert ranged == load.content(5, 7_000_000)[3_000_000:3_000_010]
    for call, arguments in [
        (one.put_object, {"Key": "k1", "Body": b"x"}), (one.put_object, {"Key": "new", "Body": load.content(1, 3_000_000)}),
        (one.delete_object, {"Key": "k1"}), (one.create_multipart_upload, {"Key": "k1"}),
        (one.copy_object, {"Key": "new", "CopySource": f"{BUCKET}/k1"}), (one.create_bucket, {"Bucket": "another"}),
        (one.delete_bucket, {}), (one.put_object_tagging, {"Key": "k1", "Tagging": {"TagSet": [{"Key": "a", "Value": "b"}]}}),
    ]:
        found = refusal(call, **{"Bucket": BUCKET, **arguments})
        # A bucket with objects cannot be deleted anyway.
        assert found in [(403, "AccessDenied"), (409, "BucketNotEmpty")], (call, found)
    assert api(early, "publish", channel="news", data="no")["error"]["code"] == 108
    assert (contents(early), history(early)) == first

    # The server that writes the archive knows nothing of it, and the index is gone afterwards.
    fill(server, 3, start=100)
    caught_up(server)
    assert early.stop() == 0 and late.stop() == 0
    assert list(early.scratch.iterdir()) == list(late.scratch.iterdir()) == []
    assert not early.data.exists()


def test_it_fetches_only_what_is_read_and_writes_nothing(make_server, store):  # noqa: F811
    server = make_server(settings=archive_settings(store), **POOL)
    server.s3().create_bucket(Bucket=BUCKET)
    for n in range(8):
        server.s3().put_object(Bucket=BUCKET, Key=f"k{n}", Body=load.content(n, 16_000_000))
    caught_up(server)
    server.kill()
    before = names(store)

    def sent():
        rows = [row for row in store.admin("/metrics")[1].splitlines() if row.startswith("steadfast_s3_sent_bytes")]
        return sum(float(row.rsplit(" ", 1)[1]) for row in rows)

    begun = sent()
    one = point(make_server, server).start()
    opened = sent()
    assert opened - begun < 4_000_000, opened - begun
    assert one.s3().get_object(Bucket=BUCKET, Key="k5")["Body"].read() == load.content(5, 16_000_000)
    assert sent() - opened < 18_000_000, sent() - opened
    assert keys(one).keys() == {f"k{n}" for n in range(8)}
    one.stop()
    assert names(store) == before
    # The server continues: nobody has taken its archive.
    server.start()
    caught_up(server)


def test_buckets_come_back_with_any_tool(make_server, store, tmp_path):  # noqa: F811
    server = make_server(settings=archive_settings(store), **POOL)
    server.s3().create_bucket(Bucket=BUCKET)
    fill(server, 30)
    before = keys(server)
    at = with_segment(server)
    for key in before:
        server.s3().delete_object(Bucket=BUCKET, Key=key)
    caught_up(server)
    early = point(make_server, server, utc(at)).start()

    keys_of_root = {"AWS_ACCESS_KEY_ID": sign.ACCESS, "AWS_SECRET_ACCESS_KEY": sign.SECRET}

    def sync(of, *places):
        aws(BIN / "aws", "--endpoint-url", of.endpoint, "s3", "sync", *places, **keys_of_root)

    sync(early, f"s3://{BUCKET}", tmp_path / "bucket")
    sync(server, tmp_path / "bucket", f"s3://{BUCKET}")
    assert keys(server) == before


def test_users_of_the_pool_sign_in_with_its_seal_key(make_server, store):  # noqa: F811
    server = make_server(settings=archive_settings(store), **POOL)
    server.s3().create_bucket(Bucket=BUCKET)
    fill(server, 3)
    key = command(server, "user", "create", "ann", "--grant", f"read:{BUCKET}")["key"]
    caught_up(server)
    server.kill()

    def read(of):
        client = of.s3(access=key["access_key"], secret=key["secret_key"])
        return client.get_object(Bucket=BUCKET, Key="k1")["Body"].read()

    one = point(make_server, server)
    one.data.mkdir(mode=0o700)
    shutil.copy(server.data / "seal.key", one.data)
    one.start()
    assert len(read(one)) == 1001
    one.stop()
    assert [file.name for file in one.data.iterdir()] == ["seal.key"]
    os.remove(one.data / "seal.key")
    one.start()
    assert "cannot sign in" in one.log()
    with pytest.raises(ClientError):
        read(one)
    assert len(keys(one)) == 3


def test_a_state_that_lacks_something_is_refused(make_server, tmp_path):
    archive = tmp_path / "archive"
    archive.mkdir()
    server = live_server(make_server, tmp_path, settings={"archive.to": f"file://{archive}"}, **POOL)
    server.s3().create_bucket(Bucket=BUCKET)
    server.s3().put_object(Bucket=BUCKET, Key="large", Body=load.content(5, 7_000_000))
    fill(server, 30)
    caught_up(server)
    server.kill()
    pieces = [path for path in (archive / "p").rglob("*") if path.is_file()]
    kept = {path: path.read_bytes() for path in pieces}
    # What an upload of another process left is not a reader's to remove, however old it is.
    left = archive / ".new.0123456789abcdef"
    left.write_bytes(b"x")
    os.utime(left, (1, 1))
    first = next(path for path in kept if path.name.startswith("0."))
    one = point(make_server, server)
    for gone in [kept, [first]]:
        for path in gone:
            path.unlink()
        one.start(wait_ready=False)
        assert one.process.wait(60) == 1, one.log()
        assert "does not exist" in one.log() and "ready" not in one.log(), one.log()
        assert list(one.scratch.iterdir()) == [] and left.exists()
        for path in gone:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(kept[path])
    one.start()
    assert keys(one) == keys(server.start())
    server.s3().put_object(Bucket=BUCKET, Key="k", Body=b"x")
    wait.until(lambda: not left.exists(), what="the owner to remove it")


def test_what_cannot_be_served_is_named(make_server, store, tmp_path):  # noqa: F811
    server = make_server(settings=archive_settings(store), **POOL)
    server.s3().create_bucket(Bucket=BUCKET)
    caught_up(server)

    def said(*args, code=1, **settings):
        one = point(make_server, server, name=f"at{said.n}", **settings)
        said.n += 1
        one.args[one.args.index("--at") + 1:] = args
        one.start(wait_ready=False)
        assert one.process.wait(60) == code, one.log()
        assert list(one.scratch.iterdir()) == []
        return one.log()

    said.n = 0
    assert "no state" in said("s3://backup/chat", "2020-01-01")
    assert "not a time" in said("s3://backup/chat", "yesterday")
    assert "archive.access_key" in said("s3://backup/other"), "keys are for the configured archive only"
    assert "ftp" in said("ftp://backup")
    assert "--at" in said(code=2)
    assert "cannot be used with" in said("s3://backup/chat", "--restored", code=2)
    (tmp_path / "empty").mkdir()
    assert "there is no archive" in said(f"file://{tmp_path}/empty")
