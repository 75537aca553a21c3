"""`bench/run pairs`: two builds of Steadfast in turn on one machine, and the ratios of their figures.

Each round measures both builds one after the other, so what slows the machine for longer than a
round slows both. A ratio is the median over the rounds of the new build's figure divided by the
older one's.
"""

import contextlib
import json
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from block import SPAN, Disk
from caches import TICKS, Origin, fetch
from common import OUT, PROFILE, ROOT, TARGET, Server, free_port
from live import LIVE_CONFIG, live_options

MIB = 1 << 20
BASELINE = ROOT / "bench" / "baseline.json"
# A ratio that is worse than the one in `baseline.json` by more than this share is marked.
TOLERANCE = 0.03
# The figures of a row, and whether a larger one is better.
FIGURES = {"rate": True, "p50": False, "p99": False, "cpu": False, "peak": False}
TOOL = str(TARGET / "steadfast-bench")
FANOUT_SESSIONS, PUBLICATIONS = 10_000, 20


def commit_of(name):
    """The full name of a commit; `None` where `name` is none."""
    done = subprocess.run(["git", "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or None


def program_of(name):
    """The server program of a commit, which is built once with that commit's own release profile,
    or the program at a path."""
    if Path(name).is_file():
        return Path(name).resolve()
    commit = commit_of(name)
    if not commit:
        raise SystemExit(f"{name} is neither a program nor a commit of this repository")
    program = TARGET.parent / "pairs" / commit[:12]
    if not program.exists():
        print(f"building {name} (once) ...", flush=True)
        program.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=program.parent) as scratch:
            source = Path(scratch, "source")
            source.mkdir()
            archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
            subprocess.run(["tar", "-x"], cwd=source, input=archive, check=True)
            subprocess.run(["cargo", "build", "--release", "--locked", "-p", "steadfast-server", "--target-dir", f"{scratch}/target"], cwd=source, check=True)
            Path(scratch, "target", "release", "steadfast").rename(program)
    return program


class Build:
    """One of the two builds: its program, and what that program can do."""

    def __init__(self, name, program):
        self.name, self.program = name, program
        config = subprocess.run([program, "serve", "--print-config"], check=True, capture_output=True, text=True).stdout
        self.bounds_publications = "publish_rate" in config
        self.has_edge = "[edge]" in config
        self.has_block = subprocess.run([program, "block", "--help"], capture_output=True).returncode == 0

    @contextlib.contextmanager
    def server(self, scratch, settings=(), config=None):
        """A server of this build on a fresh directory, with a live port."""
        directory = scratch / self.name
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        (directory / "live.json").write_text(json.dumps(LIVE_CONFIG))
        port = free_port()
        options = ["--live-listen", f"127.0.0.1:{port}", "--live-config", str(directory / "live.json")]
        for setting in (*settings, *(["live.publish_rate=0"] if self.bounds_publications else [])):
            options += ["--set", setting]
        if config:
            (directory / "steadfast.toml").write_text(config)
            options += ["--config", str(directory / "steadfast.toml")]
        server = Server(self.name, directory / "data", options, self.program)
        server.live_port = port
        try:
            yield server.start()
        finally:
            server.stop()
            shutil.rmtree(directory, ignore_errors=True)


def cpu_us(pid):
    """CPU time of a process so far, user and system, microseconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * 1e6 / TICKS


def peak_mib(pid):
    """Peak resident memory of a process, MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


class Pairs:
    """The rounds of both builds, and their table."""

    def __init__(self, args, scratch, builds, reached):
        self.args, self.scratch, self.builds, self.reached = args, scratch, builds, reached
        self.ratios, self.notes = {}, []

    def wanted(self, *names):
        """Whether any of these rows is to be measured."""
        return any(self.args.only in name for name in names)

    def row(self, name, sides, measure):
        """Adds a row: `measure(side, round)` returns its figures. `sides` are old and new."""
        if not self.wanted(name):
            return
        pairs = []
        for number in range(self.args.rounds):
            turn = (0, 1) if number % 2 == 0 else (1, 0)
            figures = {which: measure(sides[which], number) for which in turn}
            pairs.append((figures[0], figures[1]))
        fields = [field for field in FIGURES if all(pair[0].get(field) and pair[1].get(field) for pair in pairs)]
        self.ratios[name] = {field: round(statistics.median(new[field] / old[field] for old, new in pairs), 3) for field in fields}
        self.show(name, {field: statistics.median(new[field] for _, new in pairs) for field in fields})

    def show(self, name, figures):
        cells = []
        for field in FIGURES:
            value = self.ratios[name].get(field)
            cells.append("      -  " if value is None else f"{value:7.2f}{'!' if self.is_worse(name, field) else ' '} ")
        absolute = ", ".join(f"{field} {value:,.0f}" if value >= 100 else f"{field} {value:.3g}" for field, value in figures.items())
        print(f"{name:<34}{''.join(cells)}  {absolute}", flush=True)

    def is_worse(self, name, field):
        """Whether the ratio is worse than the one that was reached, by more than the tolerance. A
        99th percentile varies by more than that from run to run."""
        if field == "p99":
            return False
        before, now = self.reached.get(name, {}).get(field), self.ratios[name].get(field)
        if before is None or now is None:
            return False
        return now < before * (1 - TOLERANCE) if FIGURES[field] else now > before * (1 + TOLERANCE)

    @contextlib.contextmanager
    def servers(self, settings=(), config=None):
        with contextlib.ExitStack() as stack:
            yield [stack.enter_context(build.server(self.scratch, settings, config)) for build in self.builds]

    def objects(self):
        def load(op, **options):
            def measure(server, number):
                prefix = options.get("prefix", f"{op}{options['size']}-{options['clients']}-{number}")
                row = server.load(op, seconds=self.args.seconds, **dict(options, prefix=prefix))
                if row["errors"]:
                    self.notes.append(f"{server.name}: {op} {options}: {row['errors']} errors")
                return dict(rate=row["rate"], p50=row["p50_us"], p99=row["p99_us"], cpu=row["server_cpu_us"])
            return measure

        def listing(server, number):
            row = server.load("list", bucket="listing")
            return dict(rate=row["rate"], p50=row["p50_us"], p99=row["p99_us"], cpu=row["server_cpu_us"])

        def reads(servers, label, cases):
            for size, objects, clients in cases:
                name = f"GET {size_name(size)}, {clients} clients{label}"
                if self.wanted(name):
                    for server in servers:
                        server.load("fill", size=size, objects=objects, clients=8, prefix=f"g{size}", unsigned=True)
                    self.row(name, servers, load("get", size=size, objects=objects, clients=clients, prefix=f"g{size}"))

        with self.servers() as servers:
            for size, clients in ((4096, 1), (4096, 64), (MIB, 16)):
                self.row(f"PUT {size_name(size)}, {clients} clients", servers, load("put", size=size, clients=clients))
            reads(servers, "", ((4096, 2000, 1), (4096, 2000, 64), (MIB, 100, 16), (10 * MIB, 12, 8)))
            if self.wanted("list 100,000 keys"):
                for server in servers:
                    server.load("fill", size=16, objects=100_000, clients=64, bucket="listing")
                self.row("list 100,000 keys", servers, listing)
        with self.servers(["store.cache=0 B"]) as servers:
            reads(servers, ", from disk", ((4096, 2000, 64), (10 * MIB, 60, 8)))

    def channels(self):
        def run(server, measure, **options):
            command = live_options(server.live_port, server.process.pid, measure, **options)
            done = subprocess.run([TOOL, *command], capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"{server.name} {measure} {options}: {done.stderr.strip()}")
            return json.loads(done.stdout)

        def publish(publishers, way):
            def measure(server, number):
                row = run(server, "publish", publishers=publishers, way=way, seconds=self.args.seconds, channel=f"p{publishers}{way}{number}")
                return dict(rate=row["rate"], p50=row["p50_us"], p99=row["p99_us"], cpu=row["server_cpu_us"])
            return measure

        def fanout(server, number):
            row = run(server, "fanout", sessions=FANOUT_SESSIONS, publications=PUBLICATIONS, channel=f"f{number}")
            return dict(p50=row["last_delivery_p50_us"], p99=row["last_delivery_max_us"], cpu=row["server_cpu_us"])

        # A fresh server each time: the sessions of the round before are its memory too.
        def fresh(measure, figures):
            def one(build, number):
                with build.server(self.scratch) as server:
                    row = run(server, measure, sessions=FANOUT_SESSIONS, publications=10)
                    return dict(figures(row), peak=peak_mib(server.process.pid))
            return one

        with self.servers() as servers:
            for publishers in (1, 64):
                for way in ("http", "websocket"):
                    self.row(f"publish, {publishers} publishers, {way}", servers, publish(publishers, way))
            self.row(f"fan-out to {FANOUT_SESSIONS:,} sessions", servers, fanout)
        self.row(f"connects, {FANOUT_SESSIONS:,} sessions", self.builds,
                 fresh("connect", lambda row: dict(rate=row["connects_with_subscribe_per_s"], cpu=row["subscribe_server_cpu_us"])))
        self.row(f"recoveries, {FANOUT_SESSIONS:,} sessions", self.builds,
                 fresh("storm", lambda row: dict(rate=row["recoveries_per_s"], cpu=row["server_cpu_us"])))

    def memory(self):
        """Peak memory of a fresh server under PUTs and GETs of several sizes."""
        def one(build, number):
            with build.server(self.scratch) as server:
                for size, objects, clients in ((4096, 20_000, 64), (10 * MIB, 30, 30)):
                    server.load("fill", size=size, objects=objects, clients=clients, prefix=f"m{size}", unsigned=True)
                    server.load("get", size=size, objects=objects, clients=clients, seconds=self.args.seconds, prefix=f"m{size}")
                return dict(peak=peak_mib(server.process.pid))
        self.row("memory under PUT and GET", self.builds, one)

    def edge(self):
        names = [f"edge hit {size_name(size)}, 16 clients" for size in (MIB, 16 * MIB)]
        if not self.wanted(*names):
            return
        if missing := [build.name for build in self.builds if not build.has_edge]:
            return self.notes.append(f"no rows of the edge: the {missing[0]} build has no buckets with an origin")
        with Origin() as origin:
            origin.set()
            bucket = dict(bucket="media", origin=f"http://{origin.address}/vod", allow_private=True, public_read=True, space="6 GiB")
            config = "[[edge.buckets]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in bucket.items())
            with self.servers(["store.cache=0 B"], config) as servers:
                for size, name in zip((MIB, 16 * MIB), names):
                    self.hits(servers, size, name)

    def hits(self, servers, size, name):
        """Hits that come from the disk, each object once a turn."""
        jobs = [(f"/{size}/hit{n}", size) for n in range(512 * MIB // size)]

        def get(server, number):
            before = cpu_us(server.process.pid)
            row = fetch(f"127.0.0.1:{server.port}", jobs, "/media", clients=16, unchecked=True)
            if row["errors"]:
                raise RuntimeError(f"{server.name}: {row['errors']} errors; the first: {row['first_error']}")
            return dict(rate=len(jobs) / row["seconds"], p50=row["last_p50_ms"] * 1000, p99=row["last_p99_ms"] * 1000,
                        cpu=(cpu_us(server.process.pid) - before) / len(jobs))

        if self.wanted(name):
            for server in servers:
                get(server, 0)
            # The last fills may still be written.
            time.sleep(2)
            self.row(name, servers, get)

    def block(self):
        names = [f"NBD read 4 KiB, depth {depth}" for depth in (1, 32)]
        if not self.wanted(*names):
            return
        if missing := [build.name for build in self.builds if not build.has_block]:
            return self.notes.append(f"no rows of NBD: the {missing[0]} build has no block device")
        with contextlib.ExitStack() as stack:
            disks = [stack.enter_context(self.disk(build)) for build in self.builds]
            for depth, name in zip((1, 32), names):
                def read(disk, number):
                    before = cpu_us(disk.process.pid)
                    row = disk.load(TOOL, "read", depth=depth, seconds=self.args.seconds, seed=number + 1)
                    return dict(rate=row["per_s"], p50=row["p50_us"], p99=row["p99_us"],
                                cpu=(cpu_us(disk.process.pid) - before) / row["requests"])
                self.row(name, disks, read)

    @contextlib.contextmanager
    def disk(self, build):
        """A super-disk of two plain files over NBD, filled."""
        directory = self.scratch / f"{build.name}-disk"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        legs = ["--durable", str(directory / "durable"), "--fast", str(directory / "fast")]
        subprocess.run([build.program, "block", "format", "--size", str(2 * SPAN), *legs], check=True, stdout=subprocess.DEVNULL)
        path = directory / "sock"
        with open(OUT / f"{build.name}.log", "a") as log:
            disk = Disk(build.name, path, [build.program, "block", "serve", "--name", "disk", "--listen", f"unix:{path}", *legs], log)
        try:
            disk.load(TOOL, "fill")
            yield disk
        finally:
            disk.stop()
            shutil.rmtree(directory, ignore_errors=True)


def size_name(size):
    return f"{size >> 10} KiB" if size < MIB else f"{size >> 20} MiB"


def baseline_text(saved):
    """The baseline as JSON with one row a line, so that a change of a row is a change of a line."""
    rows = lambda ratios: ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in ratios.items())
    return "{\n" + ",\n".join(f' "{key}": {{\n{rows(ratios)}\n }}' for key, ratios in saved.items()) + "\n}\n"


def run(args):
    builds = [Build("old", program_of(args.against)), Build("new", Path(args.new) if args.new else TARGET / "steadfast")]
    saved = json.loads(BASELINE.read_text())
    commit = commit_of(args.against)
    key = f"{PROFILE} against {commit[:7]}" if commit else ""
    reached = saved.get(key, {})
    pairs = Pairs(args, args.dir / "pairs", builds, reached)
    print(f"new / old, medians of {args.rounds} rounds; old: {args.against}; '!': worse than baseline.json by more than {TOLERANCE:.0%}")
    print(f"{'':<34}{'rate':>7}  {'p50':>7}  {'p99':>7}  {'cpu':>7}  {'peak':>7}     the new build's figures (us, MiB)")
    for part in (pairs.objects, pairs.channels, pairs.memory, pairs.edge, pairs.block):
        part()
    for note in pairs.notes:
        print(f"note: {note}")
    result = OUT / "pairs.json"
    result.write_text(json.dumps(dict(against=args.against, rounds=args.rounds, ratios=pairs.ratios, notes=pairs.notes), indent=1) + "\n")
    if args.save:
        if not commit:
            raise SystemExit("--save needs a commit as --against")
        saved[key] = dict(reached, **pairs.ratios)
        BASELINE.write_text(baseline_text(saved))
        print(f"written: {BASELINE.name}")
