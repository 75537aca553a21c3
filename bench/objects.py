"""Benchmarks of the S3 port: PUT, GET, listings, starts and memory."""

import shutil
import signal
import statistics
import time

from common import Server, find, fio, free_port, inner, median, servers, slow_disk

UNCACHED = """[store]
cache = "0 B"
"""


def bench_put(report, args, scratch, peers):
    cases = [(4096, 1), (4096, 16), (4096, 64), (65536, 1), (65536, 16), (65536, 64), (1 << 20, 1), (1 << 20, 16), (1 << 20, 64),
             (10 << 20, 1), (10 << 20, 8), (10 << 20, 64)]
    results = {}
    with servers(scratch, peers) as running:
        for size, clients in cases:
            for round_ in range(args.rounds):
                for server in running:
                    r = server.load("put", size=size, clients=clients, seconds=args.seconds, prefix=f"p{size}-{clients}-{round_}")
                    results.setdefault((server.name, size, clients), []).append(r)
            label = f"{size >> 10} KiB" if size < 1 << 20 else f"{size >> 20} MiB"
            ours, other = results[("steadfast", size, clients)], results.get(("minio", size, clients), [])
            detail = {n: results.get((n, size, clients)) for n in peers}
            reach = {(4096, 64): ">= 15", (10 << 20, 8): ">= 1.5"}.get((size, clients), "-")
            field, unit = ("mib_per_s", "MiB/s") if size >= 1 << 20 else ("rate", "PUT/s")
            report.add(f"PUT {label}, {clients} clients", unit, median(ours, field), median(other, field), "MinIO", reach, detail)
            report.add(f"  p50", "us", median(ours, "p50_us"), median(other, "p50_us"), "MinIO", "<= 0.3" if (size, clients) == (4096, 1) else "-")
            report.add(f"  server CPU", "us/PUT", median(ours, "server_cpu_us"), median(other, "server_cpu_us"), "MinIO",
                       "<= 0.1" if (size, clients) == (4096, 64) else "-")
    limits = [fio(scratch, "write", "1m", 8, args.seconds, ["--end_fsync=1"]) for _ in range(args.rounds)]
    (scratch / "fio.dat").unlink(missing_ok=True)
    if limits[0]:
        report.add("PUT 10 MiB, 8 clients, against the disk", "MiB/s", median(results[("steadfast", 10 << 20, 8)], "mib_per_s"),
                   median(limits, "mib_per_s"), "fio direct write", ">= 0.9 of what hashing leaves")
    else:
        report.note("fio is not installed: the limit of the disk was not measured")


def bench_get(report, args, scratch, peers):
    cases = [(4096, 20000, (1, 16, 64)), (65536, 4000, (1, 16, 64)), (1 << 20, 500, (1, 16, 64)), (10 << 20, 60, (1, 8, 64))]
    with servers(scratch, peers) as running:
        for size, objects, client_counts in cases:
            label = f"{size >> 10} KiB" if size < 1 << 20 else f"{size >> 20} MiB"
            for server in running:
                server.load("fill", size=size, objects=objects, clients=16, prefix=f"g{size}", unsigned=True)
            for clients in client_counts:
                results = {}
                for _ in range(args.rounds):
                    for server in running:
                        r = server.load("get", size=size, objects=objects, clients=clients, seconds=args.seconds, prefix=f"g{size}")
                        results.setdefault(server.name, []).append(r)
                field, unit = ("mib_per_s", "MiB/s") if size >= 1 << 20 else ("rate", "GET/s")
                reach = {(4096, 64): ">= 4 cached", (10 << 20, 8): ">= 1.3"}.get((size, clients), "-")
                report.add(f"GET {label}, {clients} clients, cached", unit, median(results["steadfast"], field),
                           median(results.get("minio", []), field), "MinIO (page cache)", reach, results)
                report.add("  server CPU", "us/GET", median(results["steadfast"], "server_cpu_us"),
                           median(results.get("minio", []), "server_cpu_us"), "MinIO", "-")
    # The same with Steadfast's cache off: every byte comes from the disk, by direct I/O.
    directory = scratch / "uncached"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    config = directory / "steadfast.toml"
    config.write_text(UNCACHED)
    server = Server("steadfast", directory / "data", ["--config", str(config)]).start()
    try:
        peer = next((s for s in peers if s == "minio"), None)
        with servers(scratch, [peer] if peer else []) as others:
            for size, objects, clients, field, unit, reach in [(4096, 20000, 64, "rate", "GET/s", ">= 2"), (10 << 20, 60, 8, "mib_per_s", "MiB/s", "-")]:
                both = [server, *others]
                for s in both:
                    s.load("fill", size=size, objects=objects, clients=16, prefix=f"u{size}", unsigned=True)
                rows = {}
                for _ in range(args.rounds):
                    for s in both:
                        rows.setdefault(s.name, []).append(s.load("get", size=size, objects=objects, clients=clients, seconds=args.seconds, prefix=f"u{size}"))
                label = f"{size >> 10} KiB" if size < 1 << 20 else f"{size >> 20} MiB"
                ours = median(rows["steadfast"], field)
                report.add(f"GET {label}, {clients} clients, uncached", unit, ours, median(rows.get("minio", []), field), "MinIO (page cache)", reach, rows)
                limits = [fio(scratch, "randread" if size == 4096 else "read", "4k" if size == 4096 else "1m", 64 if size == 4096 else 16, args.seconds) for _ in range(args.rounds)]
                if limits[0]:
                    report.add(f"GET {label}, {clients} clients, uncached", unit, ours, median(limits, "iops" if field == "rate" else "mib_per_s"),
                               "fio direct read", ">= 0.9" if field != "rate" else "-")
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)
        (scratch / "fio.dat").unlink(missing_ok=True)


def bench_list(report, args, scratch, peers):
    objects = args.list_objects
    with servers(scratch, peers) as running:
        results = {}
        for server in running:
            server.load("fill", size=16, objects=objects, clients=64, bucket="listing")
        for _ in range(args.rounds):
            for server in running:
                r = server.load("list", bucket="listing")
                if r["operations"] != objects:
                    report.note(f"{server.name} listed {r['operations']} of {objects} keys")
                results.setdefault(server.name, []).append(r)
        report.add(f"list {objects:,} keys", "keys/s", median(results["steadfast"], "rate"), median(results.get("minio", []), "rate"), "MinIO", "-", results)
        report.add("  server CPU", "us/key", median(results["steadfast"], "server_cpu_us"), median(results.get("minio", []), "server_cpu_us"), "MinIO", "<= 0.1")


def bench_start(report, args, scratch, peers):
    """Start with many objects: clean, and after kill -9."""
    directory = scratch / "start"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    try:
        filled = inner(report, "fill-store", "--dir", directory, "--objects", args.start_objects, "--size", 4096)
        if not filled:
            return
        times = {"clean": [], "kill -9": []}
        server = Server("steadfast", directory)
        # The first start opens a pool filled by another process; the last one only ends the last
        # round.
        for round_ in range(args.rounds + 1):
            for how, name in ((signal.SIGTERM, "kill -9" if round_ else None), (signal.SIGKILL, "clean")):
                begin = time.monotonic()
                server.port, server.admin_port = free_port(), free_port()
                server.start()
                elapsed = time.monotonic() - begin
                if name:
                    times[name].append(elapsed)
                if round_ == args.rounds:
                    server.stop()
                    break
                server.load("fill", size=4096, objects=2000, clients=64, prefix=f"late{round_}", bucket="bench")
                server.stop(how)
        for name, reach in (("clean", "<= 1 s"), ("kill -9", "<= 3 s")):
            if times[name]:
                report.add(f"start with {args.start_objects:,} objects after {name}", "s", statistics.median(times[name]), None, "-", reach, times[name])
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def bench_memory(report, args, scratch, peers):
    """200 uploads of 2 MiB at once onto a disk slowed to 5 MB/s: memory stays at the budget plus a
    constant."""
    with slow_disk(scratch, {"bandwidth": 5_000_000}) as mount:
        if mount is None:
            report.note("FUSE is missing: the memory bound on a slow disk was not measured")
            return
        server = Server("steadfast", mount / "data").start()
        try:
            idle = server.load("put", seconds=0)["server_peak_mib"]
            rows = server.load("fill", objects=200, clients=200, size=2 << 20, prefix="slow")
            budget = find(server.status(), "pending_bytes_max") / (1 << 20)
        finally:
            server.stop()
        report.add("peak memory, 200 x 2 MiB onto 5 MB/s", "MiB", rows["server_peak_mib"], budget, "the budget", "budget + 64 MiB",
                   dict(idle_mib=idle, **rows))
