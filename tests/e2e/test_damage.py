"""Damage to the pool at rest: `verify` finds it, and the server never serves it."""

import mmap
import random

import pytest

from harness import load


def pool_of(server):
    return server.data / "pool"


@pytest.fixture
def stopped(make_server):
    """A stopped server with some objects, small and large, and where their bytes lie in the pool."""
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


def test_verify_says_what_is_damaged(stopped):
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
    pool_of(server).write_bytes(b"precious data of somebody else " * 100_000)
    server.start(wait_ready=False)
    assert server.process.wait(30) != 0
    assert pool_of(server).read_bytes() == b"precious data of somebody else " * 100_000
    assert "pool" in server.log()
