"""PostgreSQL on a super-disk: acknowledged commits survive faults of the server and the disks."""

import contextlib
import dataclasses
import mmap
import os
import pathlib
import random
import shutil
import tempfile

import pytest

from harness import fuse, postgres, wait
from harness.nbd import BLOCK, BlockServer
from harness.postgres import Database, Ledger, Load

MIB = 1 << 20
#: Where the data begin in the file of a fast disk, after its labels.
FAST_DATA = 17 * MIB
BAD_SECTORS = 1000


@dataclasses.dataclass
class Stack:
    """A database on a block device. The fault disks are set when the device's files are on them."""

    folder: pathlib.Path
    server: BlockServer
    database: Database
    ledger: Ledger
    durable_disk: fuse.FuseDisk = None
    fast_disk: fuse.FuseDisk = None

    @property
    def durable(self):
        """The durable disk's file, below the FUSE disk."""
        return self.durable_disk.backing / "durable" if self.durable_disk else self.server.durable

    @property
    def fast(self):
        """The fast disk's file, below the FUSE disk."""
        return self.fast_disk.backing / "fast" if self.fast_disk else self.server.fast[0]

    def clear_faults(self):
        for disk in filter(None, (self.durable_disk, self.fast_disk)):
            disk.clear()

    def superdisk(self):
        return self.server.status()["superdisks"][0]

    def restart(self):
        """Starts the server and the database. The ledger is complete."""
        self.server.start()
        self.database.attach(self.server.uri)
        self.database.mount_it()
        self.database.start()
        self.ledger.check()


@contextlib.contextmanager
def stacked(tmp_path, server, **disks):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="steadfast-pg-"))
    os.chmod(folder, 0o755)
    server.format()
    server.start()
    database = Database(folder)
    stack = Stack(tmp_path, server, database, Ledger(database), **disks)
    try:
        database.attach(server.uri)
        database.make()
        database.start()
        database.as_user("pgbench", "-h", folder, "-i", "-q", "-s", "2", "postgres")
        database.sql("create table ledger (n bigint primary key)")
        yield stack
    finally:
        stack.clear_faults()
        database.crash()
        server.close()
        # Shown with a failure.
        print(database.log.read_text()[-6000:] if database.log.exists() else "no log", server.log()[-3000:])
        shutil.rmtree(folder, ignore_errors=True)


def skip_if_missing():
    if postgres.missing():
        pytest.skip(postgres.missing())


@pytest.fixture
def stack(tmp_path):
    skip_if_missing()
    with stacked(tmp_path, BlockServer(tmp_path, size="512 MiB")) as made:
        yield made


@pytest.fixture
def faulty(tmp_path, make_fuse_disk):
    """A stack whose durable and fast disk fail on command."""
    skip_if_missing()
    durable, fast = make_fuse_disk("durable"), make_fuse_disk("fast")
    server = BlockServer(tmp_path, durable=durable.mount / "durable", size="512 MiB")
    server.fast = [fast.mount / "fast"]
    with stacked(tmp_path, server, durable_disk=durable, fast_disk=fast) as made:
        yield made


# -- treatments of the disks ------------------------------------------------------------------


def treat(stack, fast):
    """Treats the fast disk while the server is down."""
    if fast == "deleted":
        stack.fast.unlink()
    elif fast == "blank":
        size = stack.fast.stat().st_size
        stack.fast.unlink()
        with stack.fast.open("wb") as file:
            file.truncate(size)
    elif fast == "old copy":
        shutil.copyfile(stack.folder / "old", stack.fast)


def spoil(stack):
    """Makes 1,000 blocks of the fast disk that hold data unreadable until they are written again.
    """
    end = stack.durable.stat().st_size
    with stack.fast.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as image:
        used = [at for at in range(FAST_DATA, end, BLOCK) if image[at:at + BLOCK] != bytes(BLOCK)]
    for at in random.Random(11).sample(used, BAD_SECTORS):
        stack.fast_disk.fault("read", "eio", path="fast", offset=at, length=BLOCK, until_written=True)


def restart_with_bad_sectors(stack):
    """After a clean restart, the database reads everything from a fast disk with bad sectors."""
    stack.server.wait_clean()
    stack.database.stop()
    stack.database.detach()
    assert stack.server.stop() == 0
    spoil(stack)
    stack.restart()
    assert stack.superdisk()["refused"] is None, stack.superdisk()
    stack.database.read_all()
    wait.until(lambda: stack.superdisk()["healed_fast"] >= 50, 20, f"repairs: {stack.superdisk()}", 0.1)
    assert stack.superdisk()["fast_errors"] >= 50, stack.superdisk()
    assert stack.fast_disk.counts()["rules"] <= BAD_SECTORS - 50
    assert not stack.database.errors(), stack.database.errors()


def hang(stack, load, seconds):
    """Hangs the durable disk for `seconds`, in which the server acknowledges nothing.

    The disk still hangs when this function returns.
    """
    def oldest_s():
        return stack.server.status()["export"]["oldest_request_ms"] / 1000

    for op in ("write", "fsync", "read"):
        stack.durable_disk.fault(op, "hold", path="durable")
    wait.until(lambda: oldest_s() >= seconds / 2, seconds + 20, "a request without an answer", 0.1)
    before = len(stack.ledger.acknowledged)
    wait.until(lambda: oldest_s() >= seconds, seconds + 20, "a request without an answer", 0.1)
    assert len(stack.ledger.acknowledged) == before, "the server has acknowledged a write that is not durable"
    shown = stack.server.command("status", "--admin", stack.server.admin).stdout
    assert "  HANGS" in shown, shown
    load.check()


def kill(stack):
    """Kills the server with SIGKILL. The process ends once the durable disk holds no request."""
    stack.server.process.kill()
    if stack.durable_disk:
        stack.durable_disk.clear()
    stack.server.process.wait()


# -- rounds -------------------------------------------------------------------------------------


def killed(stack, treatment, seconds, hang_s=0, hangs_at_kill=False):
    """One round: kills the server under load, and starts everything again."""
    if treatment == "old copy":
        shutil.copyfile(stack.fast, stack.folder / "old")
    if treatment == "bad sectors":
        restart_with_bad_sectors(stack)
    load = Load(stack.database, stack.ledger)
    load.commits(seconds)
    if hang_s:
        hang(stack, load, hang_s)
        if not hangs_at_kill:
            stack.durable_disk.clear()
            load.commits()
    load.check()
    kill(stack)
    load.end()
    stack.database.crash()
    load.join()
    treat(stack, treatment)
    stack.restart()
    # The sectors that are still bad become good without a write.
    stack.clear_faults()


def alone(stack):
    """Starts a copy of the durable disk without Steadfast; the ledger is complete."""
    database = stack.database
    database.check()
    database.detach()
    stack.server.kill()
    copy = stack.folder / "copy"
    shutil.copyfile(stack.durable, copy)
    database.attach_file(copy, MIB)
    database.mount_it()
    database.start()
    stack.ledger.check()
    database.check()
    database.detach()
    copy.unlink()


@pytest.mark.timeout(300)
def test_commits_survive_kill_9_and_the_loss_of_the_fast_disk(stack):
    for fast in ("kept", "deleted", "old copy"):
        killed(stack, fast, 1)
    alone(stack)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_commits_survive_kill_9_with_bad_sectors_and_a_durable_disk_that_hangs(faulty):
    killed(faulty, "bad sectors", 1, hang_s=5)
    faulty.database.check()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_thirty_rounds(faulty):
    treatments = ("kept", "deleted", "bad sectors", "blank", "durable hangs", "old copy")
    for round_ in range(30):
        treatment = treatments[round_ % len(treatments)]
        hang_s = 20 if treatment == "durable hangs" else 0
        killed(faulty, treatment, 4, hang_s, hangs_at_kill=round_ // len(treatments) % 2 == 1)
        if round_ % 5 == 4:
            faulty.database.check()
            faulty.database.start()
    alone(faulty)
