"""A super-disk: reads from the fast leg, promises from the durable one, and neither hurt by what happens to the other."""

import mmap
import pathlib
import random
import shutil
import statistics
import subprocess
import threading
import time

import pytest

from harness import load, loops, wait
from harness.server import in_threads

MIB = 1 << 20
POOL = 192 * MIB


class Pair:
    """A server on a super-disk: its legs as files, and the FUSE disks that they are on, if they are."""

    def __init__(self, server, durable, fast, durable_disk, fast_disk):
        self.server, self.durable, self.fast = server, durable, fast
        self.durable_disk, self.fast_disk = durable_disk, fast_disk

    def backing(self, path):
        """The file below a FUSE disk."""
        for disk in filter(None, (self.durable_disk, self.fast_disk)):
            if path.is_relative_to(disk.mount):
                return disk.backing / path.relative_to(disk.mount)
        return path

    def state(self):
        return self.server.status()["superdisks"][0]["fast"]["state"]

    def wait_state(self, state="clean", deadline_s=60):
        wait.until(lambda: self.state() == state, deadline_s, f"a fast leg that is {state}; it is {self.state()}", 0.05)

    def by_leg(self, name, leg):
        return self.server.metrics()[f'steadfast_superdisk_{name}_total{{disk="{self.durable}",leg="{leg}"}}']

    def healed(self, leg):
        return self.by_leg("healed", leg)


@pytest.fixture
def make_pair(make_fuse_disk, make_server, tmp_path):
    """Makes a server on a super-disk; `slow` names the legs that are on FUSE disks."""
    pairs = []

    def make(fuse=(), members=1, start=True, settings=None, **options):
        durable_disk = make_fuse_disk("durable") if "durable" in fuse else None
        fast_disk = make_fuse_disk("fast") if "fast" in fuse else None
        durable = (durable_disk.mount if durable_disk else tmp_path) / "durable.pool"
        fast = [(fast_disk.mount if fast_disk else tmp_path) / f"fast{n}" for n in range(members)]
        settings = {"store.cache": "0 B", "data.pool": durable, "superdisk.fast": ",".join(map(str, fast)),
                    **(settings or {})}
        options = {"pool_size": f"{POOL} B", "extent_size": "4 MiB", **options}
        server = make_server(start=False, settings=settings, **options)
        pair = Pair(server, durable, fast, durable_disk, fast_disk)
        pairs.append(pair)
        if start:
            server.start()
            server.s3().create_bucket(Bucket="pair")
            pair.wait_state()
        return pair

    yield make
    for pair in pairs:
        for disk in filter(None, (pair.durable_disk, pair.fast_disk)):
            disk.clear()
        pair.server.close()
        for path in [pair.durable, *pair.fast]:
            pair.backing(path).unlink(missing_ok=True)


def put(server, key, data):
    status, _, text = server.request("PUT", f"/pair/{key}", data, timeout_s=60)
    assert status == 200, (status, text)


def get(server, key):
    status, _, data = server.request("GET", f"/pair/{key}", timeout_s=60)
    assert status == 200, (key, status, data[:300])
    return data


def fill(server, count, size, first=0):
    """Objects of one chunk each; a dictionary of them."""
    objects = {f"o{number:04}": load.content(number, size) for number in range(first, first + count)}

    def work(part):
        for key in sorted(objects)[part::4]:
            put(server, key, objects[key])

    in_threads(4, work)
    return objects


def check_all(server, objects, threads=4):
    """Every object is what it should be."""
    def work(part):
        for key in sorted(objects)[part::threads]:
            assert get(server, key) == objects[key], f"{key}: wrong bytes"

    in_threads(threads, work)


def verify(server, *args):
    done = server.command("verify", "--data", str(server.data), *args)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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
    # The fast leg's 0.4 s, or its silence, is nowhere in it.
    assert during < max(0.2, 5 * before), f"{before * 1e3:.1f} ms before, {during * 1e3:.1f} ms during"
    assert server.admin("/health/ready")[0] == 200
    # Large bodies go on as well: what the fast leg cannot take is left out of it.
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
    wait.until(lambda: pair.state() == "failed", what="the word that the fast leg has failed")
    wait.until(lambda: "What to do" in server.log(), what="the word on what to do")
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
    assert time.monotonic() - begin < 30, "a hung fast leg held everything up"
    assert server.admin("/health/ready")[0] == 200
    for hold in holds:
        pair.fast_disk.remove(hold)
    check_all(server, objects)
    pair.wait_state()


# -- bad sectors and flipped bits ---------------------------------------------------------------


def places(path, objects):
    """Where each object's bytes begin in a leg's file: (key, offset). A body of one chunk is in one piece."""
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
        # Whoever reads is given the fast leg's copy, so it is the scrub that finds these; it reads extents that are full.
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
    """The objects that are not whole in the leg's own file."""
    path = pair.durable if leg == "durable" else pair.fast[0]
    return objects.keys() - {key for key, _ in places(pair.backing(path), objects)}


#: Every body in a chunk of its own, which begins at a block.
CHUNKS = {"store.inline_max": "0 B"}


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
    # Some objects were hit more than once, and healed at once.
    assert pair.healed("fast") >= count
    assert pair.by_leg("errors", "fast") > 0
    check_all(server, objects)


@pytest.mark.timeout(600)
def test_bad_sectors_and_flips_on_the_durable_leg_are_healed_from_the_fast_one(make_pair):
    count = 1000
    # The scrub begins when all damage is there: a sector that fails right after its repair is bad for good.
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
    wait.until(lambda: "What to do" in server.log(), what="the word on what to do")
    check_all(server, objects)
    assert server.metric("steadfast_scrub_damaged_total") == 0
    assert server.stop() == 0
    verify(server)


# -- a fast leg that is lost, blank, old, foreign -------------------------------------------------


def writers_until(pair, enough, writers):
    before = sum(writer.count for writer in writers)
    threads = load.start(writers, pair.server)
    wait.until(lambda: sum(writer.count for writer in writers) >= before + enough, 120, "acknowledged writes")
    return threads


@pytest.mark.parametrize("how", ["deleted", "zeroed"])
def test_kill_9_and_a_lost_fast_leg(make_pair, how):
    pair = make_pair(members=2)
    server = pair.server
    writers = [load.Writer(number, "pair") for number in range(4)]
    threads = writers_until(pair, 150, writers)
    server.kill()
    load.stop(writers, threads)
    for path in pair.fast:
        if how == "deleted":
            path.unlink()
        else:
            size = path.stat().st_size
            with open(path, "r+b") as file:
                file.truncate(0)
                file.truncate(size)
    begin = time.monotonic()
    server.start()
    took = time.monotonic() - begin
    assert took < 3, f"ready after {took:.1f} s"
    load.check(server, writers, every_key=True)
    load.check_listing(server, writers)
    pair.wait_state()
    threads = writers_until(pair, 50, writers)
    load.stop(writers, threads)
    load.check(server, writers, every_key=True)
    assert server.stop() == 0
    verify(server)
    verify(server, "--fast")


def test_an_old_fast_leg_put_back_is_noticed_and_rebuilt(make_pair):
    pair = make_pair()
    server = pair.server
    writers = [load.Writer(number, "pair") for number in range(4)]
    load.stop(writers, writers_until(pair, 100, writers))
    assert server.stop() == 0
    old = pair.fast[0].with_suffix(".old")
    shutil.copyfile(pair.fast[0], old)
    for _ in range(2):
        server.start()
        load.stop(writers, writers_until(pair, 150, writers))
        assert server.stop() == 0
    shutil.copyfile(old, pair.fast[0])
    old.unlink()
    server.start()
    assert "old" in server.log() or "stale" in server.log(), server.log()
    load.check(server, writers, every_key=True)
    load.check_listing(server, writers)
    pair.wait_state()
    load.check(server, writers, every_key=True)
    assert server.stop() == 0
    verify(server, "--fast")


def test_a_fast_leg_is_used_again_after_a_clean_stop(make_pair):
    pair = make_pair()
    server = pair.server
    fill(server, 60, MIB)
    pair.wait_state()
    assert server.stop() == 0
    server.start()
    pair.wait_state()
    rebuilt = server.metric("steadfast_superdisk_rebuilt_bytes_total")
    assert rebuilt < 20 * MIB, f"{rebuilt} bytes were rebuilt although nothing had happened"
    server.kill()
    server.start()
    pair.wait_state()


def test_a_fast_leg_of_others_is_never_touched(make_pair):
    pair = make_pair()
    server = pair.server
    objects = fill(server, 10, 100_000)
    assert server.stop() == 0
    precious = bytearray(random.Random(3).randbytes(4 * MIB))
    precious[1024 + 56:1024 + 58] = b"\x53\xef"
    pair.fast[0].write_bytes(precious)
    server.start()
    check_all(server, objects)
    assert "ext4" in server.log()
    wait.until(lambda: "What to do" in server.log(), what="the word on what to do")
    assert pair.state() == "foreign"
    assert server.admin("/health/ready")[0] == 200
    shown = server.command("disk", "list", "--admin", f"127.0.0.1:{server.admin_port}")
    assert shown.returncode == 3 and "foreign" in shown.stdout, shown.stdout + shown.stderr
    fill(server, 10, 100_000, first=50)
    assert server.stop() == 0
    assert pair.fast[0].read_bytes() == precious
    # The operator's word: the fast disk alone is made anew, and the pool stays.
    refused = server.command("format", "--data", str(server.data), "--fast-only")
    assert refused.returncode == 1 and "ext4" in refused.stderr, refused.stderr
    forced = server.command("format", "--data", str(server.data), "--fast-only", "--force")
    assert forced.returncode == 0, forced.stderr
    server.start()
    check_all(server, objects)
    pair.wait_state()


def test_the_fast_leg_of_another_pool_is_not_taken(make_pair, make_server, tmp_path):
    pair = make_pair()
    assert pair.server.stop() == 0
    other = make_server("other", pool_size=f"{POOL} B", extent_size="4 MiB",
                        settings={"superdisk.fast": pair.fast[0]}, start=False)
    before = pair.fast[0].read_bytes()
    other.start()
    assert other.admin("/health/ready")[0] == 200
    assert other.status()["superdisks"][0]["fast"]["state"] == "foreign", other.log()
    assert other.stop() == 0
    assert pair.fast[0].read_bytes() == before
    pair.server.start()
    pair.wait_state()


def test_a_missing_fast_leg_costs_nothing_but_speed(make_pair):
    pair = make_pair(start=False, settings={"superdisk.fast": "/dev/steadfast-no-such-disk"})
    server = pair.server.start()
    server.s3().create_bucket(Bucket="pair")
    objects = fill(server, 10, 100_000)
    check_all(server, objects)
    assert pair.state() == "missing"
    wait.until(lambda: "steadfast-no-such-disk" in server.log() and "What to do" in server.log(), what="the word on what to do")
    assert server.admin("/health/ready")[0] == 200
    shown = server.command("status", "--admin", f"127.0.0.1:{server.admin_port}")
    assert "degraded" in shown.stdout.lower(), shown.stdout


# -- copies of the durable leg ----------------------------------------------------------------


def test_a_copy_of_the_durable_leg_under_load_is_a_pool(make_pair, make_server, tmp_path):
    """As a block snapshot: taken at one moment. The copy is made of a file that stands still for that moment."""
    pair = make_pair()
    server = pair.server
    writers = [load.Writer(number, "pair") for number in range(4)]
    for round_number in range(3):
        threads = writers_until(pair, 60, writers)
        # What has been acknowledged before the copy begins must be in it.
        moments = [writer.moment() for writer in writers]
        copy = tmp_path / f"copy{round_number}.pool"
        server.process.send_signal(19)  # SIGSTOP: the moment of the snapshot
        try:
            shutil.copyfile(pair.durable, copy)
        finally:
            server.process.send_signal(18)
        load.stop(writers, threads)
        snapshot = make_server(f"copy{round_number}", pool_size=f"{POOL} B", settings={"data.pool": copy}, start=False)
        snapshot.start()
        wrong, read = [], 0
        for writer, moment in zip(writers, moments):
            for key in sorted(writer.attempts):
                status, _, data = snapshot.request("GET", f"/pair/{key}")
                found = load.digest(data) if status == 200 else load.ABSENT
                read += status == 200
                if status not in (200, 404) or found not in writer.allowed(moment, key):
                    wrong.append((key, status))
        assert read > 20
        assert not wrong, wrong
        assert snapshot.stop() == 0
        verify(snapshot)
        copy.unlink()


@pytest.mark.parametrize("kept", ["durable leg restored", "fast leg put back"])
def test_legs_of_two_times_of_one_opening_are_not_mixed(make_pair, tmp_path, kept):
    """A cloud volume is restored to a snapshot and meets its fast leg of later; or the fast leg is the one that is put back."""
    pair = make_pair()
    server = pair.server
    objects = fill(server, 200, 100_000)
    pair.wait_state()
    # A clean stop leaves no region dirty: what follows raises events.
    assert server.stop() == 0
    server.start()
    pair.wait_state()
    leg = pair.durable if kept == "durable leg restored" else pair.fast[0]
    copy = tmp_path / "copy"
    server.process.send_signal(19)  # SIGSTOP: the moment of the snapshot
    try:
        shutil.copyfile(leg, copy)
    finally:
        server.process.send_signal(18)
    before = dict(objects)
    for number in range(100):
        key = f"o{number:04}"
        objects[key] = load.content(1000 + number, 100_000)
        put(server, key, objects[key])
    objects |= fill(server, 200, 100_000, first=200)
    pair.wait_state()
    if kept == "fast leg put back":
        # The bits that are cleared leave the image behind.
        assert server.stop() == 0
    else:
        server.kill()
    shutil.copyfile(copy, leg)
    copy.unlink()
    if leg == pair.durable:
        objects = before
        # What it knows of is gone; it is made anew from the pool.
        for index in server.data.glob("index*"):
            shutil.rmtree(index)
    server.start()
    assert pair.state() in ("stale", "rebuilding"), pair.state()
    assert "earlier time" in server.log(), server.log()
    check_all(server, objects)
    pair.wait_state()
    assert pair.healed("durable") == 0, "nothing of the one leg was copied to the other"
    check_all(server, objects)
    listed = [o["Key"] for page in server.s3().get_paginator("list_objects_v2").paginate(Bucket="pair")
              for o in page.get("Contents", [])]
    assert listed == sorted(objects)
    assert server.stop() == 0
    verify(server, "--fast")
    pair.fast[0].unlink()
    server.start()
    check_all(server, objects)
    assert server.stop() == 0
    verify(server)


# -- making one -------------------------------------------------------------------------------


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
    # The durable leg alone is a whole pool.
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
