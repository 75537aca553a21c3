"""The archive: the log follows into another server's bucket, or into a directory."""

import json
import subprocess
import time

import pytest
from harness import sign, wait
from harness.live import live_server
from harness.server import free_port

BUCKET = "media"


def archive_settings(store, prefix="chat"):
    """Settings of a server with an archive in a bucket of another server."""
    return {"archive.to": f"s3://backup/{prefix}", "archive.endpoint": f"http://{store.address}:{store.s3_port}",
            "archive.access_key": sign.ACCESS, "archive.secret_key": sign.SECRET, "archive.interval": "50 ms"}


@pytest.fixture
def store(make_server):
    """Another server, with the bucket for archives. It keeps its port."""
    server = make_server("store", start=False)
    server.s3_listen = f"{server.address}:{free_port()}"
    server.start()
    server.s3().create_bucket(Bucket="backup")
    return server


def status(server):
    return json.loads(server.admin("/status")[1])["archive"]


def caught_up(server):
    begun_ms = time.time() * 1000

    def whole():
        now = status(server)
        assert now["error"] is None, now
        # The lag is that of the last look at the logs.
        return now["looked_ms"] > begun_ms and now["following"] and now["lag_bytes"] == 0 and now["lag_seconds"] == 0

    wait.until(whole, 30, "the archive catches up")
    return status(server)


def fill(server, count, start=0):
    s3 = server.s3()
    for n in range(start, start + count):
        s3.put_object(Bucket=BUCKET, Key=f"k{n}", Body=bytes([n % 256]) * (300_000 if n % 10 == 0 else 1000 + n))


def names(store, prefix="chat/"):
    pages = store.s3().get_paginator("list_objects_v2").paginate(Bucket="backup", Prefix=prefix)
    return {item["Key"]: item["ETag"] for page in pages for item in page.get("Contents", [])}


def refused(server):
    """The exit code of a server that does not start, and its log."""
    server.start(wait_ready=False)
    return server.process.wait(timeout=60), server.log()


def test_the_log_follows_into_another_server(make_server, store):
    server = make_server(settings=archive_settings(store))
    server.s3().create_bucket(Bucket=BUCKET)
    fill(server, 60)
    first = caught_up(server)
    assert first["tenure"] == 1 and first["cuts"] > 0 and first["failures"] == 0, first
    assert first["to"].startswith("s3://backup/chat at http://") and first["archived_ms"] > 0
    there = names(store)
    assert {"chat/archive", "chat/head"} <= there.keys(), there
    assert any(name.startswith("chat/base/") for name in there) and any(name.startswith("chat/p/") for name in there)
    # An idle pool sends nothing.
    counts = [status(server)[key] for key in ("creates", "replaces", "reads")]
    time.sleep(0.5)
    assert [status(server)[key] for key in ("creates", "replaces", "reads")] == counts
    shown = server.command("status", "--data", str(server.data)).stdout
    assert "archive      s3://backup/chat at " in shown and "behind" in shown, shown

    server.kill()
    server.start()
    fill(server, 30, start=60)
    second = caught_up(server)
    assert second["tenure"] == 2 and second["version"] > first["version"], second
    # What is known is not sent again.
    assert second["sent_bytes"] < 3_000_000, second
    after = names(store)
    # A piece that no state named yet when the server was killed is deleted.
    manifests = {name: tag for name, tag in there.items() if name.startswith(("chat/archive", "chat/seg", "chat/base"))}
    assert after.items() >= manifests.items()
    fill(server, 1, start=500)
    server.stop()
    head = names(store)["chat/head"]
    server.start()
    assert caught_up(server)["tenure"] == 3 and names(store)["chat/head"] != head


@pytest.mark.parametrize("kind", ["bucket", "directory"])
def test_a_start_deletes_what_an_interrupted_one_left(make_server, store, tmp_path, kind):
    disk = "0" * 32
    left = ["seg/1.9999", f"p/{disk}/3.4.5/4096.1.9999"]
    others = ["notes.txt", "read me.txt", ".keep", "seg/9.1", f"p/{disk}/3.4.5/4096.9.1"]
    directory = tmp_path / "backup"
    (directory / "chat").mkdir(parents=True)
    in_directory = {"archive.to": f"file://{directory}/chat", "archive.interval": "50 ms"}
    server = make_server(settings=archive_settings(store) if kind == "bucket" else in_directory)

    def put(name):
        if kind == "bucket":
            store.s3().put_object(Bucket="backup", Key=f"chat/{name}", Body=b"left")
            return
        (directory / "chat" / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / "chat" / name).write_bytes(b"left")

    def there():
        if kind == "bucket":
            return names(store)
        return {str(found.relative_to(directory)) for found in directory.rglob("*") if found.is_file()}

    server.s3().create_bucket(Bucket=BUCKET)
    fill(server, 30)
    assert caught_up(server)["oldest_ms"] > 0
    for name in left + others:
        put(name)
    server.kill()
    server.start()
    wait.until(lambda: status(server)["deleted"] >= 2, 30, "they are deleted")
    assert not any(f"chat/{name}" in there() for name in left) and all(f"chat/{name}" in there() for name in others)
    caught_up(server)
    shown = server.command("archive", "verify", *[f"--set={key}={value}" for key, value in server.settings.items()])
    assert shown.stdout.startswith("no damage; "), shown


def test_clients_do_not_notice_that_the_store_is_away(make_server, store, tmp_path):
    server = live_server(make_server, tmp_path, settings={**archive_settings(store), "archive.lag_warning": "1 s",
                                                          "archive.start_wait": "1 s"})
    server.s3().create_bucket(Bucket=BUCKET)
    fill(server, 20)
    caught_up(server)
    store.kill()
    fill(server, 40, start=20)
    wait.until(lambda: status(server)["failing"] and status(server)["lag_seconds"] > 1, 30, "the lag grows")
    code, health = server.admin("/health/ready")
    assert code == 200 and "the archive is" in health and "behind" in health, health
    # Nor does a start need the store.
    server.kill()
    server.start()
    assert server.s3().get_object(Bucket=BUCKET, Key="k50")["ContentLength"] == 300_000
    assert status(server)["state"] == "claiming"
    fill(server, 10, start=60)
    store.start()
    done = caught_up(server)
    assert done["tenure"] == 2, done
    assert "behind" not in server.admin("/health/ready")[1]


def test_one_server_owns_an_archive(make_server, store, tmp_path):
    server = make_server(settings=archive_settings(store))
    server.s3().create_bucket(Bucket=BUCKET)
    fill(server, 5)
    caught_up(server)
    # Another pool.
    other = make_server("other", settings=archive_settings(store), start=False)
    code, log = refused(other)
    assert code == 3 and "is the archive of another pool" in log, log
    assert sign.SECRET not in log
    # The same pool on another machine: this one must end.
    server.stop()
    subprocess.run(["cp", "-r", "--sparse=always", server.data, tmp_path / "copy"], check=True)
    server.start()
    caught_up(server)
    copy = make_server("copy", settings=archive_settings(store), start=False)
    code, log = refused(copy)
    assert code == 4 and "has a new owner" in log, log


def test_a_directory(make_server, tmp_path):
    missing = make_server("missing", settings={"archive.to": f"file://{tmp_path}/backup"}, start=False)
    code, log = refused(missing)
    assert code == 1 and "create the directory" in log, log
    (tmp_path / "backup").mkdir()
    server = make_server(settings={"archive.to": f"file://{tmp_path}/backup", "archive.interval": "50 ms"})
    server.s3().create_bucket(Bucket=BUCKET)
    fill(server, 30)
    caught_up(server)
    server.kill()
    server.start()
    assert caught_up(server)["tenure"] == 2
    assert (tmp_path / "backup" / "head").stat().st_size > 0
