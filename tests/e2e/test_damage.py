"""Damage to the pool at rest: `verify` finds it, and the server never serves it."""

import json
import mmap
import random
import time

import pytest

from harness import load, wait


def pool_of(server):
    return server.data / "pool"


@pytest.fixture
def stopped(make_server):
    """A stopped server with some objects, small and large, and the places of their bytes in the
    pool."""
    server = make_server(pool_size="64 MiB", extent_size="2 MiB")
    server.s3().create_bucket(Bucket="damage")
    rng = random.Random(11)
    objects = {}
    for number in range(60):
        size = rng.choice([200, 900, 4_096, 20_000, 100_000, 600_000])
        objects[f"{number:03}"] = data = load.content(number + 500, size)
        assert server.request("PUT", f"/damage/{number:03}", data)[0] == 200
    assert server.stop() == 0
    return server, objects


def locate(image, data, at):
    """The offset in the pool of byte `at` of an object."""
    start = max(0, min(at, len(data) - 64))
    found = image.find(data[start:start + 64])
    assert found >= 0, "the object's bytes are not in the pool"
    return found + at - start


def verify(server):
    return server.command("verify", "--data", str(server.data))


def test_verify_finds_every_flip(stopped):
    server, objects = stopped
    clean = verify(server)
    assert clean.returncode == 0, clean.stdout + clean.stderr
    rng = random.Random(12)
    missed = []
    with open(pool_of(server), "r+b") as file, mmap.mmap(file.fileno(), 0) as image:
        for number in range(100):
            data = objects[rng.choice(sorted(objects))]
            offset, mask = locate(image, data, rng.randrange(len(data))), 1 << rng.randrange(8)
            image[offset] ^= mask
            image.flush()
            if verify(server).returncode == 0:
                missed.append((number, offset))
            image[offset] ^= mask
        image.flush()
    assert not missed, f"{len(missed)} of 100 flips were not found: {missed}"
    assert verify(server).returncode == 0


def test_damaged_objects_are_errors_and_the_rest_is_served(stopped):
    server, objects = stopped
    rng = random.Random(13)
    damaged = set(rng.sample(sorted(objects), 20))
    with open(pool_of(server), "r+b") as file, mmap.mmap(file.fileno(), 0) as image:
        for key in sorted(damaged):
            offset = locate(image, objects[key], rng.randrange(len(objects[key])))
            image[offset] ^= 1 << rng.randrange(8)
        image.flush()
    server.start()
    for key, data in objects.items():
        try:
            status, _, got = server.request("GET", f"/damage/{key}")
        except OSError:
            status, got = 0, b""
        except Exception as broken:  # http.client.IncompleteRead
            status, got = 0, broken.partial
        if key in damaged:
            assert got != data
            assert status >= 500 or (status == 0 and data.startswith(got)), (key, status)
        else:
            assert (status, got) == (200, data), (key, status)
    report = verify(server) if server.stop() == 0 else None
    assert report and report.returncode != 0


def test_verify_names_the_damage(stopped):
    server, objects = stopped
    with open(pool_of(server), "r+b") as file, mmap.mmap(file.fileno(), 0) as image:
        offset = locate(image, objects["007"], 10)
        image[offset] ^= 4
    report = verify(server)
    assert report.returncode != 0
    assert "extent" in report.stdout + report.stderr


def test_a_foreign_file_is_not_taken_for_a_pool(make_server):
    server = make_server(start=False)
    server.data.mkdir(parents=True)
    pool_of(server).write_bytes(b"precious data of another user " * 100_000)
    server.start(wait_ready=False)
    assert server.process.wait(30) != 0
    assert pool_of(server).read_bytes() == b"precious data of another user " * 100_000
    assert "pool" in server.log()


def test_the_scrub_is_started_watched_and_stopped_by_the_operator(make_server, tmp_path):
    """The scrub does not start by itself: its window of the day has ended. Damage that it finds, in
    full extents and in the one being written, is reported everywhere."""
    hour = time.gmtime().tm_hour
    server = make_server(pool_size="256 MiB", extent_size="4 MiB", settings={
        "scrub.interval": "1 s", "scrub.window": f"{(hour + 6) % 24:02}:00-{(hour + 7) % 24:02}:00 UTC", "store.cache": "0 B", "scrub.rate": "0 B"})
    server.s3().create_bucket(Bucket="kept")
    objects = {f"o{n:02}": load.content(n, 700_000 if n % 2 else 3_000) for n in range(24)}
    for key, data in objects.items():
        assert server.request("PUT", f"/kept/{key}", data)[0] == 200

    def scrub(action, *more):
        return server.command("scrub", action, "--data", str(server.data), *more)

    shown = scrub("status")
    assert shown.returncode == 0 and "0 passes, the next begins" in shown.stdout and "no damage" in shown.stdout, shown.stdout + shown.stderr
    next_ms = json.loads(scrub("status", "--json").stdout)[0]["next_ms"]
    assert time.gmtime(next_ms / 1000).tm_hour == (hour + 6) % 24

    def whole_pass():
        before = server.metric("steadfast_scrub_passes_total")
        started = scrub("start")
        assert started.returncode == 0 and "a pass begins" in started.stdout, started.stdout + started.stderr
        wait.until(lambda: server.metric("steadfast_scrub_passes_total") > before, 60, "a pass")

    whole_pass()
    status = server.status()["store"]["log"]
    extents, done = status["extents"], status["scrub"]
    assert done["extents_total"] == sum(extents[f"{state}_{kind}"] for state in ("open", "sealed") for kind in ("commit", "body"))
    assert done["damaged"] == 0 and done["records"] >= len(objects) and done["started_ms"] <= done["last_pass_ms"]

    # One chunk in a full extent, and the last one, in the extent being written.
    image = (server.data / "pool").read_bytes()
    for key in ("o01", "o23"):
        at = image.find(objects[key][:64])
        assert at > 0
        with open(server.data / "pool", "r+b") as file:
            file.seek(at + 5_000)
            file.write(bytes([image[at + 5_000] ^ 1]))
    whole_pass()
    wait.until(lambda: server.log().count("STORED DATA IS DAMAGED") >= 2, 20, "the log of the damage")
    shown = scrub("status")
    table = server.command("status", "--admin", f"http://127.0.0.1:{server.admin_port}").stdout
    damage = server.status()["store"]["log"]["scrub"]["damage"]
    for key in ("o01", "o23"):
        assert any("kept" in subject and key in subject for one in damage for subject in one["concerns"]), damage
        for text in (shown.stdout, table, server.log()):
            assert key in text, (key, text[-3000:])
    assert shown.returncode == 3 and "2 DAMAGED" in shown.stdout, shown.stdout
    assert server.metric("steadfast_scrub_damaged_total") == 2
    stopped = scrub("stop")
    assert stopped.returncode == 0 and "by the schedule" in stopped.stdout
    assert server.stop() == 0
    gone = scrub("status")
    assert gone.returncode == 1 and "no server runs" in gone.stderr, gone.stderr
