"""Snapshots: made under load, exported, restored elsewhere; and copies of a pool's file at one
moment."""

import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import threading

import pytest

from harness import load, server as harness, sign, wait

MIB = 1 << 20


def snapshot(server, *args, fails=False, to=None, **more):
    """`steadfast snapshot ...` on this server; returns its output."""
    command = [harness.binary(), "snapshot", *map(str, args), "--data", str(server.data), "--json"]
    environment = server.environment() | {"AWS_ACCESS_KEY_ID": sign.ACCESS, "AWS_SECRET_ACCESS_KEY": sign.SECRET} | more
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=environment, check=False,
                          stdin=subprocess.DEVNULL)
    if fails:
        # 3: done, except for the listed items.
        assert done.returncode == (1 if fails is True else fails), done.stdout + done.stderr
        return done.stdout + done.stderr
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def whole(server):
    """Everything that a client sees: buckets and objects with all their attributes."""
    s3, found = server.s3(), {}
    for bucket in (bucket["Name"] for bucket in s3.list_buckets()["Buckets"]):
        found[bucket] = {}
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket):
            for entry in page.get("Contents", []):
                key = entry["Key"]
                got = s3.get_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
                body = got["Body"].read()
                parts = s3.head_object(Bucket=bucket, Key=key, PartNumber=1).get("PartsCount")
                tags = s3.get_object_tagging(Bucket=bucket, Key=key)["TagSet"]
                headers = {name: value for name, value in got["ResponseMetadata"]["HTTPHeaders"].items()
                           if name not in ("date", "x-amz-request-id", "x-amz-id-2", "server", "connection")}
                found[bucket][key] = (hashlib.sha256(body).hexdigest(), headers, parts, tags)
    return found


def fill(server, buckets=("one", "two"), count=60):
    s3, rng = server.s3(), random.Random(5)
    for bucket in buckets:
        s3.create_bucket(Bucket=bucket)
    for number in range(count):
        key = f"dir {number % 7}/é+{number}&\n" if number % 10 == 0 else f"dir{number % 7}/{number}"
        s3.put_object(Bucket=buckets[number % len(buckets)], Key=key, Body=rng.randbytes(rng.choice((0, 10, 5_000, 300_000))),
                      ContentType="text/x", CacheControl="no-cache", Metadata={"who": f"me{number}", "b": "x y"},
                      Tagging=f"n={number}", ChecksumAlgorithm=rng.choice(("CRC32", "SHA256", "CRC64NVME")))
    upload = s3.create_multipart_upload(Bucket=buckets[0], Key="parts", Metadata={"m": "1"}, ContentType="a/b")["UploadId"]
    parts = []
    for number, size in ((1, 6 * MIB), (2, 5 * MIB), (3, 1000)):
        answer = s3.upload_part(Bucket=buckets[0], Key="parts", UploadId=upload, PartNumber=number, Body=rng.randbytes(size))
        parts.append({"PartNumber": number, "ETag": answer["ETag"]})
    s3.complete_multipart_upload(Bucket=buckets[0], Key="parts", UploadId=upload, MultipartUpload={"Parts": parts})


def change(server):
    s3 = server.s3()
    s3.put_object(Bucket="one", Key="parts", Body=b"replaced")
    s3.put_object(Bucket="two", Key="new", Body=bytes(100_000))
    for entry in s3.list_objects_v2(Bucket="two", Prefix="dir1").get("Contents", []):
        s3.delete_object(Bucket="two", Key=entry["Key"])


def verify(server):
    done = server.command("verify", "--data", str(server.data))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def disks(tmp_path, request):
    """Settings of a pool of several disks."""
    return {"data.disks": ",".join(str(tmp_path / f"disk{n}.pool") for n in range(request.param))} if request.param else {}


@pytest.mark.parametrize("disks", [0, 3], indirect=True)
def test_a_snapshot_is_exported_and_restored(make_server, tmp_path, disks):
    server = make_server(settings=disks)
    fill(server)
    made = snapshot(server, "create", "monday")
    assert made["whole"] and made["objects"] == 61, made
    before = whole(server)
    change(server)
    later = whole(server)
    assert later != before
    server.kill()
    server.start()
    listed = snapshot(server, "list")
    assert [entry["name"] for entry in listed["snapshots"]] == ["monday"]
    assert server.metric("steadfast_snapshots") == 1 and server.metric("steadfast_snapshot_extents") > 0

    to = tmp_path / "backup"
    result = snapshot(server, "export", "monday", "--to", to)
    assert result["objects"] == 61 and result["written_bytes"] == result["bytes"], result
    assert "already" in snapshot(server, "export", "monday", "--to", to, fails=True)
    fresh = make_server("fresh")
    result = snapshot(fresh, "restore", "monday", "--from", to)
    assert result["objects"] == 61
    assert whole(fresh) == before
    times = [{bucket["Name"]: bucket["CreationDate"] for bucket in at.s3().list_buckets()["Buckets"]} for at in (server, fresh)]
    assert times[0] == times[1]
    assert "--overwrite" in snapshot(fresh, "restore", "monday", "--from", to, fails=True)

    # Incremental: the export writes only changes, and the restore is complete.
    snapshot(server, "create", "tuesday")
    result = snapshot(server, "export", "tuesday", "--to", to, "--since", "monday")
    assert result["written_bytes"] == 100_008 and result["needs"] == ["monday"], result
    snapshot(fresh, "restore", "tuesday", "--from", to, "--overwrite")
    another = make_server("again")
    snapshot(another, "restore", "tuesday", "--from", to)
    assert whole(another) == later == whole(server)

    snapshot(server, "delete", "monday")
    snapshot(server, "delete", "tuesday")
    assert "no snapshot" in snapshot(server, "delete", "tuesday", fails=True)
    assert server.metric("steadfast_snapshots") == 0 and server.metric("steadfast_snapshot_extents") == 0
    wait.until(lambda: not list((server.data / "snapshots").iterdir()), 20, "no index of a snapshot")
    for each in (server, fresh, another):
        assert each.stop() == 0
        verify(each)


def test_snapshots_under_load_hold_what_was_acknowledged(make_server, tmp_path):
    server = make_server(pool_size="4 GiB", extent_size="8 MiB")
    server.s3().create_bucket(Bucket="load")
    writers = [load.Writer(number, "load") for number in range(6)]
    moments, took_us = {}, []
    threads = load.start(writers, server)
    try:
        for number in range(4):
            enough = sum(writer.count for writer in writers) + 60
            wait.until(lambda: sum(writer.count for writer in writers) >= enough, 120, "acknowledged writes")
            before = [writer.moment() for writer in writers]
            took_us.append(snapshot(server, "create", f"s{number}")["took_us"])
            # A write that began after the snapshot is not in it.
            moments[f"s{number}"] = before, [{k: len(v) for k, v in list(w.attempts.items())} for w in writers]
    finally:
        load.stop(writers, threads)
    print(f"snapshots under load took {took_us} us")
    for name, (before, after) in moments.items():
        snapshot(server, "export", name, "--to", tmp_path / "backup", "--rate", "0 B")
        fresh = make_server(name)
        snapshot(fresh, "restore", name, "--from", tmp_path / "backup")
        wrong, read = [], 0
        for writer, moment, until in zip(writers, before, after):
            for key, attempts in writer.attempts.items():
                status, _, data = fresh.request("GET", f"/load/{key}")
                found = load.digest(data) if status == 200 else load.ABSENT
                read += status == 200
                marks, acknowledged = moment
                may = [acknowledged.get(key, load.ABSENT), *attempts[max(0, marks.get(key, 0) - 1):until.get(key, 0)]]
                if status not in (200, 404) or found not in may:
                    wrong.append((name, key, status))
        assert read > 10
        assert not wrong, wrong
        fresh.close()
        shutil.rmtree(fresh.data)


def test_an_export_is_unfinished_after_a_kill_of_the_server_and_outlives_its_command(make_server, tmp_path):
    server, fresh = make_server(), make_server("fresh")
    fill(server, count=120)
    before = whole(server)
    snapshot(server, "create", "s")
    to = tmp_path / "backup"
    with start_export(server, to) as export:
        wait.until(lambda: sum(file.stat().st_size for file in to.glob("s/data/*")) > 2 * MIB, 60, "some bodies")
        server.kill()
        assert export.wait(30) == 1
    assert not (to / "s/manifest.jsonl").exists() and (to / "s/unfinished").exists()
    assert "not finished" in snapshot(fresh, "restore", "s", "--from", to, fails=True)
    server.start()
    # The second export replaces the unfinished one, and the server finishes it without its command.
    with start_export(server, to) as export:
        wait.until(lambda: snapshot(server, "list")["working"], 60, "the second export")
        export.send_signal(signal.SIGKILL)
        export.wait(30)
    assert not (to / "s/manifest.jsonl").exists()
    wait.until(lambda: not snapshot(server, "list")["working"], 60, "the end of the export")
    assert (to / "s/manifest.jsonl").exists() and not (to / "s/unfinished").exists()
    snapshot(fresh, "restore", "s", "--from", to)
    assert whole(fresh) == before
    wait.until(lambda: not list((server.data / "snapshots").iterdir()), 20, "no index of a snapshot")


def start_export(server, to):
    """The command that exports the snapshot "s", slowly."""
    command = [harness.binary(), "snapshot", "export", "s", "--to", str(to), "--rate", "4 MiB", "--data", str(server.data)]
    return subprocess.Popen(command, env=server.environment(), stderr=subprocess.PIPE, stdout=subprocess.PIPE)


def test_damaged_exports_are_refused(make_server, tmp_path):
    server, fresh = make_server(), make_server("fresh")
    fill(server, count=20)
    snapshot(server, "create", "s")
    to = tmp_path / "backup"
    snapshot(server, "export", "s", "--to", to)
    manifest = to / "s/manifest.jsonl"
    good = manifest.read_bytes()
    manifest.write_bytes(good.replace(b"text/x", b"text/y", 1))
    assert "hash" in snapshot(fresh, "restore", "s", "--from", to, fails=True)
    assert fresh.s3().list_buckets()["Buckets"] == []
    manifest.write_bytes(good)
    body = to / "s/data/00000001"
    with open(body, "r+b") as file:
        file.seek(body.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 8]))
    assert "SHA-256" in snapshot(fresh, "restore", "s", "--from", to, fails=3)
    # docs/backup-format.md suffices to read everything in an export.
    lines = [json.loads(line) for line in good.splitlines()]
    assert "export" in lines[0] and "end" in lines[-1]
    assert lines[-1]["end"]["sha256"] == hashlib.sha256(good[:good.rindex(b'{"end"')]).hexdigest()
    bad = 0
    for line in (line["object"] for line in lines if "object" in line):
        data = b""
        for piece in line["body"]:
            with open(to / piece.get("export", "s") / f"data/{piece['file']:08}", "rb") as file:
                file.seek(piece["offset"])
                data += file.read(piece["length"])
        bad += hashlib.sha256(data).hexdigest() != line["sha256"]
    assert bad == 1


@pytest.mark.parametrize("tls", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["http", "https"])
def test_to_and_from_another_s3_endpoint(make_server, tmp_path, certificate, monkeypatch, tls):
    secure = {}
    if tls:
        secure = {"tls.certificate": certificate[0], "tls.key": certificate[1]}
        # The authority that clients of the endpoint trust.
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    server, vault = make_server(), make_server("vault", settings=secure)
    vault.tls = str(certificate[0]) if tls else None
    fill(server)
    # Enough for files uploaded in parts.
    server.s3().put_object(Bucket="one", Key="big", Body=random.Random(3).randbytes(40 * MIB))
    vault.s3().create_bucket(Bucket="vault")
    before = whole(server)
    snapshot(server, "create", "s1")
    at = ("s3://vault/some/where", "--endpoint", vault.endpoint)
    result = snapshot(server, "export", "s1", "--to", *at)
    assert result["objects"] == 62, result
    names = [entry["Key"] for entry in vault.s3().list_objects_v2(Bucket="vault")["Contents"]]
    assert "some/where/s1/manifest.jsonl" in names and not any("unfinished" in name for name in names), names
    parts = vault.s3().head_object(Bucket="vault", Key="some/where/s1/data/00000001", PartNumber=1)["PartsCount"]
    assert parts >= 3, parts
    assert vault.s3().list_multipart_uploads(Bucket="vault").get("Uploads", []) == []
    change(server)
    later = whole(server)
    snapshot(server, "create", "s2")
    result = snapshot(server, "export", "s2", "--to", *at, "--since", "s1")
    assert result["written_bytes"] == 100_008, result
    for name, expected in (("s1", before), ("s2", later)):
        fresh = make_server(name)
        snapshot(fresh, "restore", name, "--from", *at)
        assert whole(fresh) == expected
    # A copy of it in a directory is the same export.
    for name in names:
        path = tmp_path / "copy" / name.removeprefix("some/where/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(vault.s3().get_object(Bucket="vault", Key=name)["Body"].read())
    fresh = make_server("copied")
    snapshot(fresh, "restore", "s1", "--from", tmp_path / "copy")
    assert whole(fresh) == before
    wrong = snapshot(server, "export", "s1", "--to", *at, fails=True, AWS_SECRET_ACCESS_KEY="wrong" * 8)
    assert "SignatureDoesNotMatch" in wrong or "403" in wrong, wrong


def test_the_error_of_a_full_pool_names_snapshots(make_server):
    server = make_server(pool_size="96 MiB", extent_size="4 MiB", settings={"compaction.interval": "50 ms"})
    s3 = server.s3()
    s3.create_bucket(Bucket="full")
    body = bytes(MIB)
    for number in range(44):
        s3.put_object(Bucket="full", Key=str(number), Body=body)
    snapshot(server, "create", "old")
    status = text = None
    for number in range(200):
        status, _, text = server.request("PUT", f"/full/{number % 44}", body, timeout_s=60)
        if status == 507:
            break
    assert status == 507 and b"snapshot delete old" in text, (status, text)
    assert server.metric("steadfast_snapshot_kept_bytes") > 20 * MIB
    snapshot(server, "delete", "old")
    wait.until(lambda: server.request("PUT", "/full/1", body, timeout_s=60)[0] == 200, 60, "room")


# -- copies of the pool's file ----------------------------------------------------------------


class Frozen:
    """An ext4 file system on a loop device that can be frozen."""

    def __init__(self, directory, size):
        self.mount = directory / "frozen"
        self.mount.mkdir()
        image = directory / "frozen.img"
        with open(image, "wb") as file:
            file.truncate(size)
        subprocess.run(["mkfs.ext4", "-q", image], check=True)
        done = subprocess.run(["mount", "-o", "loop", image, self.mount], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")

    def copy(self, path, to):
        """A copy of a file at one moment, while its writers keep trying."""
        subprocess.run(["fsfreeze", "--freeze", self.mount], check=True)
        try:
            shutil.copyfile(path, to)
        finally:
            subprocess.run(["fsfreeze", "--unfreeze", self.mount], check=True)

    def close(self):
        subprocess.run(["umount", "-l", self.mount], check=False)


@pytest.fixture
def frozen(tmp_path):
    if os.geteuid() != 0 or not shutil.which("fsfreeze"):
        pytest.skip("freezing a file system needs root and fsfreeze")
    disk = Frozen(tmp_path, 600 * MIB)
    yield disk
    disk.close()


@pytest.mark.parametrize("legs", [pytest.param("one disk", marks=pytest.mark.slow), "super-disk"])
def test_a_copy_at_any_moment_under_load_has_all_that_was_acknowledged(make_server, frozen, tmp_path, legs):
    """Like an LVM, ZFS or cloud snapshot: the server is not notified, and its writes wait for the
    file system."""
    pool = frozen.mount / "pool"
    settings = {"data.pool": pool, "compaction.interval": "20 ms"}
    if legs == "super-disk":
        settings |= {"superdisk.fast": tmp_path / "fast"}
    server = make_server(pool_size="400 MiB", extent_size="4 MiB", settings=settings)
    server.s3().create_bucket(Bucket="load")
    writers = [load.Writer(number, "load", sizes=(0, 100, 4_000, 70_000, 700_000)) for number in range(4)]
    rng, threads, rounds = random.Random(11), load.start(writers, server), 6
    try:
        for number in range(rounds):
            enough = sum(writer.count for writer in writers) + rng.randrange(10, 150)
            wait.until(lambda: sum(writer.count for writer in writers) >= enough, 120, "acknowledged writes")
            copy = tmp_path / f"copy{number}.pool"
            moments = [writer.moment() for writer in writers]
            frozen.copy(pool, copy)
            check_copy(make_server, number, copy, writers, moments)
            copy.unlink()
    finally:
        load.stop(writers, threads)
    recycled = server.metric("steadfast_compaction_recycled_extents_total")
    assert recycled > 0, "no extent was recycled, so the copies prove too little"


def check_copy(make_server, number, copy, writers, moments):
    other = make_server(f"copy{number}", pool_size="400 MiB", settings={"data.pool": copy})
    wrong, read = [], 0
    for writer, moment in zip(writers, moments):
        for key in sorted(list(writer.attempts)):
            status, _, data = other.request("GET", f"/load/{key}")
            found = load.digest(data) if status == 200 else load.ABSENT
            read += status == 200
            if status not in (200, 404) or found not in writer.allowed(moment, key):
                wrong.append((key, status))
    assert read > 5
    assert not wrong, wrong
    assert other.stop() == 0
    verify(other)
