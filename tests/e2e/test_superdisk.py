"""A super-disk: the fast leg serves reads, the durable leg acknowledges writes, and a fault of one
does not harm the other."""

import mmap
import pathlib
import random
import statistics
import subprocess
import threading
import time

import pytest

from harness import load, loops, wait
from harness.pair import MIB, POOL, check_all, fill, get, put, verify


# -- speed ------------------------------------------------------------------------------------


def test_reads_come_from_the_fast_leg_while_the_durable_one_is_slow(make_pair):
    pair = make_pair(fuse=["durable"], members=2)
    objects = fill(pair.server, 40, 300_000)
    pair.wait_state()
    pair.durable_disk.fault("read", "delay", path="durable", delay_ms=500)
    begin = time.monotonic()
    check_all(pair.server, objects, threads=1)
    took = time.monotonic() - begin
    assert took < 40 * 0.5 / 2, f"40 reads took {took:.1f} s, with 0.5 s for each read of the durable leg"
    assert pair.by_leg("reads", "fast") >= 40


@pytest.mark.parametrize("fault", ["delay", "hold"])
def test_a_slow_or_hung_fast_leg_does_not_slow_writes(make_pair, fault):
    pair = make_pair(fuse=["fast"])
    server = pair.server

    def median_put(prefix):
        times = []
        for number in range(40):
            begin = time.monotonic()
            put(server, f"{prefix}{number}", load.content(number, 4096))
            times.append(time.monotonic() - begin)
        return statistics.median(times)

    before = median_put("before")
    for op in ("write", "fsync"):
        pair.fast_disk.fault(op, fault, path="fast", delay_ms=400)
    during = median_put("during")
    # The fast leg's delay of 0.4 s, or its hang, does not appear in the time.
    assert during < max(0.2, 5 * before), f"{before * 1e3:.1f} ms before, {during * 1e3:.1f} ms during"
    assert server.admin("/health/ready")[0] == 200
    # Large bodies work as well: the fast leg misses those that it cannot take.
    big = {f"big{n}": load.content(n + 5_000, 6 * MIB) for n in range(8)}
    for key, data in big.items():
        put(server, key, data)
    pair.fast_disk.clear()
    for key, data in big.items():
        assert get(server, key) == data
    pair.wait_state()


# -- a fast leg that fails ----------------------------------------------------------------------


def test_a_fast_leg_that_fails_altogether_is_served_around(make_pair):
    pair = make_pair(fuse=["fast"])
    server = pair.server
    objects = fill(server, 30, 200_000)
    for op in ("read", "write", "fsync"):
        pair.fast_disk.fault(op, "eio", path="fast")
    check_all(server, objects)
    objects |= fill(server, 30, 200_000, first=100)
    check_all(server, objects)
    assert server.admin("/health/ready")[0] == 200
    wait.until(lambda: pair.state() == "failed", what="the log of the failed fast leg")
    wait.until(lambda: "What to do" in server.log(), what="the remedy in the log")
    assert server.command("status", "--admin", f"127.0.0.1:{server.admin_port}").returncode == 0


def test_a_fast_leg_that_hangs_is_served_around(make_pair):
    pair = make_pair(fuse=["fast"])
    server = pair.server
    objects = fill(server, 30, 200_000)
    holds = [pair.fast_disk.fault(op, "hold", path="fast") for op in ("read", "write", "fsync")]
    begin = time.monotonic()
    check_all(server, objects)
    objects |= fill(server, 10, 200_000, first=100)
    check_all(server, objects)
    assert time.monotonic() - begin < 30, "a hung fast leg blocked the requests"
    assert server.admin("/health/ready")[0] == 200
    for hold in holds:
        pair.fast_disk.remove(hold)
    check_all(server, objects)
    pair.wait_state()


# -- bad sectors and flipped bits ---------------------------------------------------------------


def places(path, objects):
    """The position of each object in a leg's file: (key, offset). A body of one chunk is
    contiguous."""
    found = []
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as image:
        at = {}
        for block in range(0, len(image), 4096):
            at.setdefault(image[block:block + 64], block)
        for key, data in objects.items():
            offset = at.get(data[:64])
            if offset is not None and image[offset:offset + len(data)] == data:
                found.append((key, offset))
    return found


def damage(pair, leg, objects, count):
    """Bad sectors and flipped bits, `count` of each, in different blocks of a leg."""
    path = pair.durable if leg == "durable" else pair.fast[0]
    disk = pair.durable_disk if leg == "durable" else pair.fast_disk
    size = len(next(iter(objects.values())))
    found = places(pair.backing(path), objects)
    assert len(found) > len(objects) * 0.9, f"{len(found)} of {len(objects)} objects are whole on the {leg} leg"
    if leg == "durable":
        # Reads use the fast leg's copy, so only the scrub finds these; it reads full extents.
        end = max(offset for _, offset in found) - 8 * MIB
        found = [(key, offset) for key, offset in found if offset < end]
    blocks = [offset + n * 4096 for _, offset in found for n in range(size // 4096)]
    chosen = random.Random(5).sample(blocks, 2 * count)
    rng = random.Random(6)
    for block in chosen[:count]:
        disk.fault("read", "eio", path=path.name, offset=block + 512 * rng.randrange(8), length=512, until_written=True)
    with open(pair.backing(path), "r+b") as file:
        for block in chosen[count:]:
            at, mask = block + rng.randrange(4096), 1 << rng.randrange(8)
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ mask]))


def damaged(pair, leg, objects):
    """The objects that are damaged in the leg's own file."""
    path = pair.durable if leg == "durable" else pair.fast[0]
    return objects.keys() - {key for key, _ in places(pair.backing(path), objects)}


#: Every body in a chunk of its own, which begins at a block.
CHUNKS = {"store.inline_max": "0 B"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_bad_sectors_and_flips_on_the_fast_leg_are_healed_under_load(make_pair):
    count = 1000
    pair = make_pair(fuse=["fast"], settings={"scrub.enabled": "false", **CHUNKS})
    server = pair.server
    objects = fill(server, 3000, 7 * 4096)
    pair.wait_state()
    damage(pair, "fast", objects, count)
    errors, rounds = [], [0] * 4
    stop = threading.Event()

    def reader(number):
        connection = server.connect(timeout_s=60)
        while not stop.is_set():
            for key in sorted(objects)[number::4]:
                status, _, data = server.request("GET", f"/pair/{key}", connection=connection)
                if status != 200 or data != objects[key]:
                    errors.append((key, status, len(data)))
                    return
            rounds[number] += 1

    def healed():
        return min(rounds) > 0 and pair.fast_disk.counts()["rules"] == 0 and not damaged(pair, "fast", objects)

    readers = [threading.Thread(target=reader, args=(number,)) for number in range(4)]
    for thread in readers:
        thread.start()
    try:
        wait.until(lambda: errors or healed(), 120, "a fast leg without damage", 0.5)
    finally:
        stop.set()
        for thread in readers:
            thread.join(60)
    assert not errors, errors[:20]
    # Some objects had several faults, healed at once.
    assert pair.healed("fast") >= count
    assert pair.by_leg("errors", "fast") > 0
    check_all(server, objects)


@pytest.mark.timeout(600)
def test_bad_sectors_and_flips_on_the_durable_leg_are_healed_from_the_fast_one(make_pair):
    count = 1000
    # The scrub begins after all damage: a sector that fails right after its repair counts as bad
    # for good.
    pair = make_pair(fuse=["durable"], settings={"scrub.enabled": "false", "scrub.rate": "0 B", **CHUNKS})
    server = pair.server
    objects = fill(server, 3000, 7 * 4096)
    pair.wait_state()
    damage(pair, "durable", objects, count)
    started = server.command("scrub", "start", "--data", str(server.data))
    assert started.returncode == 0, started.stderr
    wait.until(lambda: pair.durable_disk.counts()["rules"] == 0 and not damaged(pair, "durable", objects), 150,
               "a durable leg without damage", 0.5)
    assert pair.healed("durable") >= count
    wait.until(lambda: "What to do" in server.log(), what="the remedy in the log")
    check_all(server, objects)
    assert server.metric("steadfast_scrub_damaged_total") == 0
    assert server.stop() == 0
    verify(server)


# -- formatting -------------------------------------------------------------------------------


def test_format_shows_refuses_and_makes(make_pair, tmp_path):
    pair = make_pair(start=False, members=2)
    server, (one, two) = pair.server, pair.fast
    server.data.mkdir()

    def command(*args):
        return server.command("format", "--data", str(server.data), *args)

    dry = command("--dry-run")
    assert dry.returncode == 0, dry.stdout + dry.stderr
    for word in (str(pair.durable), str(one), str(two), "fast leg, 2 of 2", "nothing was changed"):
        assert word in dry.stdout, dry.stdout
    assert not any(path.exists() for path in (pair.durable, one, two))

    two.write_bytes(bytes(1024 + 56) + b"\x53\xef" + bytes(64 << 10))
    dry = command("--dry-run")
    assert dry.returncode == 3 and "REFUSED" in dry.stdout and "ext4" in dry.stdout, dry.stdout
    refused = command()
    assert refused.returncode == 1 and "ext4" in refused.stderr, refused.stderr
    assert not pair.durable.exists() and not one.exists()
    assert two.stat().st_size == 1024 + 58 + (64 << 10)
    two.unlink()

    made = command()
    assert made.returncode == 0, made.stderr
    assert all(path.exists() for path in (pair.durable, one, two))
    listed = server.command("disk", "list", "--data", str(server.data), "--json")
    assert listed.returncode == 0, listed.stderr
    assert command().returncode == 1, "a pool is not formatted twice"
    server.start()
    server.s3().create_bucket(Bucket="pair")
    objects = fill(server, 20, 100_000)
    pair.wait_state()
    listed = server.command("disk", "list", "--admin", f"127.0.0.1:{server.admin_port}")
    assert listed.returncode == 0 and "clean" in listed.stdout, listed.stdout + listed.stderr
    assert server.stop() == 0
    verify(server)
    verify(server, "--fast")
    # The durable leg alone is a complete pool.
    for path in (one, two):
        path.unlink()
    server.settings["superdisk.fast"] = None
    server.start()
    check_all(server, objects)


def test_block_devices_as_both_legs(make_server, tmp_path):
    reason = loops.missing()
    if reason:
        pytest.skip(reason)
    devices, files = [], []
    try:
        for name, size in (("durable", POOL), ("fast0", POOL), ("fast1", POOL)):
            files.append(tmp_path / name)
            try:
                devices.append(loops.attach(files[-1], size))
            except OSError as error:
                pytest.skip(f"the kernel gives no loop device: {error}")
        server = make_server(start=False, pool_size=None, extent_size="4 MiB", settings={
            "store.cache": "0 B", "data.pool": devices[0], "superdisk.fast": ",".join(devices[1:])})
        server.data.mkdir()
        subprocess.run(["mkfs.ext4", "-q", devices[2]], check=True)
        refused = server.command("format", "--data", str(server.data))
        assert refused.returncode == 1 and "ext4" in refused.stderr, refused.stderr
        done = server.command("format", "--data", str(server.data), "--force")
        assert done.returncode == 0, done.stderr
        server.start()
        server.s3().create_bucket(Bucket="pair")
        objects = fill(server, 40, 500_000)
        wait.until(lambda: server.status()["superdisks"][0]["fast"]["state"] == "clean", 60, "a clean fast leg")
        check_all(server, objects)
        assert server.stop() == 0
        listed = server.command("disk", "list", "--data", str(server.data))
        assert listed.returncode == 0 and devices[1] in listed.stdout, listed.stdout + listed.stderr
        verify(server)
        server.start()
        check_all(server, objects)
        server.close()
    finally:
        for device in devices:
            loops.detach(device)
        for file in files:
            pathlib.Path(file).unlink(missing_ok=True)
