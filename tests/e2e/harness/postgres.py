"""PostgreSQL 15 on ext4 on a loop device over nbdfuse, over a block device of Steadfast."""

import contextlib
import glob
import os
import pathlib
import pwd
import re
import shutil
import signal
import subprocess
import threading
import time

from . import loops, wait

BIN = next(iter(sorted(glob.glob("/usr/lib/postgresql/15/bin"))), None)

#: What a line of the log holds that reports an error. FATAL is not one: the database refuses
#: connections with it while it starts.
ERROR_LINE = re.compile("ERROR:|PANIC:|[Ii](nput)?/[Oo](utput)? error|could not (read|write|fsync|extend|flush)|"
                     "invalid page|page verification failed|Read-only file system")


def missing():
    """The reason why the database cannot run here; None when it can."""
    if loops.missing():
        return loops.missing()
    if BIN is None or not os.path.exists(f"{BIN}/pg_amcheck") or not shutil.which("nbdfuse"):
        return "no PostgreSQL 15 or no nbdfuse here"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "no /dev/fuse that can be opened here"
    return None


def run(*command, check=True, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=150, check=False, **options)
    assert done.returncode == 0 or not check, f"{command}: {done.stdout}{done.stderr}"
    return done


class Database:
    """A cluster in a directory that the user postgres can reach."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.mount, self.fuse = self.folder / "mount", self.folder / "fuse"
        for path in (self.mount, self.fuse):
            path.mkdir(exist_ok=True)
        self.data = self.mount / "data"
        self.log = self.folder / "postgres.log"
        self.log_begin = 0
        self.bridge = self.loop = self.pid = None
        user = pwd.getpwnam("postgres")
        os.chown(self.folder, user.pw_uid, user.pw_gid)
        self.user = user

    def as_user(self, *command, **options):
        return run("runuser", "-u", "postgres", "--", *command, cwd=self.folder, **options)

    def attach(self, uri):
        """The block device as a mounted file system."""
        self.bridge = subprocess.Popen(["nbdfuse", str(self.fuse), uri],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait.until((self.fuse / "nbd").exists, 20, "nbdfuse")
        self.attach_file(self.fuse / "nbd", 0)

    def attach_file(self, file, offset):
        self.loop = run("losetup", "--find", "--show", "--offset", offset, file).stdout.strip()

    def make(self):
        run("mkfs.ext4", "-q", self.loop)
        self.mount_it()
        os.chown(self.mount, self.user.pw_uid, self.user.pw_gid)
        self.as_user(f"{BIN}/initdb", "-D", self.data, "--data-checksums", "--no-instructions", "-A", "trust")
        with (self.data / "postgresql.conf").open("a") as conf:
            conf.write(f"listen_addresses = ''\nunix_socket_directories = '{self.folder}'\nshared_buffers = '16MB'\n"
                       "max_wal_size = '64MB'\nmin_wal_size = '32MB'\ncheckpoint_timeout = '30s'\n")
        # The database flushes its own files, but not its configuration.
        run("sync", "-f", self.data)

    def mount_it(self):
        run("mount", self.loop, self.mount)

    def start(self):
        self.log_begin = self.log.stat().st_size if self.log.exists() else 0
        self.as_user(f"{BIN}/pg_ctl", "-D", self.data, "-l", self.log, "-w", "-t", "100", "start")
        self.pid = int((self.data / "postmaster.pid").read_text().split()[0])

    def stop(self, mode="fast"):
        self.as_user(f"{BIN}/pg_ctl", "-D", self.data, "-m", mode, "-w", "stop", check=mode == "fast")
        self.pid = None

    def sql(self, text):
        return self.as_user("psql", "-h", self.folder, "-AtX", "-v", "ON_ERROR_STOP=1", "-c", text, "postgres").stdout

    def bench(self, seconds):
        """pgbench in the background."""
        return subprocess.Popen(["runuser", "-u", "postgres", "--", "pgbench", "-h", str(self.folder), "-c", "4", "-n",
                                 "-T", str(seconds), "postgres"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def errors(self):
        """The lines of its log since its last start that report an error."""
        with self.log.open("rb") as log:
            log.seek(self.log_begin)
            lines = log.read().decode(errors="replace").splitlines()
        return [line for line in lines if ERROR_LINE.search(line)]

    def read_all(self):
        """Reads every table and index, and fails on damage."""
        self.as_user(f"{BIN}/pg_amcheck", "-h", self.folder, "--heapallindexed", "--install-missing", "postgres")

    def check(self):
        """Checks for damage with the database's own tools, and stops the database."""
        self.read_all()
        self.stop()
        self.as_user(f"{BIN}/pg_checksums", "--check", "-D", self.data)

    def detach(self, lazy=False):
        if str(self.mount) in pathlib.Path("/proc/mounts").read_text():
            run("umount", *(["-l"] if lazy else []), self.mount, check=not lazy)
        if self.loop:
            loops.detach(self.loop)
            self.loop = None
        if self.bridge:
            run("fusermount3", "-uz" if lazy else "-u", self.fuse, check=False)
            self.bridge.kill()
            self.bridge.wait()
            self.bridge = None

    def crash(self):
        """Discards everything above the block device at once, as when a host loses power."""
        if self.pid:
            mine = [self.pid, *map(int, run("pgrep", "-P", self.pid, check=False).stdout.split())]
            for pid in mine:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            wait.until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in mine), 30, "the database's end")
            self.pid = None
        self.detach(lazy=True)


class Ledger:
    """Numbers whose commits the database has acknowledged, recorded outside it."""

    def __init__(self, database):
        self.database = database
        self.acknowledged = []
        self.next = 0
        self.lock = threading.Lock()

    def insert_until(self, stop):
        """One session. It ends with `stop`, or when the database refuses."""
        session = subprocess.Popen(["runuser", "-u", "postgres", "--", "psql", "-h", str(self.database.folder), "-AtX",
                                    "-v", "ON_ERROR_STOP=1", "postgres"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, text=True, bufsize=1)
        try:
            while not stop.is_set():
                with self.lock:
                    self.next += 1
                    number = self.next
                session.stdin.write(f"insert into ledger values ({number});\n")
                session.stdin.flush()
                if session.stdout.readline() != "INSERT 0 1\n":
                    return
                with self.lock:
                    self.acknowledged.append(number)
        except BrokenPipeError:
            pass
        finally:
            session.kill()
            session.wait()

    def check(self):
        there = {int(line) for line in self.database.sql("select n from ledger").split()}
        lost = set(self.acknowledged) - there
        assert not lost, f"{len(lost)} of {len(self.acknowledged)} acknowledged commits are lost: {sorted(lost)[:10]}"


class Load:
    """pgbench and three sessions of the ledger."""

    def __init__(self, database, ledger):
        self.database, self.ledger = database, ledger
        self.stop = threading.Event()
        self.bench = database.bench(600)
        self.sessions = [threading.Thread(target=ledger.insert_until, args=(self.stop,)) for _ in range(3)]
        for session in self.sessions:
            session.start()

    def commits(self, seconds=0):
        """Waits for `seconds`, and until the database has acknowledged more commits."""
        before = len(self.ledger.acknowledged)
        begin = time.monotonic()
        wait.until(lambda: time.monotonic() - begin > seconds and len(self.ledger.acknowledged) > before + 20, 60, "commits")

    def check(self):
        """Checks that the database has refused nothing and that its log has no error."""
        assert self.bench.poll() is None, "pgbench has ended"
        assert all(session.is_alive() for session in self.sessions), "the database has refused a commit"
        assert not self.database.errors(), self.database.errors()

    def end(self):
        self.stop.set()
        run("pkill", "-9", "-f", f"pgbench -h {self.database.folder}", check=False)
        self.bench.wait()

    def join(self):
        """Waits for the sessions. The caller ends the database first, so that no session waits for
        it."""
        for session in self.sessions:
            session.join()
