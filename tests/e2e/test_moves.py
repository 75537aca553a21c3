"""Disks that are added to a pool and removed from it while clients read and write."""

import json
import os
import re
import subprocess

import pytest

from harness import load, wait
from harness.server import Server, binary

SETTINGS = {"data.disks": "d0,d1", "store.cache": "0 B", "store.move_rate": "0 B"}


@pytest.fixture
def make_pool(make_server):
    def make(**options):
        settings = {**SETTINGS, **options.pop("settings", {})}
        server = make_server(pool_size="1 GiB", extent_size="8 MiB", settings=settings, **options)
        server.s3().create_bucket(Bucket="pool")
        return server

    return make


def disk(server, *args, code=0):
    done = server.command("disk", *args, "--data", str(server.data))
    assert done.returncode == code, done.stdout + done.stderr
    return done


def begin(server, *args):
    """A command that runs in the background."""
    return subprocess.Popen([binary(), "disk", *args, "--data", str(server.data)], env=server.environment(),
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def moving(server):
    return server.status()["store"]["moving"] or {"state": "none", "slots_done": 0, "slots_total": 0}


def names(server):
    return [entry["name"].rsplit("/", 1)[1] for entry in server.status()["store"]["disks"]]


def done(server):
    def ended():
        now = moving(server)
        assert now["state"] in ("running", "done"), now
        return now["state"] == "done"

    wait.until(ended, 120, "the keys to arrive")


def writers(count=3):
    return [load.Writer(n, "pool", sizes=(0, 100, 4_000, 200_000, 1_500_000)) for n in range(count)]


def check(server, working):
    assert load.check(server, working, every_key=True) > 0
    load.check_listing(server, working)


def whole(server, working):
    """Only the listed disks hold data, and every disk verifies."""
    status = server.status()["store"]
    expected = sum(1 for writer in working for found in writer.acknowledged.values() if found is not load.ABSENT)
    assert sum(entry["objects"] for entry in status["disks"]) == expected == status["objects"]
    assert server.stop() == 0
    verified = server.command("verify", "--data", str(server.data), "--json")
    assert verified.returncode == 0, verified.stdout[-3000:] + verified.stderr[-3000:]
    server.start()


def test_disks_are_added_and_removed_under_load_and_kill_9(make_pool, tmp_path):
    server = make_pool()
    working = writers()
    threads = load.start(working, server)
    wait.until(lambda: sum(writer.count for writer in working) > 150, 120, "some writes")

    # The third disk is added and the server killed in the middle; the configuration is not changed.
    server.settings["store.move_rate"] = "4 MiB"
    load.stop(working, threads)
    server.stop()
    server.start()
    threads = load.start(working, server)
    command = begin(server, "add", str(server.data / "d2"))
    wait.until(lambda: moving(server)["slots_done"] > 0 or command.poll() is not None, 120, "some slots")
    assert command.poll() is None, command.communicate()[0]
    server.kill()
    out = command.communicate(timeout=30)[0]
    assert command.returncode == 1 and "the server went away" in out, out
    load.stop(working, threads)
    server.settings["store.move_rate"] = "0 B"
    server.start()
    assert names(server) == ["d0", "d1", "d2"], "the server remembers the added disk"
    threads = load.start(working, server)
    done(server)
    load.stop(working, threads)
    check(server, working)

    # The first disk is removed; again the server is killed in the middle.
    server.settings["store.move_rate"] = "4 MiB"
    server.stop()
    server.start()
    threads = load.start(working, server)
    disk(server, "drain", str(server.data / "d0"), "--no-wait")
    wait.until(lambda: moving(server)["slots_done"] > 0, 120, "some slots")
    server.kill()
    load.stop(working, threads)
    server.settings["store.move_rate"] = "0 B"
    server.start()
    threads = load.start(working, server)
    done(server)
    load.stop(working, threads)
    assert names(server) == ["d1", "d2"]
    check(server, working)
    whole(server, working)

    # A removed disk is refused when added again, and may be pulled; the configuration still names
    # it.
    refused = disk(server, "add", str(server.data / "d0"), code=1).stderr
    # After a compaction its data may lie before its layout: then it "holds a pool of its own".
    assert "wipe it first if nothing on it is needed" in refused, refused
    assert "was taken out of the pool" in server.log(), "a warning, not an error"
    assert server.stop() == 0
    (server.data / "d0").rename(tmp_path / "pulled")
    server.start()
    assert names(server) == ["d1", "d2"] and server.metric("steadfast_pool_disks_failed") == 0
    check(server, working)


def test_a_pool_of_one_disk_grows_is_moved_and_shrinks(make_server):
    server = make_server(pool_size="512 MiB", extent_size="8 MiB", settings={"store.move_rate": "0 B"})
    s3 = server.s3()
    s3.create_bucket(Bucket="pool")
    objects = {f"k{n:02}": load.content(n, 700_000 if n % 6 == 0 else 500 + n) for n in range(40)}
    for key, data in objects.items():
        s3.put_object(Bucket="pool", Key=key, Body=data, Metadata={"n": key})
    upload = s3.create_multipart_upload(Bucket="pool", Key="parts")["UploadId"]
    parts = [load.content(100, 5 << 20), load.content(101, 1000)]

    def put_part(number):
        return s3.upload_part(Bucket="pool", Key="parts", UploadId=upload, PartNumber=number, Body=parts[number - 1])["ETag"]

    tags = [put_part(1)]
    before = {entry["Key"]: entry for entry in s3.list_objects_v2(Bucket="pool")["Contents"]}

    out = disk(server, "add", str(server.data / "more")).stdout
    assert "gets its share" in out and "512 of 512 slots" in out and "disks = [" in out and "/more" in out, out
    assert [entry["slots"] for entry in server.status()["store"]["disks"]] == [512, 512]
    tags.append(put_part(2))
    lines = disk(server, "replace", str(server.data / "pool"), str(server.data / "other"), "--json").stdout.splitlines()
    reports = [json.loads(line) for line in lines]
    assert reports[-1]["done"]["moved"]["state"] == "done" and all("progress" in line for line in reports[:-1])
    assert names(server) == ["more", "other"]
    assert server.metric("steadfast_move_slots_done") == server.metric("steadfast_move_slots") == 512
    s3.complete_multipart_upload(Bucket="pool", Key="parts", UploadId=upload, MultipartUpload={
        "Parts": [{"PartNumber": n, "ETag": tag} for n, tag in enumerate(tags, 1)]})
    assert s3.head_object(Bucket="pool", Key="parts", PartNumber=2)["ContentLength"] == 1000

    # The file of the first disk is no longer in use; the server finds the others after a restart.
    (server.data / "pool").unlink()
    assert server.stop() == 0
    server.start()
    s3 = server.s3()
    assert names(server) == ["more", "other"]
    disk(server, "drain", str(server.data / "more"))
    assert names(server) == ["other"]
    for key, data in objects.items():
        answer = s3.get_object(Bucket="pool", Key=key)
        assert answer["Body"].read() == data and answer["Metadata"] == {"n": key}
    after = {entry["Key"]: entry for entry in s3.list_objects_v2(Bucket="pool")["Contents"]}
    assert after.pop("parts")["Size"] == sum(map(len, parts))
    assert after == before, "times and entity tags are what they were"
    assert "the only disk" in disk(server, "drain", str(server.data / "other"), code=1).stderr


def test_impossible_moves_are_refused(make_pool, tmp_path):
    server = make_pool()
    foreign = server.data / "foreign"
    foreign.write_bytes(b"precious" * 1000)
    for args, words in [
        (("add", str(foreign)), "precious"),
        (("add", str(server.data / "d1")), "is a disk of the pool already"),
        (("add", "/dev/steadfast-none"), "no such device"),
        (("drain", "nothing"), "is not a disk of the pool"),
        (("resume",), "nothing to resume"),
    ]:
        refused = disk(server, *args, code=1).stderr
        assert words in refused or words == "precious" and "foreign" in refused, refused
    assert foreign.read_bytes() == b"precious" * 1000
    assert names(server) == ["d0", "d1"]
    assert server.stop() == 0
    assert "no server runs on this directory" in disk(server, "drain", "d0", code=1).stderr
    server.start()


def test_the_printed_configuration_has_absolute_paths(tmp_path, monkeypatch):
    # The data directory is relative to the working directory, as in a first trial.
    monkeypatch.chdir(tmp_path)
    with Server("data") as server:
        output = disk(server, "add", str(tmp_path / "second")).stdout
        assert server.stop() == 0
        config = tmp_path / "steadfast.toml"
        config.write_text("[data]\n" + re.search(r"^  (disks = .*)$", output, re.M)[1] + "\n")
        server.args = ["--config", str(config)]
        server.start()
        assert server.metric("steadfast_pool_disks_failed") == 0, server.log()
        found = {os.path.realpath(entry["name"]) for entry in server.status()["store"]["disks"]}
        assert found == {os.path.realpath(tmp_path / "data" / "pool"), os.path.realpath(tmp_path / "second")}
