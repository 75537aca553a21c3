"""`bench/run block`: a super-disk over NBD, the durable disk alone, and qemu-nbd over the bare fast
file."""

import contextlib
import json
import shutil
import socket
import statistics
import subprocess
import time

import plot

SPAN = 512 << 20
DELAY_US = 1500
# A load with more outstanding reads than this has queued up.
OUTSTANDING_MAX = 100


class Disk:
    """An NBD server on a Unix socket, and its disk."""

    def __init__(self, name, socket_path, command, log):
        self.name, self.socket = name, socket_path
        socket_path.unlink(missing_ok=True)
        self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        end = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as s:
                s.connect(str(socket_path))
                return
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{name} does not listen: {log.name}")
            time.sleep(0.01)

    def load(self, tool, op, **options):
        command = [str(tool), "block", "--socket", str(self.socket), "--op", op, "--span", str(SPAN)]
        for name, value in options.items():
            command += [f"--{name}", str(value)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if done.returncode:
            raise RuntimeError(f"{self.name} {op} {options}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def stop(self):
        self.process.terminate()
        self.process.wait(60)


def status(target, port):
    """The pair's state."""
    command = [str(target / "steadfast"), "block", "status", "--admin", f"http://127.0.0.1:{port}", "--json"]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)[0]["superdisks"][0]


def make_files(target, directory, mount):
    """Formats the super-disk and the durable disk alone, and creates the raw files of qemu-nbd."""
    for legs in ([mount / "durable-pair", "--fast", directory / "fast"], [mount / "durable-alone"]):
        command = [target / "steadfast", "block", "format", "--size", 2 * SPAN, "--durable", *legs]
        subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
    for path in (mount / "durable-bare", directory / "bare"):
        with open(path, "wb") as file:
            file.truncate(2 * SPAN)


@contextlib.contextmanager
def served(target, directory, mount, port, io):
    """Serves all of them, each on files of its own."""
    path = lambda name: directory / f"{name}.sock"
    ours = lambda name, *args: [target / "steadfast", "block", "serve", "--io", io, "--name", "disk", "--listen", f"unix:{path(name)}", *args]
    qemu = lambda name, file: ["qemu-nbd", "--persistent", "--shared=4", "--format=raw", "--cache=none", "--export-name=disk",
                               "--socket", path(name), file]
    commands = {
        "super-disk": ours("super-disk", "--durable", mount / "durable-pair", "--fast", directory / "fast",
                           "--admin-listen", f"127.0.0.1:{port}"),
        "durable alone": ours("durable alone", "--durable", mount / "durable-alone"),
        "qemu-nbd, durable file": qemu("qemu-nbd, durable file", mount / "durable-bare"),
        "qemu-nbd, fast file": qemu("qemu-nbd, fast file", directory / "bare"),
    }
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(open(directory / "log", "a"))
        disks = {}
        for name, command in commands.items():
            disks[name] = Disk(name, path(name), command, log)
            stack.callback(disks[name].stop)
        yield disks


def fill(target, port, disks):
    for disk in disks.values():
        disk.load(target / "steadfast-bench", "fill")
    end = time.monotonic() + 120
    while status(target, port)["fast"]["state"] != "clean" and time.monotonic() < end:
        time.sleep(0.2)


def closed(report, args, target, disks, ops, against, reach):
    """Depth 1 and 32; the servers take turns."""
    for op in ops:
        for depth in (1, 32):
            rows = {name: [] for name in disks}
            for round_ in range(args.rounds):
                turns = list(disks.values())
                for disk in turns[round_ % len(turns):] + turns[:round_ % len(turns)]:
                    rows[disk.name].append(disk.load(target / "steadfast-bench", op, depth=depth, seconds=args.seconds, seed=round_ + 1))
            middle = lambda name, field: statistics.median(row[field] for row in rows[name])
            label = {"read": "read", "write": "write", "commit": "write and flush"}[op]
            for field in ("p50_us", "p99_us"):
                report.add(f"{label} 4 KiB, depth {depth}, {field[:3]}", "us", middle("super-disk", field), middle(against, field), against,
                           reach if field == "p50_us" else "-", rows if field == "p50_us" else None)
            print("    per second: " + "; ".join(f"{name} {middle(name, 'per_s'):,.0f}" for name in rows), flush=True)


def first_writes(report, target, disks):
    """The cost of a region's first write after a start, then enough writes for the steady state."""
    ours, other = (disks[name].load(target / "steadfast-bench", "write", seconds=0.5) for name in ("super-disk", "durable alone"))
    report.add("first write of a region, depth 1, p50", "us", ours["p50_us"], other["p50_us"], "durable alone", "-")
    disks["super-disk"].load(target / "steadfast-bench", "write", depth=32, seconds=5, seed=2)


def rising(report, args, target, disks):
    """Reads at a rising rate until they queue up, on each disk in turn; returns the points of each.
    """
    points = {}
    for disk in (disk for name, disk in disks.items() if name != "durable alone"):
        points[disk.name], rate = [], 1000.0
        while True:
            # The best of two: a pause of the machine is not a queue of the disk.
            rows = [disk.load(target / "steadfast-bench", "read", rate=rate, seconds=args.seconds / 2, seed=seed) for seed in (1, 2)]
            row = min(rows, key=lambda row: row["outstanding"])
            points[disk.name].append(dict(rate=rate, **row))
            queued = row["outstanding"] > OUTSTANDING_MAX or row["unsent"] > row["requests"] / 20
            print(f"    {disk.name}: {rate:,.0f}/s offered, {row['per_s']:,.0f}/s served, p50 {row['p50_us']:,} us, p99 {row['p99_us']:,} us, "
                  f"outstanding {row['outstanding']:,.1f}", flush=True)
            if queued:
                break
            rate *= 1.3
    served = lambda name: max(point["per_s"] for point in points[name])
    for against in ("qemu-nbd, durable file", "qemu-nbd, fast file"):
        report.add("reads served before they queue up", "1/s", served("super-disk"), served(against), against, "-",
                   points if against == "qemu-nbd, fast file" else None)
    return points


def bench(report, args, scratch, target, slow_disk, free_port, picture):
    if not shutil.which("qemu-nbd"):
        report.note("qemu-nbd is not installed: the block device was not measured")
        return
    delays = [{"add": {"op": op, "fault": "delay", "path": "durable", "delay_us": DELAY_US}} for op in ("read", "write", "fsync")]
    directory = scratch / "block"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    try:
        with slow_disk(scratch, *delays) as mount:
            if mount is None:
                report.note("FUSE is missing: the block device was not measured")
                return
            port = free_port()
            make_files(target, directory, mount)
            with served(target, directory, mount, port, "auto") as disks:
                fill(target, port, disks)
                closed(report, args, target, disks, ["read"], "qemu-nbd, fast file", "<= 1.15")
                points = rising(report, args, target, disks)
                pair = status(target, port)
            # The kernel serializes the writes of an io_uring to a FUSE file, but not to a block
            # device.
            with served(target, directory, mount, port, "threads") as disks:
                first_writes(report, target, disks)
                closed(report, args, target, disks, ["write", "commit"], "durable alone", "<= 1.1")
            report.note("super-disk: " + json.dumps({k: v for k, v in pair.items() if k.startswith(("reads", "hedge", "dirty"))}))
        plot.latency_over_rate(points, picture)
        report.note(f"the plot is {picture.name} in {picture.parent.name}; docs/block-load.svg is a copy of one")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
