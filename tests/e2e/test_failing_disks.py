"""Disks that hang, vanish, turn read-only or fill up: a single disk, one of several, and each side
of a super-disk. Acknowledged data survives, other disks work on, and the log tells the operator
what to do."""

import threading
import time

import pytest

from harness import load, wait

KINDS = ["single", "pool", "super-disk"]
#: How long a write may wait, and how much later than that its answer may be.
WAIT_S, GRACE_S = 3, 5
EVERYTHING = ("read", "write", "fsync", "allocate")


class FailingDisk:
    """A server with a failing disk, and its objects: those on the disk and those elsewhere."""

    def __init__(self, kind, server, disk, victim):
        self.kind, self.server, self.disk, self.victim = kind, server, disk, victim
        self.on_it, self.elsewhere, self.rules = {}, {}, []

    def strike(self, fault, ops=EVERYTHING, path=None):
        self.rules += [self.disk.fault(op, fault, path=path or self.victim) for op in ops]

    def heal(self):
        for rule in self.rules:
            self.disk.remove(rule)
        self.rules = []

    def put(self, key, data):
        return self.server.request("PUT", f"/failing/{key}", data, timeout_s=60)

    def get(self, key):
        return self.server.request("GET", f"/failing/{key}", timeout_s=60)

    def check(self, objects):
        for key, data in objects.items():
            status, _, found = self.get(key)
            assert (status, found == data) == (200, True), (key, status, found[:200])

    def fill(self):
        """Writes small objects, stored within their records, and some in chunks."""
        def objects():
            return {disk["name"]: disk["objects"] for disk in self.server.status()["store"]["disks"]}

        for n in range(24):
            key, data = f"k{n:02}", load.content(n, 300_000 if n % 4 == 0 else 2_000)
            before = objects()
            assert self.put(key, data)[0] == 200
            grown = next(name for name, count in objects().items() if count > before[name])
            on_it = self.kind != "pool" or grown.endswith(self.victim)
            (self.on_it if on_it else self.elsewhere)[key] = data
        assert len(self.on_it) >= 3 and (self.kind != "pool" or len(self.elsewhere) >= 3)

    def row(self):
        """The status of the disk."""
        return next(row for row in self.server.status()["disks"] if row["path"].endswith(self.victim))

    def shown(self):
        return self.server.command("status", "--admin", f"http://127.0.0.1:{self.server.admin_port}").stdout

    def others_work(self, prefix):
        self.check(dict(list(self.elsewhere.items())[:3]))
        for key in list(self.elsewhere)[:2]:
            self.elsewhere[key] = load.content(hash(prefix) % 1000, 5_000)
            assert self.put(key, self.elsewhere[key])[0] == 200

    def restart_and_check(self, maybe=None):
        """After a kill, acknowledged objects are intact; the others are old or new, and whole."""
        self.server.kill()
        self.heal()
        self.server.start()
        self.check(self.elsewhere)
        for key, data in self.on_it.items():
            status, _, found = self.get(key)
            assert status == 200 and found in (data, *(maybe or {}).get(key, ())), (key, status, len(found))
        assert self.put("after", b"all is well")[0] == 200


@pytest.fixture
def failing_disk(make_fuse_disk, make_server):
    def make(kind, **settings):
        disk = make_fuse_disk()
        mount = disk.mount
        layout, victim = {
            "single": ({"data.pool": mount / "alone"}, "alone"),
            "pool": ({"data.disks": f"{mount}/d0,{mount}/d1,{mount}/d2"}, "d1"),
            "super-disk": ({"data.pool": mount / "alone", "superdisk.fast": mount / "quick"}, "alone"),
        }[kind]
        server = make_server(pool_size="256 MiB", extent_size="4 MiB", settings={
            "store.cache": "0 B", "store.write_wait": f"{WAIT_S} s", **layout, **settings})
        server.s3().create_bucket(Bucket="failing")
        made = FailingDisk(kind, server, disk, victim)
        made.fill()
        if kind == "super-disk":
            wait.until(lambda: server.status()["superdisks"][0]["fast"]["state"] == "clean", 60, "a clean fast leg")
        return made

    return make


def in_time(work, answers, key):
    begin = time.monotonic()
    status, _, text = work()
    answers.append((key, status, text, time.monotonic() - begin))


@pytest.mark.parametrize("kind,hangs_s", [("single", 12), ("pool", 15), ("super-disk", 12)])
def test_a_disk_that_hangs(failing_disk, kind, hangs_s):
    it = failing_disk(kind)
    server = it.server
    it.strike("hold")
    begin = time.monotonic()
    new = {key: load.content(n + 500, 300_000 if n % 2 else 900) for n, key in enumerate(list(it.on_it)[:6])}
    puts, gets = [], []
    threads = [threading.Thread(target=in_time, args=(lambda k=key: it.put(k, new[k]), puts, key)) for key in new]
    reads = list(it.on_it)[-3:]
    threads += [threading.Thread(target=in_time, args=(lambda k=key: it.get(k), gets, key)) for key in reads]
    for thread in threads:
        thread.start()
    it.others_work("while it hangs")
    for thread in threads:
        thread.join(60)
    for key, status, text, took in puts:
        assert status == 503 and b"SlowDown" in text, (key, status, text)
        assert took < WAIT_S + GRACE_S, f"a PUT was answered after {took:.1f} s"
    for key, status, text, took in gets:
        if kind == "super-disk":
            assert status == 200 and text == it.on_it[key], (key, status, text[:200])
        else:
            assert status == 503 and b"SlowDown" in text, (key, status, text[:200])
        assert took < WAIT_S + GRACE_S, f"a GET was answered after {took:.1f} s"
    assert len(puts) == len(new) and len(gets) == 3
    # The log names the disk, the time since when it hangs, and the remedy.
    wait.until(lambda: "HANGS since" in server.log(), 20, "the log of the hang")
    warning = next(line for line in server.log().splitlines() if "HANGS since" in line)
    assert it.victim in warning and " UTC" in warning and "What to do" in warning, warning
    assert it.row()["state"] == "hangs"
    assert server.metric("steadfast_disks_hanging") == 1 and server.metric("steadfast_disk_oldest_write_seconds") >= 5
    assert "HANGS" in it.shown() and it.victim in it.shown()
    status, text = server.admin("/health/ready")
    assert (status, "hangs" in text) == ((200, False) if kind == "pool" else (503, True)), (status, text)
    # While the disk hangs, its requests are refused at once, and all others are served.
    refused = time.monotonic()
    assert it.put(next(iter(new)), b"too late")[0] == 503
    assert time.monotonic() - refused < 2
    while time.monotonic() - begin < hangs_s:
        it.others_work(f"after {time.monotonic() - begin:.0f} s")
        time.sleep(0.2)
    it.heal()
    # Without intervention.
    wait.until(lambda: it.put("again", b"it works")[0] == 200 and server.admin("/health/ready")[0] == 200, 30, "writes again", 0.1)
    wait.until(lambda: " answers again after " in server.log(), 10, "the log of the recovery")
    assert it.row()["state"] == "in use" and server.metric("steadfast_disks_hanging") == 0
    for key, data in it.on_it.items():
        status, _, found = it.get(key)
        assert status == 200 and found in (data, new.get(key)), (key, status, len(found))
    # The writes that waited are ahead of these, so a slow machine may still answer SlowDown.
    for key, data in new.items():
        wait.until(lambda k=key, d=data: it.put(k, d)[0] == 200, 30, f"a write of {key}", 0.1)
    it.on_it |= new
    it.restart_and_check()


@pytest.mark.parametrize("fault", ["enodev", "eio"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_disk_that_vanishes(failing_disk, kind, fault):
    it = failing_disk(kind)
    server = it.server
    it.strike(fault)
    new = {key: load.content(n + 500, 300_000 if n % 2 else 900) for n, key in enumerate(list(it.on_it)[:4])}
    maybe = {}
    for key, data in new.items():
        status, _, text = it.put(key, data)
        assert status in (500, 503), (key, status, text)
        if status == 500:
            assert b"unknown" in text or b"cannot" in text, text
            maybe[key] = [data]
    for key, data in it.on_it.items():
        status, _, found = it.get(key)
        if kind == "super-disk":
            assert status == 200 and found in (data, *maybe.get(key, ())), (key, status, found[:200])
        else:
            assert status >= 500, (key, status)
    it.others_work("without the disk")
    wait.until(lambda: "What to do" in server.log() and it.victim in server.log(), 20, "the remedy in the log")
    assert server.admin("/health/ready")[0] == (200 if kind == "pool" else 503)
    assert server.admin("/health/live")[0] == 200
    if kind == "pool":
        assert server.metric("steadfast_pool_disks_failed") == 1
        assert "READ-ONLY" in it.shown(), it.shown()
    else:
        assert "NO:" in it.shown(), it.shown()
    it.restart_and_check(maybe)


@pytest.mark.parametrize("kind", KINDS)
def test_a_disk_that_turns_read_only(failing_disk, kind):
    it = failing_disk(kind)
    server = it.server
    it.strike("erofs", ops=("write", "fsync", "allocate"))
    maybe = {}
    for n, key in enumerate(list(it.on_it)[:4]):
        data = load.content(n + 500, 300_000 if n % 2 else 900)
        status, _, text = it.put(key, data)
        assert status in (500, 503), (key, status, text)
        if status == 500:
            maybe[key] = [data]
    # The stored objects can be read.
    for key, data in it.on_it.items():
        status, _, found = it.get(key)
        assert status == 200 and found in (data, *maybe.get(key, ())), (key, status)
    it.others_work("during the fault")
    wait.until(lambda: "What to do" in server.log() and "Read-only file system" in server.log(), 20, "the remedy in the log")
    assert server.admin("/health/ready")[0] == (200 if kind == "pool" else 503)
    assert "Read-only file system" in it.shown(), it.shown()
    it.restart_and_check(maybe)


@pytest.mark.parametrize("kind", KINDS)
def test_a_disk_that_is_full(failing_disk, kind):
    it = failing_disk(kind)
    server = it.server
    it.strike("enospc", ops=("allocate",))
    keys, filled = list(it.on_it), {}
    for n in range(400):
        key, data = keys[n % len(keys)], load.content(n + 500, 700_000)
        status, _, text = it.put(key, data)
        if status != 200:
            break
        it.on_it[key] = filled[key] = data
    assert status == 507 and b"InsufficientStorage" in text, (status, text)
    it.others_work("during the fault")
    it.check(it.on_it)
    assert server.admin("/health/ready")[0] == 200
    wait.until(lambda: "IS FULL" in server.log() and "What to do" in server.log(), 20, "the remedy in the log")
    assert "FULL" in it.shown(), it.shown()
    it.heal()
    wait.until(lambda: it.put(keys[0], it.on_it[keys[0]])[0] == 200, 30, "free space", 0.1)
    wait.until(lambda: "FULL" not in it.shown(), 10, "a status that is not full")
    it.check(it.on_it)
    it.restart_and_check()


@pytest.mark.parametrize("fault,ops", [("hold", EVERYTHING), ("enodev", EVERYTHING), ("erofs", ("write", "fsync", "allocate")), ("enospc", ("allocate", "write"))])
def test_a_failing_fast_disk_costs_only_speed(failing_disk, fault, ops):
    it = failing_disk("super-disk")
    server = it.server
    it.strike(fault, ops=ops, path="quick")
    begin = time.monotonic()
    it.check(it.on_it)
    for n, key in enumerate(it.on_it):
        it.on_it[key] = load.content(n + 500, 300_000 if n % 2 else 900)
        assert it.put(key, it.on_it[key])[0] == 200
    it.check(it.on_it)
    assert time.monotonic() - begin < 20
    assert server.admin("/health/ready")[0] == 200
    if fault != "enospc":
        wait.until(lambda: "the fast leg has failed" in server.log() and "What to do" in server.log(), 30, "the remedy in the log")
        assert "DEGRADED" in it.shown()
    it.heal()
    clean = lambda: server.status()["superdisks"][0]["fast"]["state"] == "clean"
    # Without intervention: the server closes, reopens and rebuilds a leg that failed a flush.
    wait.until(clean, 90, "a fast leg that is clean again")
    if fault == "erofs":
        before = server.status()["superdisks"][0]["reads_fast"]
        it.check(it.on_it)
        assert server.status()["superdisks"][0]["reads_fast"] > before
    it.check(it.on_it)
    it.restart_and_check()
    wait.until(clean, 60, "a fast leg that is clean after a start")
