"""A standby follows an archive onto disks of its own, takes it over, and serves the pool."""

import json
import random
import shutil
import subprocess
import time
from collections import Counter

import pytest

from harness import load, wait
from harness.live import api, live_server
from harness.server import binary, free_port
from test_archive import BUCKET, archive_settings, caught_up, fill, refused, store  # noqa: F401
from test_restore import POOL, Publisher, Writer, keys, run

SHOWN = "standby: admin="


def standby_of(make_server, owner, name="standby", tmp_path=None, **more):
    """A standby with the keys of the owner; not started."""
    if tmp_path:
        server = live_server(make_server, tmp_path, name=name, start=False, settings={**owner.settings, **more}, **POOL)
    else:
        server = make_server(name, settings={**owner.settings, **more}, start=False, **POOL)
    server.args = [*server.args, "--standby"]
    server.data.mkdir(mode=0o700, parents=True)
    shutil.copy(owner.data / "seal.key", server.data)
    server.admin_listen = f"{server.address}:{free_port()}"
    return server


def start(server):
    server.start(wait_ready=False)
    server.admin_port = int(server.admin_listen.rpartition(":")[2])
    wait.until(lambda: SHOWN in server.log() or server.process.poll() is not None, 60, "the standby starts")
    assert server.process.poll() is None, server.log()
    return server


def progress(server):
    return server.status()["standby"]


def follows(server, owner):
    """Waits until the standby has all that its owner has answered."""
    archived = caught_up(owner)

    def is_current():
        now = progress(server)
        assert not now.get("error") or now["state"] == "waiting", now
        return now["state"] == "following" and now["version"] >= archived["version"]

    wait.until(is_current, 60, "the standby follows")
    return progress(server)


def promote(server, *args, expect=0):
    return run(server, "promote", "--data", str(server.data), *args, expect=expect)


def aside_of(server):
    """The lines of what only a former owner has."""
    command = [binary(), "archive", "aside", "--json", "--data", str(server.data)]
    done = subprocess.run(command, env=server.environment(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == (3 if done.stdout else 0), done
    return done.stdout.splitlines()


def serves(server):
    server.wait_ready()
    assert server.admin("/health/ready")[0] == 200


def test_a_standby_follows_and_is_promoted(make_server, store):  # noqa: F811
    owner = make_server("owner", settings=archive_settings(store), **POOL)
    standby = start(standby_of(make_server, owner))
    owner.s3().create_bucket(Bucket=BUCKET)
    fill(owner, 60)
    first = follows(standby, owner)
    assert first["tenure"] == 1 and first["copied_bytes"] > 0 and first["failing"] is None, first
    code, text = standby.admin("/health/ready")
    assert code == 503 and "standby of " in text and "behind" in text, text
    shown = run(standby, "status", "--data", str(standby.data), expect=3)
    assert "standby      of s3://backup/chat at " in shown and "it has the state of" in shown, shown
    assert standby.metric("steadfast_standby_lag_seconds") < 30 and standby.metric("steadfast_ready") == 0
    assert "has no pool before it is promoted" in run(standby, "scrub", "status", "--data", str(standby.data), expect=1)

    # A restart copies only what is new, and nothing else may use the directory.
    standby.kill()
    before = keys(owner)
    fill(owner, 5, start=100)
    for command in (["restore"], ["format"]):
        assert "this is a standby" in run(standby, *command, "--data", str(standby.data), expect=1)
    standby.args.remove("--standby")
    code, log = refused(standby)
    assert code == 1 and "this is a standby" in log, log
    standby.args.append("--standby")
    start(standby)
    again = follows(standby, owner)
    assert 0 < again["copied_bytes"] < first["copied_bytes"] / 2, (first, again)

    assert "seems to be alive" in promote(standby, expect=1)
    fill(owner, 5, start=200)
    caught_up(owner)
    before = keys(owner)
    owner.kill()
    said = promote(standby, "--force")
    assert "tenure 2" in said and "new epochs" in said and f"the pool is served: {len(before)} objects" in said, said
    serves(standby)
    assert keys(standby) == before
    assert "is no standby" in promote(standby, expect=1)
    fill(standby, 5, start=300)
    assert caught_up(standby)["tenure"] == 3
    code, log = refused(owner)
    assert code == 4 and "has a new owner" in log and "archive aside" in log, log
    assert aside_of(owner) == []
    # Without its archive, the former pool can be read and copied.
    owner.settings["archive.to"] = None
    owner.start()
    assert keys(owner) == before
    owner.kill()
    # The same command serves its own pool from now on.
    assert standby.stop() == 0
    standby.start()
    assert len(keys(standby)) == len(before) + 5
    assert not any((standby.data / name).exists() for name in ("standby", "standby.head", "restoring"))


def under_load(make_server, servers, number, tmp_path):
    """The last server with clients that write, and a standby of it."""
    standby = start(standby_of(make_server, servers[0], f"standby{number}", tmp_path))
    writers = [Writer(servers[-1], f"{number}.{n}") for n in range(3)]
    [writer.start() for writer in writers]
    return servers[-1], standby, writers


@pytest.mark.timeout(1800)
def test_what_was_archived_survives_a_promotion_under_load(make_server, store, tmp_path, request):  # noqa: F811
    servers = [live_server(make_server, tmp_path, name="owner", settings=archive_settings(store), **POOL)]
    servers[0].s3().create_bucket(Bucket=BUCKET)
    publisher = Publisher()
    for number in range(request.config.getoption("--rounds")):
        owner, standby, writers = under_load(make_server, servers, number, tmp_path)
        early_ms = publisher.publish(owner)
        wait.until(lambda: (progress(standby).get("copied_ms") or 0) > early_ms, 60, "the standby follows")
        archived_ms = progress(standby)["copied_ms"]
        if number % 2:
            owner.kill()
        # If it lives, it ends when it learns of it.
        promote(standby, "--force")
        assert number % 2 or owner.process.wait(60) == 4
        [writer.join() for writer in writers]
        serves(standby)
        [writer.check(standby, archived_ms) for writer in writers]
        published = publisher.count
        publisher.check(standby, archived_ms)
        aside = Counter(json.loads(line)["what"] for line in aside_of(owner))
        for key, (least, most) in ((key, lost) for writer in writers for key, lost in writer.lost(standby).items()):
            listed = sum(aside.pop(f"{what}{BUCKET}/{key}", 0) for what in ("object ", "deletion of object "))
            assert least <= listed <= most, (key, least, listed, most)
        listed = [what for what in aside if what.startswith("publication ")]
        assert len(listed) == len(aside) == published - publisher.count, (aside, published, publisher.count)
        servers.append(standby)
    said = run(servers[-1], "archive", "verify")
    assert said.startswith("no damage; "), said


ARCHIVED = {"archive.acknowledge": "archived"}


def writes_wait(server):
    wait.until(lambda: server.status()["archive"]["writes_wait"], 60, "writes wait for the archive")


@pytest.mark.timeout(1800)
def test_nothing_answered_is_lost_where_writes_wait_for_the_archive(make_server, store, tmp_path, request):  # noqa: F811
    settings = {**archive_settings(store), **ARCHIVED}
    servers = [live_server(make_server, tmp_path, name="owner", settings=settings, **POOL)]
    servers[0].s3().create_bucket(Bucket=BUCKET)
    writes_wait(servers[0])
    sent, position = 0, None
    for number in range(request.config.getoption("--rounds")):
        owner, standby, writers = under_load(make_server, servers, number, tmp_path)
        for _ in range(30):
            position = api(owner, "publish", channel="news", data=sent)["result"]
            sent += 1
        if number % 2:
            owner.kill()
        said = json.loads(promote(standby, "--force", "--json"))
        assert said["complete"] is True, said
        assert number % 2 or owner.process.wait(60) == 4
        [writer.join() for writer in writers]
        serves(standby)
        [writer.check(standby, float("inf")) for writer in writers]
        answer = api(standby, "history", channel="news", limit=10_000)["result"]
        assert [publication["data"] for publication in answer["publications"]] == list(range(sent))[-1000:]
        # Clients continue where they were.
        assert (answer["epoch"], answer["offset"]) == (position["epoch"], position["offset"])
        writes_wait(standby)
        servers.append(standby)
    # Without the time that a stop gives a store which is gone.
    servers[-1].kill()


def test_writes_wait_for_an_archive_that_is_away(make_server, store, tmp_path):  # noqa: F811
    settings = {**archive_settings(store), **ARCHIVED, "store.write_wait": "1 s", "archive.start_wait": "1 s"}
    server = live_server(make_server, tmp_path, settings=settings, **POOL)
    server.s3().create_bucket(Bucket=BUCKET)
    writes_wait(server)
    fill(server, 5)
    first = api(server, "publish", channel="news", data=1)["result"]
    store.kill()
    begun = time.monotonic()
    code, _, body = server.request("PUT", f"/{BUCKET}/late", b"late")
    assert code == 503 and b"SlowDown" in body and b"archive" in body and time.monotonic() - begun < 10, body
    # Nothing more is accepted, and what was accepted is not shown.
    assert api(server, "publish", channel="news", data=2)["error"]["code"] == 100
    assert server.request("GET", f"/{BUCKET}/late")[0] == 404
    assert server.request("GET", f"/{BUCKET}/k1")[0] == 200
    assert api(server, "history", channel="news", limit=10)["result"]["offset"] == first["offset"]
    wait.until(lambda: "behind" in server.admin("/health/ready")[1], 30, "it warns")
    # A crash changes nothing: it does not serve what it may have shown to nobody.
    server.kill()
    code, log = refused(server)
    assert code == 1 and "may have another owner" in log, log
    store.start()
    server.start()
    assert server.request("GET", f"/{BUCKET}/late")[2] == b"late"
    assert api(server, "publish", channel="news", data=3)["result"]["epoch"] == first["epoch"]
    assert server.status()["archive"]["writes_wait"]
    # It comes back while the server runs.
    store.kill()
    assert server.request("PUT", f"/{BUCKET}/again", b"again")[0] == 503
    store.start()
    wait.until(lambda: server.request("PUT", f"/{BUCKET}/more", b"more")[0] == 200, 60, "writes continue")
    assert server.request("GET", f"/{BUCKET}/again")[2] == b"again"
    # A stop does not wait for it longer than for requests.
    store.kill()
    assert server.request("PUT", f"/{BUCKET}/last", b"last")[0] == 503
    begun = time.monotonic()
    assert server.stop() == 0 and time.monotonic() - begun < 30, server.log()
    store.start()
    server.start()
    assert server.request("GET", f"/{BUCKET}/last")[2] == b"last"
    # Its archive cannot be left while another owner of it would continue the channels.
    assert server.stop() == 0
    server.settings["archive.to"] = None
    code, log = refused(server)
    assert code == 1 and "before you leave it" in log, log
    server.settings.update({**settings, "archive.acknowledge": "local"})
    server.start()
    assert not server.status()["archive"]["writes_wait"]
    assert server.stop() == 0
    server.settings["archive.to"] = None
    server.start()
    assert server.request("GET", f"/{BUCKET}/last")[2] == b"last"


@pytest.mark.timeout(1800)
def test_a_promotion_that_is_killed_continues(make_server, store, request):  # noqa: F811
    owner = make_server("owner", settings=archive_settings(store), **POOL)
    owner.s3().create_bucket(Bucket=BUCKET)
    fill(owner, 40)
    caught_up(owner)
    before = keys(owner)
    owner.kill()
    chance = random.Random(request.config.getoption("--rounds"))
    tenure = 1
    for number in range(4 * request.config.getoption("--rounds")):
        standby = standby_of(make_server, owner, f"standby{number}")
        start(standby)
        wait.until(lambda: progress(standby).get("copied_ms"), 60, "it has a copy")
        command = [binary(), "promote", "--data", str(standby.data), "--force"]
        with subprocess.Popen(command, env=standby.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as asked:
            time.sleep(chance.uniform(0, 0.6))
            standby.kill()
            asked.wait(60)
        standby.start(wait_ready=False)
        marks = [name for name in ("standby", "restoring") if (standby.data / name).exists()]
        if standby_phase(standby) == "following":
            # It was killed before it had claimed the archive.
            promote(standby, "--force")
        serves(standby)
        assert keys(standby) == before, marks
        assert caught_up(standby)["tenure"] > tenure
        tenure = caught_up(standby)["tenure"]
        standby.kill()


def standby_phase(server):
    """What a server does that may be a standby: its state there, once that is settled."""
    def settled():
        try:
            shown = server.status()
        except OSError:
            return None
        if shown["ready"]:
            return "ready"
        state = shown.get("standby", {}).get("state")
        return state if state == "following" and shown["standby"]["copied_ms"] else None

    return wait.until(settled, 60, "it follows or serves")


def test_a_server_that_stops_hands_over_everything(make_server, store, tmp_path):  # noqa: F811
    owner = live_server(make_server, tmp_path, name="owner", settings=archive_settings(store), **POOL)
    owner.s3().create_bucket(Bucket=BUCKET)
    standby = start(standby_of(make_server, owner, "standby", tmp_path))
    follows(standby, owner)
    positions = [api(owner, "publish", channel="news", data=n)["result"] for n in range(20)]
    fill(owner, 20)
    assert owner.stop() == 0
    begun = time.monotonic()
    said = json.loads(promote(standby, "--json"))
    assert said["complete"] is True and time.monotonic() - begun < 5, said
    serves(standby)
    assert len(keys(standby)) == 20
    answer = api(standby, "history", channel="news", limit=100)["result"]
    assert [publication["data"] for publication in answer["publications"]] == list(range(20))
    # Clients continue where they were.
    assert (answer["epoch"], answer["offset"]) == (positions[-1]["epoch"], positions[-1]["offset"])
    assert api(standby, "publish", channel="news", data="more")["result"] == {"epoch": answer["epoch"], "offset": 21}
    code, log = refused(owner)
    assert code == 4 and "has a new owner" in log, log


def test_several_disks_and_one_that_joins(make_server, store):  # noqa: F811
    settings = {**archive_settings(store), "data.disks": "d0,d1"}
    owner = make_server("owner", settings=settings, **POOL)
    owner.s3().create_bucket(Bucket=BUCKET)
    fill(owner, 60)
    standby = start(standby_of(make_server, owner))
    follows(standby, owner)
    run(owner, "disk", "add", str(owner.data / "d2"), "--data", str(owner.data))
    fill(owner, 20, start=100)
    caught_up(owner)
    assert standby.process.wait(60) == 1 and "there is no place for it" in standby.log(), standby.log()
    standby.settings["data.disks"] = "d0,d1,d2"
    start(standby)
    follows(standby, owner)
    before = keys(owner)
    owner.kill()
    said = json.loads(promote(standby, "--force", "--json"))
    assert said["tenure"] == 2 and said["complete"] is False, said
    serves(standby)
    assert keys(standby) == before
    for n in range(60):
        assert standby.request("GET", f"/{BUCKET}/k{n}")[2] == bytes([n]) * (300_000 if n % 10 == 0 else 1000 + n)


def test_what_cannot_become_a_standby_is_refused(make_server, store):  # noqa: F811
    owner = make_server("owner", settings=archive_settings(store), **POOL)
    owner.s3().create_bucket(Bucket=BUCKET)
    caught_up(owner)
    no_key = standby_of(make_server, owner, "no-key")
    (no_key.data / "seal.key").unlink()
    code, log = refused(no_key)
    assert code == 1 and "copy seal.key" in log and not (no_key.data / "pool").exists(), log
    no_archive = standby_of(make_server, owner, "no-archive", **{"archive.to": None})
    code, log = refused(no_archive)
    assert code == 1 and "name it in archive.to" in log, log
    small = standby_of(make_server, owner, "other-disks", **{"data.disks": "d0,d1"})
    code, log = refused(small)
    assert code == 1 and "names 2 disks" in log and not (small.data / "standby").exists(), log
    # Another archive at the place of the one that it follows.
    standby = start(standby_of(make_server, owner))
    follows(standby, owner)
    standby.kill()
    standby.settings["archive.to"] = "s3://backup/other"
    other = make_server("other", settings=archive_settings(store, "other"), **POOL)
    other.s3().create_bucket(Bucket=BUCKET)
    caught_up(other)
    code, log = refused(standby)
    assert code == 1 and "this standby follows s3://backup/chat" in log, log


def test_a_standby_waits_for_its_archive(make_server, store):  # noqa: F811
    owner = make_server("owner", settings=archive_settings(store), start=False, **POOL)
    owner.data.mkdir(mode=0o700)
    (owner.data / "seal.key").write_text("")
    standby = standby_of(make_server, owner)
    (owner.data / "seal.key").unlink()
    standby.settings["seal.key"] = "0" * 64
    start(standby)
    wait.until(lambda: "there is no archive" in standby.admin("/health/ready")[1], 60, "it waits")
    assert "there is no archive" in promote(standby, expect=1)
    owner.settings["seal.key"] = "0" * 64
    owner.start()
    owner.s3().create_bucket(Bucket=BUCKET)
    follows(standby, owner)
    # The store goes away and comes back.
    store.kill()
    owner.s3().put_object(Bucket=BUCKET, Key="while away", Body=load.content(1, 1000))
    wait.until(lambda: progress(standby)["failing"], 60, "it knows")
    store.start()
    follows(standby, owner)
    assert progress(standby)["failing"] is None
    owner.kill()
    promote(standby, "--force")
    serves(standby)
    assert standby.request("GET", f"/{BUCKET}/while away")[2] == load.content(1, 1000)
