"""What all benchmarks share: servers, a slowed disk, peers and the report."""

import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "bench" / "out"
KEY, SECRET = "benchkey", "benchsecret123"
# The build that is measured: `release`, or `dist`, which packages carry.
PROFILE = os.environ.get("BENCH_PROFILE", "release")
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / PROFILE


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(port, process, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}; see {OUT}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.01)
    raise RuntimeError("the server does not listen")


class Server:
    """A server process on a fresh directory."""

    # The MinIO program; `None` where it is not available.
    minio = None

    def __init__(self, name, directory, extra=(), program=TARGET / "steadfast"):
        self.name, self.dir, self.extra, self.program = name, Path(directory), list(extra), program
        self.port, self.admin_port = free_port(), free_port()
        self.process = None

    def command(self):
        if self.name == "minio":
            return [self.minio, "server", "--quiet", "--address", f"127.0.0.1:{self.port}",
                    "--console-address", f"127.0.0.1:{free_port()}", str(self.dir)]
        return [str(self.program), "serve", "--data", str(self.dir), "--s3-listen", f"127.0.0.1:{self.port}",
                "--admin-listen", f"127.0.0.1:{self.admin_port}", *(() if "--live-listen" in self.extra else ("--live-listen", "")), *self.extra]

    def start(self, waits_for=None):
        """Starts it, and waits for its S3 port, or for another one."""
        env = dict(os.environ, STEADFAST_ACCESS_KEY=KEY, STEADFAST_SECRET_KEY=SECRET, MINIO_ROOT_USER=KEY,
                   MINIO_ROOT_PASSWORD=SECRET, MINIO_API_REQUESTS_MAX="1000")
        log = open(OUT / f"{self.name}.log", "a")
        self.process = subprocess.Popen(self.command(), env=env, stdout=log, stderr=log)
        wait_for(waits_for or self.port, self.process)
        return self

    def stop(self, how=signal.SIGTERM):
        if self.process and self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(60)

    def status(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}/status", timeout=10) as answer:
            return json.load(answer)

    def load(self, op, **options):
        command = [str(TARGET / "steadfast-bench"), "load", "--endpoint", f"127.0.0.1:{self.port}", "--access-key", KEY,
                   "--secret-key", SECRET, "--pid", str(self.process.pid), "--op", op]
        for name, value in options.items():
            command += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{self.name} {op} {options}: {done.stderr.strip()}")
        return json.loads(done.stdout)


@contextlib.contextmanager
def servers(scratch, names):
    running = []
    try:
        for name in names:
            directory = scratch / name
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
            running.append(Server(name, directory).start())
        yield running
    finally:
        for server in running:
            server.stop()
            shutil.rmtree(server.dir, ignore_errors=True)


def find(tree, name):
    """The first value of that name anywhere in a JSON document."""
    if isinstance(tree, dict):
        if name in tree:
            return tree[name]
        tree = list(tree.values())
    for branch in tree if isinstance(tree, list) else []:
        found = find(branch, name)
        if found is not None:
            return found
    return None


def median(rows, field):
    values = [r[field] for r in rows if r.get(field) is not None]
    return statistics.median(values) if values else None


def ratio(a, b):
    return round(a / b, 3) if a is not None and b else None


class Report:
    def __init__(self):
        self.rows, self.notes = [], []

    def add(self, what, unit, ours, other, against, reach, detail=None):
        row = dict(what=what, unit=unit, steadfast=ours, against=against, other=other, ratio=ratio(ours, other), reach=reach)
        if detail:
            row["detail"] = detail
        self.rows.append(row)
        show = lambda v: "-" if v is None else f"{v:,.4g}" if v < 1000 else f"{v:,.0f}"
        print(f"{what:<46} {show(ours):>10} {show(other):>10} {unit:<8} {show(row['ratio']):>7}x  vs {against:<22} reach {reach}", flush=True)

    def note(self, text):
        self.notes.append(text)
        print(f"note: {text}", flush=True)


def inner(report, *command):
    done = subprocess.run([str(TARGET / "steadfast-bench"), *map(str, command)], capture_output=True, text=True)
    if done.returncode:
        report.note(f"steadfast-bench {command[0]}: {done.stderr.strip()}")
        return None
    return json.loads(done.stdout)


def fio(scratch, rw, bs, depth, seconds, extra=()):
    """MiB/s (and IOPS) of fio with direct I/O on a file of the same file system."""
    if not shutil.which("fio"):
        return None
    target = scratch / "fio.dat"
    done = subprocess.run(
        ["fio", "--name=x", f"--filename={target}", "--size=1g", f"--rw={rw}", f"--bs={bs}", f"--iodepth={depth}",
         "--ioengine=io_uring", "--direct=1", f"--runtime={seconds}", "--time_based", "--output-format=json", *extra],
        capture_output=True, text=True)
    if done.returncode:
        return None
    job = json.loads(done.stdout[done.stdout.index("{"):])["jobs"][0]
    side = job["write" if "write" in rw else "read"]
    return dict(mib_per_s=side["bw"] / 1024, iops=side["iops"])


@contextlib.contextmanager
def slow_disk(scratch, *commands):
    """A directory on the tests' FUSE disk, slowed by these commands; `None` where FUSE is missing.
    """
    backing, mount, control = scratch / "backing", scratch / "mount", scratch / "control"
    for path in (backing, mount):
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
    control.unlink(missing_ok=True)
    process = subprocess.Popen([str(TARGET / "steadfast-fusedisk"), str(backing), str(mount), str(control)],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        if "ready" not in process.stdout.readline():
            yield None
            return
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(str(control))
            for command in commands:
                s.sendall(json.dumps(command).encode() + b"\n")
                s.recv(4096)
        yield mount
    finally:
        process.stdin.close()
        process.wait(30)
        shutil.rmtree(backing, ignore_errors=True)


def find_go(name, package, variable):
    """A Go program: from an environment variable or the path, else built once with `go install`;
    `None` where that fails."""
    found = os.environ.get(variable) or shutil.which(name)
    cached = ROOT / "bench" / ".cache" / "bin" / name
    if not found and not cached.exists() and shutil.which("go"):
        print(f"building {name} with go install (once) ...", file=sys.stderr)
        subprocess.run(["go", "install", package], env=dict(os.environ, GOBIN=str(cached.parent)))
    return found or (str(cached) if cached.exists() else None)
