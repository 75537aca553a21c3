"""A pool is restored from its archive: whole, at an earlier time, or one disk of it."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import threading
import time

import pytest
from centrifuge import Client

from harness import load, sign, wait
from harness.faulty import FaultyProxy
from harness.live import CONFIG, DEADLINE_S, api, live_server, restart, token
from harness.server import ROOT, binary, free_port, is_free
from harness.session import SubscriptionEvents, next_of, websocket
from test_archive import BUCKET, archive_settings, caught_up, fill, refused, status, store  # noqa: F401

POOL = {"pool_size": "1 GiB", "extent_size": "4 MiB"}


def run(server, *args, expect=0, **more):
    """Runs a command with the settings of the server; its output."""
    env = {**server.environment(), **more.pop("env", {})}
    done = subprocess.run([binary(), *args], capture_output=True, text=True, timeout=120, env=env, check=False)
    assert sign.SECRET not in done.stdout + done.stderr
    assert done.returncode == expect, (done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


def restore(server, *args, **more):
    return run(server, "restore", "--data", str(server.data), *args, **more)


def lose(server):
    """The machine is gone, with its disks."""
    if server.process.poll() is None:
        server.kill()
    shutil.rmtree(server.data)


def keys(server):
    pages = server.s3().get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
    return {item["Key"]: item["ETag"] for page in pages for item in page.get("Contents", [])}


@pytest.fixture
def gateway(tmp_path):
    """versitygw, if it is on the path: its port."""
    program = shutil.which("versitygw")
    if not program:
        pytest.skip("versitygw is not installed")
    port = free_port()
    (tmp_path / "gateway" / "backup").mkdir(parents=True)
    keys_of_gateway = ["--access", sign.ACCESS, "--secret", sign.SECRET]
    with subprocess.Popen([program, "--quiet", "--port", f"127.0.0.1:{port}", *keys_of_gateway, "posix", tmp_path / "gateway"]) as process:
        wait.until(lambda: not is_free(port), what="the gateway")
        yield port
        process.kill()


@pytest.fixture
def faulty(store):  # noqa: F811
    """Another server behind a proxy that spoils every tenth answer."""
    proxy = FaultyProxy(store.address, store.s3_port)
    yield proxy
    proxy.close()


def archive_of(kind, request, tmp_path):
    if kind == "file":
        (tmp_path / "backup").mkdir()
        return {"archive.to": f"file://{tmp_path}/backup", "archive.interval": "50 ms"}
    if kind == "steadfast":
        return archive_settings(request.getfixturevalue("store"))
    if kind == "faulty":
        endpoint = f"http://127.0.0.1:{request.getfixturevalue('faulty').port}"
        return {**archive_settings(request.getfixturevalue("store")), "archive.endpoint": endpoint}
    return {"archive.to": "s3://backup/chat", "archive.endpoint": f"http://127.0.0.1:{request.getfixturevalue('gateway')}",
            "archive.access_key": sign.ACCESS, "archive.secret_key": sign.SECRET, "archive.interval": "50 ms"}


class Writer(threading.Thread):
    """Puts and deletes objects until the server is gone, and knows when each change was answered."""

    def __init__(self, server, number):
        super().__init__()
        self.server, self.number, self.changes = server, number, {}

    def run(self):
        connection = self.server.connect()
        for n in range(100_000):
            key = f"w{self.number}/{n % 40:02}"
            body = None if n % 7 == 3 else load.content(n, 300_000 if n % 11 == 0 else 200 + n)
            try:
                method, data = ("DELETE", None) if body is None else ("PUT", body)
                code = self.server.request(method, f"/{BUCKET}/{key}", data, connection=connection)[0]
            except OSError:
                # It may have happened.
                self.changes.setdefault(key, []).append((None, body))
                return
            if code == 503:
                # So does one that waits for an archive which another server has taken.
                self.changes.setdefault(key, []).append((None, body))
                return
            assert code in (200, 204), code
            self.changes.setdefault(key, []).append((time.time() * 1000, body))

    def check(self, server, archived_ms):
        """What was answered before a time is there, or what came later."""
        for key, changes in self.changes.items():
            code, _, found = server.request("GET", f"/{BUCKET}/{key}")
            assert code in (200, 404), (key, code)
            known = [n for n, (at, _) in enumerate(changes) if at and at < archived_ms]
            since = changes[known[-1]:] if known else [(None, None), *changes]
            assert any(body == (found if code == 200 else None) for _, body in since), (key, code, len(found))

    def lost(self, server):
        """How many changes of each key are not there, at least and at most. Of several, compaction keeps the last."""
        lost = {}
        for key, changes in self.changes.items():
            code, _, found = server.request("GET", f"/{BUCKET}/{key}")
            # The first one may be a deletion.
            states = [None, *(body for _, body in changes)]
            there = [n for n, body in enumerate(states) if body == (found if code == 200 else None)]
            answered = [body for at, body in changes[there[-1] :] if at]
            lost[key] = (int(any(answered[-1:])), len(changes) - there[0])
        return lost


class Publisher:
    """Publishes numbers in one channel, and knows when each was answered."""

    def __init__(self):
        self.count, self.times, self.epochs = 0, [], set()

    def publish(self, server):
        """Publishes some. The time of one of the first: something is to be archived after it."""
        self.times = []
        for _ in range(150):
            self.epochs.add(api(server, "publish", channel="news", data=self.count)["result"]["epoch"])
            self.count += 1
            self.times.append(time.time() * 1000)
        return self.times[50]

    def check(self, server, archived_ms):
        """The channel is the old one up to a state, with another epoch. The next numbers follow."""
        answer = api(server, "history", channel="news", limit=10_000)["result"]
        found = [publication["data"] for publication in answer["publications"]]
        assert found == list(range(found[-1] + 1))[-1000:]
        known = [self.count - 150 + n for n, at in enumerate(self.times) if at < archived_ms]
        assert not known or found[-1] >= known[-1], (found[-1], known[-1])
        assert answer["epoch"] not in self.epochs
        self.count = found[-1] + 1


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["steadfast", "file", "versitygw", "faulty"])
def test_what_was_archived_survives_the_loss_of_the_machine(make_server, request, tmp_path, kind):
    settings = archive_of(kind, request, tmp_path)
    server = live_server(make_server, tmp_path, settings=settings, **POOL)
    server.s3().create_bucket(Bucket=BUCKET)
    upload = server.s3().create_multipart_upload(Bucket=BUCKET, Key="parts")["UploadId"]
    part = server.s3().upload_part(Bucket=BUCKET, Key="parts", UploadId=upload, PartNumber=1, Body=load.content(7, 5 << 20))
    publisher, tenure = Publisher(), 1
    for number in range(request.config.getoption("--rounds") if kind != "file" else 1):
        writers = [Writer(server, f"{number}.{n}") for n in range(3)]
        [writer.start() for writer in writers]
        early_ms = publisher.publish(server)
        wait.until(lambda: (status(server)["archived_ms"] or 0) > early_ms, 60, "something is archived")
        archived_ms = status(server)["archived_ms"]
        server.kill()
        lag_ms = time.time() * 1000 - archived_ms
        [writer.join() for writer in writers]
        lose(server)
        said = restore(server, expect=1)
        assert "s ago" in said and "--take-over" in said, said
        done = json.loads(restore(server, "--take-over", "--json"))
        print(f"round {number}: lag at the kill {lag_ms:.0f} ms, {done['objects']} objects, {done['bytes']} bytes")
        tenure += 1
        assert done["tenure"] == tenure and done["time_ms"] >= archived_ms and done["warnings"] == [], done
        restart(server)
        [writer.check(server, archived_ms) for writer in writers]
        publisher.check(server, archived_ms)
        uploads = server.s3().list_multipart_uploads(Bucket=BUCKET)["Uploads"]
        assert [one["UploadId"] for one in uploads] == [upload]
        # It continues the archive.
        tenure += 1
        assert caught_up(server)["tenure"] == tenure
    server.s3().complete_multipart_upload(Bucket=BUCKET, Key="parts", UploadId=upload, MultipartUpload={
        "Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]})
    caught_up(server)
    before = keys(server)
    said = run(server, "archive", "verify")
    assert said.startswith("no damage; "), said
    server.stop()
    lose(server)
    restore(server, "--take-over")
    restart(server)
    assert keys(server) == before
    if kind == "faulty":
        counts = request.getfixturevalue("faulty").counts
        assert all(counts.values()), counts


def test_sessions_are_told_what_was_lost(make_server, store, tmp_path):  # noqa: F811
    server = live_server(make_server, tmp_path, settings=archive_settings(store), **POOL)

    async def in_thread(call, *args):
        return await asyncio.get_running_loop().run_in_executor(None, call, *args)

    async def get_token():
        return token()

    def publish_without_archive():
        caught_up(server)
        store.kill()
        api(server, "publish", channel="news", data="lost")

    def replace_machine():
        lose(server)
        store.start()
        restore(server, "--take-over")

    async def run_session():
        client = Client(websocket(server), get_token=get_token, min_reconnect_delay=0.05, max_reconnect_delay=0.2)
        await client.connect()
        events = SubscriptionEvents()
        await client.new_subscription("news", events=events).subscribe()
        await next_of(events.subscribed)
        api(server, "publish", channel="news", data="first")
        await in_thread(publish_without_archive)
        assert [await next_of(events.publications) for _ in range(2)] == ["first", "lost"]
        await in_thread(replace_machine)
        await in_thread(restart, server)
        back = await asyncio.wait_for(events.subscribed.get(), DEADLINE_S)
        assert back.was_recovering and not back.recovered
        api(server, "publish", channel="news", data="new")
        assert await next_of(events.publications) == "new"
        found = api(server, "history", channel="news", limit=10)["result"]["publications"]
        assert [publication["data"] for publication in found] == ["first", "new"]
        await client.disconnect()

    asyncio.run(run_session())


def test_an_earlier_state_becomes_another_pool(make_server, store):  # noqa: F811
    server = make_server(settings=archive_settings(store), **POOL)
    server.s3().create_bucket(Bucket=BUCKET)
    fill(server, 30)
    first = caught_up(server)
    before = keys(server)
    wait.until(lambda: time.time() * 1000 > first["looked_ms"] + 1000, what="the next second")
    # A wrong command of a user.
    for key in before:
        server.s3().delete_object(Bucket=BUCKET, Key=key)
    # More than fits into a head, so that the state before has a segment or a base of its own.
    fill(server, 60, start=1000)
    caught_up(server)
    points = json.loads(run(server, "archive", "points", "--json"))
    assert points["newest_ms"] > first["archived_ms"] >= points["points"][0]["time_ms"], points
    said = run(server, "archive", "status")
    assert "owner " in said and "newest state" in said and "pool" in said, said

    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(first["looked_ms"] / 1000 + 1))
    other = make_server("other", settings=archive_settings(store), start=False, **POOL)
    restore(other, "--at", "2020-01-01", expect=1)
    assert not (other.data / "restoring").exists()
    said = restore(other, "--at", at)
    assert "it is another pool now" in said, said
    code, log = refused(other)
    assert code == 3 and "is the archive of another pool" in log, log
    other.settings["archive.to"] = "s3://backup/other"
    other.start()
    assert set(keys(other)) <= set(before) and caught_up(other)["tenure"] == 1
    # The first one still owns its archive.
    fill(server, 5, start=2000)
    assert caught_up(server)["tenure"] == 1


def test_the_drill_restores_and_verifies_and_leaves_nothing(make_server, tmp_path):
    archive, room, path = tmp_path / "archive", tmp_path / "room", tmp_path / "bin"
    [made.mkdir() for made in (archive, room, path)]
    server = make_server(settings={"archive.to": f"file://{archive}"}, **POOL)
    server.s3().create_bucket(Bucket=BUCKET)
    fill(server, 30)
    server.s3().put_object(Bucket=BUCKET, Key="large", Body=load.content(5, 7_000_000))
    caught_up(server)
    # A copy as on a disk in a drawer.
    drawer = tmp_path / "drawer"
    shutil.copytree(archive, drawer)
    (path / "steadfast").symlink_to(binary())
    script = ROOT / "examples" / "restore-drill" / "restore-drill"

    def drill(**more):
        env = {"PATH": f"{path}:{os.environ['PATH']}", **more}
        done = subprocess.run([script, f"file://{drawer}", room], capture_output=True, text=True, timeout=120, env=env, check=False)
        assert list(room.iterdir()) == []
        return done.returncode, done.stdout + done.stderr

    code, said = drill()
    assert code == 0 and "verified: 31 objects" in said, said
    assert drill(DRILL_AGE_MAX="-1")[0] == 1
    piece = next(file for file in sorted((drawer / "p").rglob("*")) if file.is_file())
    content = bytearray(piece.read_bytes())
    content[-1] ^= 1
    piece.write_bytes(content)
    code, said = drill()
    assert code == 1 and piece.name in said, said
    # The owner has noticed nothing.
    fill(server, 3, start=100)
    assert caught_up(server)["tenure"] == 1


def test_an_interrupted_restore_continues(make_server, store):  # noqa: F811
    server = make_server(settings=archive_settings(store), **POOL)
    server.s3().create_bucket(Bucket=BUCKET)
    for n in range(12):
        server.s3().put_object(Bucket=BUCKET, Key=f"big{n}", Body=load.content(n, 5_000_000))
    caught_up(server)
    before = keys(server)
    lose(server)
    command = [binary(), "restore", "--data", str(server.data), "--take-over"]
    mark = server.data / "restoring"
    with subprocess.Popen(command, env=server.environment(), stdout=subprocess.DEVNULL) as begun:
        wait.until(lambda: mark.exists() and json.loads(mark.read_text())["state"], 60, "it begins")
        os.kill(store.pid, signal.SIGSTOP)
        begun.kill()
    os.kill(store.pid, signal.SIGCONT)
    code, log = refused(server)
    assert code == 1 and "was interrupted" in log, log
    assert "was interrupted" in run(server, "format", "--data", str(server.data), expect=1)
    assert "was interrupted" in restore(server, "--at", "2030-01-01", expect=1)
    # Another file in the place of the one that was begun is not touched.
    pool = server.data / "pool"
    if pool.exists():
        pool.replace(server.data / "begun")
    pool.write_bytes(b"something else" * 10_000)
    assert "it holds" in restore(server, expect=1)
    pool.unlink()
    if (server.data / "begun").exists():
        (server.data / "begun").replace(pool)
    done = json.loads(restore(server, "--json"))
    assert done["continued"] and done["tenure"] == 2 and not mark.exists(), done
    assert "pool" in restore(server, "--take-over", expect=1), "it holds a pool now"
    server.start()
    assert keys(server) == before
    for n in range(12):
        assert server.request("GET", f"/{BUCKET}/big{n}")[2] == load.content(n, 5_000_000)
    assert caught_up(server)["tenure"] == 3


def test_one_disk_of_several(make_server, store):  # noqa: F811
    disks = ["d0", "d1", "d2"]
    settings = {**archive_settings(store), "data.disks": ",".join(disks)}
    server = make_server(settings=settings, pool_size="512 MiB", extent_size="4 MiB")
    server.s3().create_bucket(Bucket=BUCKET)
    fill(server, 100)
    caught_up(server)
    before = keys(server)
    server.stop()
    (server.data / "d1").unlink()
    lost = str(server.data / "d1")
    assert "has no disk d9" in restore(server, "--disk", "d9", expect=1)
    stranger = make_server("stranger", settings=settings, start=False)
    assert "not the archive of this pool" in run(stranger, "restore", "--data", str(stranger.data), "--disk", lost, "--set",
                                                 f"data.disks=d0,d2,{lost}", expect=1)
    said = restore(server, "--disk", lost)
    assert f"{lost}: restored onto {lost}" in said, said
    server.start()
    assert keys(server) == before
    fill(server, 100, start=100)
    caught_up(server)
    after = keys(server)
    # A disk with another name in its place; here the others have more than the archive.
    store.kill()
    fill(server, 30, start=300)
    server.kill()
    store.start()
    (server.data / "d2").unlink()
    server.settings["data.disks"] = "d0,d1,new"
    restore(server, "--disk", str(server.data / "d2"))
    server.start()
    found = keys(server)
    assert found.items() >= after.items() and len(found) > len(after)
    caught_up(server)
    # All of it is in the archive again.
    server.stop()
    lose(server)
    restore(server, "--take-over")
    server.start()
    assert keys(server) == found


def test_what_cannot_be_restored_is_named(make_server, store, tmp_path):  # noqa: F811
    settings = archive_settings(store)
    empty = make_server("empty", settings={**settings, "archive.to": "s3://backup/empty"}, start=False)
    assert "there is no archive at s3://backup/empty" in restore(empty, expect=1)
    wrong = make_server("wrong", settings={**settings, "archive.secret_key": "a-wrong-secret-0123456789"}, start=False)
    said = restore(wrong, expect=1)
    assert "refused" in said and "wrong-secret" not in said, said
    assert "give the URL" in run(make_server("none", start=False), "archive", "status", expect=1)

    server = make_server(settings=settings, **POOL)
    server.s3().create_bucket(Bucket=BUCKET)
    fill(server, 39)
    server.s3().put_object(Bucket=BUCKET, Key="large", Body=bytes(40_000_000))
    caught_up(server)
    server.stop()
    lose(server)
    many = make_server("many", settings={**settings, "data.disks": "a,b"}, start=False)
    said = restore(many, "--take-over", expect=1)
    assert "1 disk of the archived pool" in said and "names 2 disks" in said, said
    small = make_server("small", settings=settings, start=False, pool_size="32 MiB")
    assert "needs" in restore(small, "--take-over", expect=1)
    # Neither has taken it over.
    url = [settings["archive.to"], "--endpoint", settings["archive.endpoint"]]
    keys_of_store = {"AWS_ACCESS_KEY_ID": sign.ACCESS, "AWS_SECRET_ACCESS_KEY": sign.SECRET}
    bare = make_server("bare", start=False)
    assert "tenure 1" in run(bare, "archive", "status", *url, env=keys_of_store)
    pieces = [item["Key"] for item in store.s3().list_objects_v2(Bucket="backup", Prefix="chat/p/")["Contents"]]
    whole = store.s3().get_object(Bucket="backup", Key=pieces[0])["Body"].read()
    store.s3().put_object(Bucket="backup", Key=pieces[0], Body=whole[:-1] + bytes([whole[-1] ^ 1]))
    said = run(bare, "archive", "verify", *url, env=keys_of_store, expect=3)
    assert f"damage: {pieces[0].removeprefix('chat/')}" in said and "1 DAMAGED" in said, said
    store.s3().put_object(Bucket="backup", Key=pieces[0], Body=whole)

    restore(server, "--take-over")
    # Archives hold no credentials, and clients have the old ones.
    without = {name: value for name, value in server.environment().items() if "ACCESS_KEY" not in name or "ARCHIVE" in name}
    done = subprocess.run([binary(), "serve", "--data", str(server.data), "--s3-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"],
                          env={k: v for k, v in without.items() if k != "STEADFAST_SECRET_KEY"}, capture_output=True, text=True,
                          timeout=60, check=False)
    assert done.returncode == 1 and "archives hold no credentials" in done.stderr, done.stderr
    server.start()
    assert len(keys(server)) == 40
