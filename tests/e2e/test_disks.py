"""A pool of several disks, each with a log of its own."""

import json

import botocore.exceptions
import pytest

from harness import load, wait

DISKS = ["d0", "d1", "d2"]
SETTINGS = {"data.disks": ",".join(DISKS), "store.cache": "0 B"}


@pytest.fixture
def make_pool(make_server):
    def make(**options):
        server = make_server(pool_size="512 MiB", extent_size="8 MiB", settings=SETTINGS, **options)
        server.s3().create_bucket(Bucket="pool")
        return server

    return make


def put(server, key, data):
    return server.request("PUT", f"/pool/{key}", data, timeout_s=60)[0]


def contents(count=60):
    """By key: small ones, and some that go in chunks."""
    return {f"dir{n % 3}/k{n:02}": load.content(n, 700_000 if n % 6 == 0 else 500 + n) for n in range(count)}


def fill(server):
    objects = contents()
    for key, data in objects.items():
        assert put(server, key, data) == 200
    return objects


def check(server, objects):
    for key, data in objects.items():
        status, _, found = server.request("GET", f"/pool/{key}")
        assert (status, found == data) == (200, True), key
    pages = server.s3().get_paginator("list_objects_v2").paginate(Bucket="pool", PaginationConfig={"PageSize": 7})
    assert [entry["Key"] for page in pages for entry in page["Contents"]] == sorted(objects)


def test_objects_spread_over_the_disks_and_look_like_one_pool(make_pool):
    server = make_pool()
    objects = fill(server)
    check(server, objects)
    s3 = server.s3()
    page = s3.list_objects_v2(Bucket="pool", Delimiter="/")
    assert [p["Prefix"] for p in page["CommonPrefixes"]] == ["dir0/", "dir1/", "dir2/"] and "Contents" not in page
    disks = server.status()["store"]["disks"]
    assert [disk["name"].rsplit("/", 1)[1] for disk in disks] == DISKS
    assert sum(disk["objects"] for disk in disks) == len(objects) and all(disk["objects"] > 5 for disk in disks), disks
    assert all((server.data / name).stat().st_size > 8 << 20 for name in DISKS)

    s3.copy_object(Bucket="pool", Key="copy", CopySource="pool/dir0/k00")
    upload = s3.create_multipart_upload(Bucket="pool", Key="parts")["UploadId"]
    parts = [load.content(100, 5 << 20), load.content(101, 1000)]
    tags = [s3.upload_part(Bucket="pool", Key="parts", UploadId=upload, PartNumber=n, Body=data)["ETag"] for n, data in enumerate(parts, 1)]
    assert [u["UploadId"] for u in s3.list_multipart_uploads(Bucket="pool")["Uploads"]] == [upload]
    s3.complete_multipart_upload(Bucket="pool", Key="parts", UploadId=upload, MultipartUpload={
        "Parts": [{"PartNumber": n, "ETag": tag} for n, tag in enumerate(tags, 1)]})
    objects |= {"copy": objects["dir0/k00"], "parts": b"".join(parts)}
    with pytest.raises(botocore.exceptions.ClientError, match="PreconditionFailed"):
        s3.put_object(Bucket="pool", Key="copy", Body=b"", IfNoneMatch="*")
    check(server, objects)

    # After a clean stop, and with the indexes rebuilt from the disks.
    assert server.stop() == 0
    server.start()
    check(server, objects)
    assert server.stop() == 0
    verified = server.command("verify", "--data", str(server.data), "--json")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert len(json.loads(verified.stdout)["disks"]) == 3
    server.start()

    deleted = s3_delete_all(server)
    assert deleted == len(objects)
    server.s3().delete_bucket(Bucket="pool")


def s3_delete_all(server):
    s3 = server.s3()
    keys = [entry["Key"] for entry in s3.list_objects_v2(Bucket="pool")["Contents"]]
    answer = s3.delete_objects(Bucket="pool", Delete={"Objects": [{"Key": key} for key in keys]})
    assert "Errors" not in answer
    return len(answer["Deleted"])


def test_kill_9_loses_nothing_that_was_acknowledged(make_pool):
    server = make_pool()
    writers = [load.Writer(n, "pool", sizes=(0, 100, 4_000, 300_000)) for n in range(4)]
    for _ in range(3):
        done = sum(writer.count for writer in writers)
        threads = load.start(writers, server)
        wait.until(lambda: sum(writer.count for writer in writers) > done + 60, 120, "some writes")
        server.kill()
        load.stop(writers, threads)
        server.start()
        assert load.check(server, writers, every_key=True) > 0
        load.check_listing(server, writers)


def test_a_missing_disk_takes_only_its_own_objects_with_it(make_pool, tmp_path):
    server = make_pool()
    objects = fill(server)
    on_it = server.status()["store"]["disks"][1]["objects"]
    assert server.stop() == 0
    (server.data / "d1").rename(tmp_path / "away")
    server.start()
    assert "d1 IS MISSING" in server.log()
    gone = 0
    for key, data in objects.items():
        status, _, found = server.request("GET", f"/pool/{key}")
        assert status == 503 and b"d1" in found or found == data, (key, status, found[:200])
        assert put(server, key, data) == (503 if status == 503 else 200)
        gone += status == 503
    assert gone == on_it
    status, _, answer = server.request("GET", "/pool", query={"list-type": "2"})
    assert status == 503 and b"d1" in answer
    assert server.request("PUT", "/another")[0] == 503
    disk = server.status()["store"]["disks"][1]
    assert (disk["state"], disk["objects"]) == ("missing", on_it)
    assert server.metric("steadfast_pool_disks_in_trouble") == 1
    table = server.command("status", "--admin", f"http://127.0.0.1:{server.admin_port}").stdout
    assert f"d1: {on_it} objects, 341 of 1024 slots, MISSING" in table, table
    assert not (server.data / "d1").exists(), "a disk that is missing is not made anew"
    assert server.stop() == 0

    (tmp_path / "away").rename(server.data / "d1")
    server.start()
    check(server, objects)


def test_a_disk_that_fails_takes_only_its_own_objects_to_read_only(fuse_disk, make_pool):
    server = make_pool(disk=fuse_disk)
    objects = fill(server)
    fault = fuse_disk.fault("fsync", "eio", path="d1")
    answers = {key: put(server, key, b"new" + data) for key, data in objects.items()}
    assert fuse_disk.hits(fault) == 1, "a flush that failed is never tried again"
    # 500: what was under way when it failed. Nothing was, when the flush was one in the background.
    assert set(answers.values()) - {500} == {200, 503}
    assert list(answers.values()).count(500) <= 1
    disk = server.status()["store"]["disks"][1]
    refused = [key for key, status in answers.items() if status != 200]
    assert (disk["state"], disk["objects"]) == ("read_only", len(refused))
    # All can be read, and everything else goes on.
    for key, data in objects.items():
        status, _, found = server.request("GET", f"/pool/{key}")
        assert status == 200 and found in ({data, b"new" + data} if answers[key] == 500 else {data if key in refused else b"new" + data})
    assert len(server.s3().list_objects_v2(Bucket="pool")["Contents"]) == len(objects)
    assert server.admin("/health/ready")[0] == 200
    wait.until(lambda: "d1 DOES NOT TAKE PART" in server.log(), 10, "what to do, in the log")

    server.kill()
    fuse_disk.clear()
    server.start()
    for key, status in answers.items():
        assert put(server, key, objects[key]) == 200, status
    check(server, objects)
