"""PostgreSQL on a super-disk: every commit that was acknowledged is there, whatever happens to server and fast disk."""

import os
import pathlib
import shutil
import tempfile

import pytest

from harness import postgres
from harness.nbd import BlockServer
from harness.postgres import Database, Ledger, load

MIB = 1 << 20


@pytest.fixture
def stack(tmp_path):
    reason = postgres.missing()
    if reason:
        pytest.skip(reason)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="steadfast-pg-"))
    os.chmod(folder, 0o755)
    server = BlockServer(tmp_path, size="512 MiB")
    server.format()
    server.start()
    database = Database(folder)
    try:
        database.attach(server.uri)
        database.make()
        database.start()
        database.as_user("pgbench", "-h", folder, "-i", "-q", "-s", "2", "postgres")
        database.sql("create table ledger (n bigint primary key)")
        yield server, database, Ledger(database)
    finally:
        database.crash()
        server.close()
        # Shown with a failure.
        print(database.log.read_text()[-6000:] if database.log.exists() else "no log", server.log()[-3000:])
        shutil.rmtree(folder, ignore_errors=True)


def treat(server, tmp_path, fast):
    """What happens to the fast disk while the server is down."""
    path = server.fast[0]
    if fast == "deleted":
        path.unlink()
    elif fast == "blank":
        size = path.stat().st_size
        path.unlink()
        with path.open("wb") as file:
            file.truncate(size)
    elif fast == "old copy":
        shutil.copyfile(tmp_path / "old", path)


def killed(server, database, ledger, tmp_path, fast, seconds):
    """One round: the server is killed under load, and everything is started again."""
    shutil.copyfile(server.fast[0], tmp_path / "old")
    sessions = load(database, ledger, seconds, server.kill)
    database.crash()
    for session in sessions:
        session.join()
    treat(server, tmp_path, fast)
    server.start()
    database.attach(server.uri)
    database.mount_it()
    database.start()
    ledger.check()


def alone(server, database, ledger, tmp_path):
    """A copy of the durable disk, without Steadfast: the database starts, and the ledger is complete."""
    copy = tmp_path / "copy"
    shutil.copyfile(server.durable, copy)
    database.attach_file(copy, MIB)
    database.mount_it()
    database.start()
    ledger.check()
    database.check()
    database.detach()
    copy.unlink()


@pytest.mark.timeout(300)
def test_commits_survive_kill_9_and_the_loss_of_the_fast_disk(stack, tmp_path):
    server, database, ledger = stack
    for fast in ("kept", "deleted", "old copy"):
        killed(server, database, ledger, tmp_path, fast, 1)
    database.check()
    database.detach()
    server.kill()
    alone(server, database, ledger, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_thirty_rounds(stack, tmp_path):
    server, database, ledger = stack
    for round_ in range(30):
        killed(server, database, ledger, tmp_path, ("kept", "deleted", "blank", "old copy")[round_ % 4], 4)
        if round_ % 5 == 4:
            database.check()
            database.start()
    database.check()
    database.detach()
    server.kill()
    alone(server, database, ledger, tmp_path)
