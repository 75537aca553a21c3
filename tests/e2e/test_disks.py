"""A pool of several disks, each with a log of its own."""

import json
import os
import subprocess

import botocore.exceptions
import pytest

from harness import load, wait
from harness.live import api, live_server
from harness.server import binary

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
    """Objects by key: small ones, and some stored in chunks."""
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


def test_a_missing_disk_affects_only_its_own_objects(make_pool, tmp_path):
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
    assert server.metric("steadfast_pool_disks_failed") == 1
    table = server.command("status", "--admin", f"http://127.0.0.1:{server.admin_port}").stdout
    assert f"d1: {on_it} objects, 341 of 1024 slots, MISSING" in table, table
    assert not (server.data / "d1").exists(), "a missing disk is not created anew"
    assert server.stop() == 0

    (tmp_path / "away").rename(server.data / "d1")
    server.start()
    check(server, objects)


def test_a_missing_disk_affects_only_its_own_channels(make_server, tmp_path):
    server = live_server(make_server, tmp_path, pool_size="512 MiB", extent_size="8 MiB", settings=SETTINGS)
    rooms = [f"room{n}" for n in range(40)]

    def publish(channel):
        return api(server, "publish", channel=channel, data={"n": 1})

    stands = {room: publish(room)["result"] for room in rooms}
    assert server.stop() == 0
    (server.data / "d0").rename(tmp_path / "away")
    server.start()
    gone = 0
    for room in rooms:
        reply = publish(room)
        if "error" in reply:
            assert reply["error"]["code"] == 100, reply
            gone += 1
        else:
            assert reply["result"]["offset"] == 2
            stands[room] = reply["result"]
    assert 5 < gone < 35
    assert "result" in publish("passing:by"), "it keeps no history"
    assert "/d0 of the pool is missing" in server.log()
    assert server.stop() == 0

    (tmp_path / "away").rename(server.data / "d0")
    server.start()
    for room in rooms:
        now = publish(room)["result"]
        assert (now["epoch"], now["offset"]) == (stands[room]["epoch"], stands[room]["offset"] + 1)


def test_a_disk_that_fails_takes_only_its_own_objects_to_read_only(fuse_disk, make_pool):
    server = make_pool(disk=fuse_disk)
    objects = fill(server)
    fault = fuse_disk.fault("fsync", "eio", path="d1")
    answers = {key: put(server, key, b"new" + data) for key, data in objects.items()}
    assert fuse_disk.hits(fault) == 1, "the server does not retry a failed flush"
    # 500: the request was in flight at the failure. In a background flush, none was.
    assert set(answers.values()) - {500} == {200, 503}
    assert list(answers.values()).count(500) <= 1
    disk = server.status()["store"]["disks"][1]
    refused = [key for key, status in answers.items() if status != 200]
    assert (disk["state"], disk["objects"]) == ("read_only", len(refused))
    # All objects can be read, and the other disk still takes writes.
    for key, data in objects.items():
        status, _, found = server.request("GET", f"/pool/{key}")
        assert status == 200 and found in ({data, b"new" + data} if answers[key] == 500 else {data if key in refused else b"new" + data})
    assert len(server.s3().list_objects_v2(Bucket="pool")["Contents"]) == len(objects)
    assert server.admin("/health/ready")[0] == 200
    wait.until(lambda: "d1 IS OUT OF SERVICE" in server.log(), 10, "the remedy in the log")

    server.kill()
    fuse_disk.clear()
    server.start()
    for key, status in answers.items():
        assert put(server, key, objects[key]) == 200, status
    check(server, objects)


# -- super-disks in a pool -------------------------------------------------------------------------


@pytest.fixture
def make_pairs(make_fuse_disk, make_server):
    """A pool of two super-disks: the durable legs on one FUSE disk, the fast ones plain files."""
    def make(**settings):
        disk = make_fuse_disk()
        server = make_server(pool_size="256 MiB", extent_size="4 MiB", start=False, settings={
            "store.cache": "0 B", "store.inline_max": "0 B", "data.disks": f"{disk.mount}/d0 + f0, {disk.mount}/d1 + f1a + f1b", **settings})
        server.start()
        server.s3().create_bucket(Bucket="pool")
        return server, disk

    return make


def legs(server):
    return {one["disk"].rsplit("/", 1)[1]: one for one in server.status()["superdisks"]}


def wait_clean(server):
    wait.until(lambda: all(one["fast"]["state"] == "clean" for one in legs(server).values()), 60, "clean fast legs", 0.05)


def by_disk(server, name, disk, **labels):
    """The metrics of one disk with these labels."""
    found = [value for sample, value in server.metrics().items() if sample.startswith(f"steadfast_{name}{{") and f'/{disk}"' in sample
             and all(f'{key}="{value}"' in sample for key, value in labels.items())]
    assert len(found) == 1, (name, found)
    return found[0]


def test_super_disks_lose_nothing_when_a_leg_of_each_fails(make_pairs):
    server, disk = make_pairs(**{"scrub.interval": "1 s", "scrub.rate": "0 B"})
    objects = {f"dir{n % 3}/k{n:03}": load.content(n, 28_672) for n in range(700)}
    for key, data in objects.items():
        assert put(server, key, data) == 200
    check(server, objects)
    wait_clean(server)
    assert set(legs(server)) == {"d0", "d1"}
    assert server.stop() == 0
    verified = server.command("verify", "--data", str(server.data), "--fast")
    assert verified.returncode == 0 and verified.stdout.count("no differences") == 2, verified.stdout + verified.stderr
    listed = server.command("disk", "list", "--data", str(server.data), "--json")
    rows = json.loads(listed.stdout)["disks"]
    assert listed.returncode == 0 and [(row["disk"], row["role"], row["index"]) for row in rows] == [
        (0, "durable", 0), (0, "fast", 0), (1, "durable", 0), (1, "fast", 0), (1, "fast", 1)], listed.stdout

    # One disk lacks its fast leg; the durable leg of the other has bad sectors under objects.
    (server.data / "f0").unlink()
    image = (disk.backing / "d1").read_bytes()
    places = [image.find(data[:64]) for data in objects.values()]
    places = sorted(at for at in places if at >= 0 and at + 28_672 < max(places) - (8 << 20))[:20]
    assert len(places) == 20, "some objects are on the second disk, in extents that are full"
    for at in places:
        disk.fault("read", "eio", path="d1", offset=at // 4096 * 4096 + 4096, length=512, until_written=True)
    server.start()
    check(server, objects)
    wait.until(lambda: disk.counts()["rules"] == 0, 60, "repaired bad sectors")
    wait_clean(server)
    check(server, objects)
    assert by_disk(server, "superdisk_healed_total", "d1", leg="durable") >= len(places)
    assert by_disk(server, "superdisk_healed_total", "d0", leg="durable") == 0
    assert server.admin("/health/ready")[0] == 200
    assert server.metric("steadfast_pool_disks_failed") == 0
    assert server.metric("steadfast_scrub_damaged_total") == 0
    wait.until(lambda: f"super-disk {disk.mount}/d1: damaged places of the pool were healed" in server.log(), what="the remedy in the log")
    shown = server.command("status", "--admin", f"http://127.0.0.1:{server.admin_port}").stdout
    assert shown.count("fast leg clean") == 2 and f"{disk.mount}/d1: fast leg" in shown, shown
    assert server.stop() == 0
    verified = server.command("verify", "--data", str(server.data), "--fast", "--json")
    assert verified.returncode == 0, verified.stdout
    assert [one["fast"]["differing_blocks"] for one in json.loads(verified.stdout)["disks"]] == [0, 0]


def test_a_fast_leg_of_one_of_several_disks_is_made_anew(make_pairs):
    server, _ = make_pairs()
    objects = fill(server)
    assert server.stop() == 0
    (server.data / "f1b").write_bytes(bytes(1024 + 56) + b"\x53\xef" + bytes(64 << 10))
    server.start()
    check(server, objects)
    assert {name: one["fast"]["state"] for name, one in legs(server).items()}["d1"] == "foreign"
    wait.until(lambda: "/d1: the fast leg is not this pool's" in server.log(), what="the remedy in the log, with the disk's name")
    assert by_disk(server, "superdisk_degraded", "d1") == 1 and by_disk(server, "superdisk_degraded", "d0") == 0
    assert server.command("disk", "list", "--admin", f"127.0.0.1:{server.admin_port}").returncode == 3
    assert server.stop() == 0
    refused = server.command("format", "--data", str(server.data), "--fast-only")
    assert refused.returncode == 1 and "ext4" in refused.stderr, refused.stderr
    made = server.command("format", "--data", str(server.data), "--fast-only", "--force")
    assert made.returncode == 0, made.stderr
    server.start()
    wait_clean(server)
    check(server, objects)


# -- formatting ------------------------------------------------------------------------------------


def test_format_shows_and_makes_a_pool_of_several_disks(make_server):
    server = make_server(pool_size="256 MiB", extent_size="8 MiB", start=False, settings={"data.disks": "d0 + f0, d1, d2"})
    server.data.mkdir()

    def command(*args):
        return server.command(*args, "--data", str(server.data))

    (server.data / "d1").write_bytes(bytes(1024 + 56) + b"\x53\xef" + bytes(64 << 10))
    dry = command("format", "--dry-run")
    assert dry.returncode == 3 and "REFUSED" in dry.stdout and "ext4" in dry.stdout, dry.stdout + dry.stderr
    assert "pool disk 3 of 3" in dry.stdout and "fast leg of 1" in dry.stdout, dry.stdout
    refused = command("format")
    assert refused.returncode == 1 and "ext4" in refused.stderr and "d1" in refused.stderr, refused.stderr
    assert not (server.data / "d0").exists()
    (server.data / "d1").unlink()
    planned = json.loads(command("format", "--dry-run", "--json").stdout)
    assert [(one["disk"], one["role"]) for one in planned["disks"]] == [(0, "durable"), (0, "fast"), (1, "durable"), (2, "durable")]
    assert planned["usable_bytes"] == 3 * 256 << 20
    listed = command("disk", "list")
    assert listed.returncode == 3 and listed.stdout.count("missing") == 4, listed.stdout
    made = command("format")
    assert made.returncode == 0 and "a new pool of 3 disks" in made.stdout, made.stdout + made.stderr
    listed = command("disk", "list")
    assert listed.returncode == 0 and listed.stdout.count("ready") == 4, listed.stdout
    assert command("format").returncode == 1, "a pool is not formatted twice"
    server.start()
    server.s3().create_bucket(Bucket="pool")
    check(server, fill(server))
    assert server.stop() == 0
    forced = command("format", "--force")
    assert forced.returncode == 0, forced.stderr
    server.start()
    assert server.s3().list_buckets()["Buckets"] == []


def test_making_a_pool_that_was_killed_is_finished_by_the_next_start(make_fuse_disk, make_server):
    disk = make_fuse_disk()
    disks = [str(disk.mount / name) for name in ("d0", "d1", "d2")]
    server = make_server(pool_size="256 MiB", extent_size="8 MiB", start=False, settings={"data.disks": ",".join(disks)})
    # Kill while the second disk is formatted, and then while the pool is created on all of them.
    for path, skip in (("d1", 0), ("d2", 3), ("d1", 2), ("d0", 1)):
        hold = disk.fault("fsync", "hold", path=path, skip=skip)
        server.start(wait_ready=False)
        wait.until(lambda: disk.counts()["held"] > 0 or "ready:" in server.log(), 30, "the flush that is held")
        assert "ready:" not in server.log(), (path, skip)
        server.process.kill()
        disk.remove(hold)
        server.process.wait(30)
    # Disks other than those of the first start are refused.
    server.settings["data.disks"] = f"{disks[0]},{disks[1]},other"
    server.start(wait_ready=False)
    assert server.process.wait(30) == 1 and "name those again" in server.log(), server.log()
    server.settings["data.disks"] = ",".join(disks)
    server.start()
    assert "completing it" in server.log()
    server.s3().create_bucket(Bucket="pool")
    objects = fill(server)
    check(server, objects)
    server.kill()
    server.start()
    assert "completing it" not in server.log()
    check(server, objects)


def run_serve(data, *settings):
    """A start with these settings that must fail: what it wrote."""
    sets = [part for setting in settings for part in ("--set", setting)]
    done = subprocess.run([binary(), "serve", "--data", str(data), "--s3-listen", "127.0.0.1:0", "--admin-listen",
                           "127.0.0.1:0", "--live-listen", "", *sets], capture_output=True, text=True, timeout=60, check=False,
                          env={"PATH": "/usr/bin:/bin"})
    assert done.returncode != 0, done.stdout
    return done.stderr


def test_a_start_with_a_wrong_path_names_it_and_leaves_nothing(tmp_path):
    data, here = tmp_path / "data", tmp_path / "x0"
    for setting, why in [
            (f'data.disks=["{here}", "/no/such/x1"]', "/no/such/x1: there is no folder /no/such"),
            (f"data.disks=[{here}, /no/such/x1]", "this begins like a list and is not one"),
            (f'data.disks=["{here}"', "this begins like a list and is not one"),
            ("data.pool=/no/such/pool", "/no/such/pool: there is no folder /no/such"),
            ('superdisk.fast=["/no/such/fast"]', "/no/such/fast: there is no folder /no/such"),
            ('data.stripe=["/no/such/a", "/no/such/b"]', "/no/such/a: No such file"),
            ("data.pool=/dev/no-such-device", "/dev/no-such-device: no such device"),
    ]:
        text = run_serve(data, "data.pool_size=1 GiB", "superdisk.fast_size=1 GiB", setting)
        assert why in text, text
        assert not data.exists() and not here.exists(), setting
    # A pool that is too small is found out while it is made.
    text = run_serve(data, "data.pool_size=32 MiB", "data.extent_size=32 MiB", f'data.disks=["{here}", "{tmp_path / "x1"}"]')
    assert str(here) in text, text
    assert not here.exists() and not (data / "making").exists(), sorted(os.listdir(data))
    assert not list(tmp_path.glob("*.new"))


def test_the_disks_in_brackets_are_the_same_disks(make_server, tmp_path):
    paths = [str(tmp_path / name) for name in ("x0", "x1")]
    server = make_server(pool_size="256 MiB", settings={"data.disks": json.dumps(paths)})
    assert [row["path"] for row in server.status()["disks"]] == paths
    assert all(os.stat(path).st_mode & 0o777 == 0o600 for path in paths)
    server.stop()
    server.settings["data.disks"] = ",".join(paths)
    server.start()
