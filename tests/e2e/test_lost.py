"""Extents that read as zeros, and half a pool file: every loss is reported."""

import shutil
import struct

import pytest

from harness import load, wait

MIB = 1 << 20
EXTENT = 1 * MIB


@pytest.fixture
def stopped(make_server):
    """A stopped server whose objects, small and large, fill about twenty extents."""
    server = make_server(pool_size="64 MiB", extent_size="1 MiB", settings={"store.cache": "0 B", "store.inline_max": "16 KiB"})
    server.s3().create_bucket(Bucket="lost")
    objects = {}
    for number in range(360):
        data = load.content(number + 900, (15_000, 9_000, 15_000, 90_000)[number % 4])
        assert server.request("PUT", f"/lost/{number:03}", data)[0] == 200
        objects[f"{number:03}"] = data
    assert server.stop() == 0
    return server, objects


def extents(server):
    """The extents in use: their offsets in the file, by kind."""
    found = {2: [], 3: []}
    with open(server.data / "pool", "rb") as pool:
        offset = MIB
        while True:
            pool.seek(offset)
            header = pool.read(64)
            if len(header) < 64:
                return found
            if header[:8] == b"SFEXTENT" and header[12] in found:
                found[header[12]].append((struct.unpack_from("<Q", header, 40)[0], offset))
            offset += EXTENT


def zero(server, offset):
    with open(server.data / "pool", "r+b") as pool:
        pool.seek(offset)
        pool.write(bytes(EXTENT))


def read_all(server, objects):
    """Keys that are answered with an error; all others must be intact."""
    failed = []
    for key, data in objects.items():
        try:
            status, _, got = server.request("GET", f"/lost/{key}", timeout_s=60)
        except OSError:
            status, got = 500, b""
        except Exception as broken:  # http.client.IncompleteRead
            status, got = 500, broken.partial
        if status == 200:
            assert got == data, key
        else:
            assert status >= 500, (key, status, got)
            failed.append(key)
    return failed


def is_read_only(server):
    try:
        return "read-only" in server.admin("/health/ready")[1]
    except OSError:
        return False


def test_every_command_reports_a_lost_extent(stopped):
    server, objects = stopped
    in_use = extents(server)
    assert len(in_use[2]) > 3 and len(in_use[3]) > 2, in_use
    # One of records and one of bodies, neither of them the last.
    for kind in (2, 3):
        zero(server, sorted(in_use[kind])[1][1])
    report = server.command("verify", "--data", str(server.data))
    assert report.returncode == 3 and report.stdout.count("the extent is lost") == 2, report.stdout + report.stderr
    server.start()
    assert "the extent is lost" in server.whole_log() and "ERROR" in server.whole_log()
    assert server.status()["store"]["log"]["extents"]["lost"] == 2
    assert server.metric("steadfast_log_lost_extents") == 2 and server.metric("steadfast_scrub_damaged_total") >= 2
    failed = read_all(server, objects)
    assert 5 < len(failed) < len(objects) - 20
    assert server.metric("steadfast_log_read_damage_total") > 0
    assert len(server.s3().list_objects_v2(Bucket="lost")["Contents"]) == len(objects), "the index knows them all"

    assert server.stop() == 0

    # Without the index, a possibly lost object is not reported as absent.
    shutil.rmtree(server.data / "index")
    server.start()
    wait.until(lambda: is_read_only(server), deadline_s=60)
    without = read_all(server, objects)
    assert set(without) >= set(failed)
    assert server.request("GET", "/lost", query={"list-type": "2"})[0] >= 500
    assert server.request("GET", "/never-there/x")[0] >= 500


def test_half_a_pool_file_is_reported(stopped):
    server, objects = stopped
    pool = server.data / "pool"
    with open(pool, "r+b") as file:
        file.truncate(pool.stat().st_size // 2)
    report = server.command("verify", "--data", str(server.data))
    assert report.returncode == 3 and "the disk ends" in report.stdout, report.stdout + report.stderr
    for index in ("kept", "removed"):
        if index == "removed":
            shutil.rmtree(server.data / "index")
        server.start()
        assert "the extent is lost" in server.whole_log()
        wait.until(lambda: is_read_only(server), deadline_s=60)
        assert server.metric("steadfast_log_lost_extents") > 3
        assert read_all(server, objects)
        server.stop()
