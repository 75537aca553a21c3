"""Benchmarks of disks: pools of several disks, super-disks, and compaction of a full pool."""

import contextlib
import json
import shutil
import subprocess
import threading
import time

from common import TARGET, Server, median, slow_disk

DISK_BYTES_S = 20_000_000
POOL_MIB = 2048


def bench_disks(report, args, scratch, peers):
    """PUTs onto 1, 2, 4 and 8 disks of 20 MB/s each, 16 clients a disk: throughput against that
    many times one disk."""
    one = {}
    for size, label in ((1 << 20, "1 MiB"), (10 << 20, "10 MiB")):
        for count in (1, 2, 4, 8):
            with contextlib.ExitStack() as stack:
                mounts = [stack.enter_context(slow_disk(scratch / f"disk{n}", {"bandwidth": DISK_BYTES_S})) for n in range(count)]
                if None in mounts:
                    report.note("FUSE is missing: pools of several disks were not measured")
                    return
                directory = scratch / "many"
                shutil.rmtree(directory, ignore_errors=True)
                directory.mkdir(parents=True)
                disks = ",".join(str(mount / "pool") for mount in mounts)
                server = Server("steadfast", directory, ["--set", f"data.disks={disks}", "--set", "data.pool_size=8 GiB"]).start()
                try:
                    rate = steady(server, size, 16 * count, 2 * args.seconds)["mib_per_s"]
                finally:
                    server.stop()
                    shutil.rmtree(directory, ignore_errors=True)
            one.setdefault(size, rate)
            report.add(f"PUT {label} onto {count} disks of 20 MB/s", "MiB/s", rate, count * one[size],
                       f"{count} x one disk (all behind one cache disk of that speed: {one[size]:.1f})", ">= 0.9" if count == 8 else "-")


def steady(server, size, clients, seconds):
    """The MiB/s that reach the disks during a load of PUTs, without its beginning and end, where
    disks wait for clients."""
    load = threading.Thread(target=server.load, args=("put",), kwargs=dict(size=size, clients=clients, seconds=seconds + 5, prefix=f"s{size}"))
    load.start()
    time.sleep(4)
    samples = []
    for _ in range(2):
        samples.append((time.monotonic(), server.status()["store"]["log"]["chunk_bytes"]))
        if len(samples) == 1:
            time.sleep(seconds)
    load.join()
    (t0, b0), (t1, b1) = samples
    return dict(mib_per_s=(b1 - b0) / (t1 - t0) / (1 << 20))


def bench_superdisk(report, args, scratch, peers):
    """A super-disk of two striped fast files and a durable file with 1.5 ms reads and flushes,
    compared with each leg alone."""
    # In every row the fast files are plain files and the durable one is on the FUSE disk, so both
    # sides of each comparison pay the cost of FUSE.
    delays = [{"add": {"op": op, "fault": "delay", "path": "durable", "delay_us": 1500}} for op in ("read", "fsync")]
    with slow_disk(scratch, *delays) as mount:
        if mount is None:
            report.note("FUSE is missing: the super-disk was not measured")
            return
        directory = scratch / "superdisk"
        shutil.rmtree(directory, ignore_errors=True)
        files = ["store.cache=0 B", "data.pool_size=8 GiB"]
        pair = lambda name: ",".join(str(directory / f"{name}{n}") for n in range(2))
        kinds = {
            "fast leg alone": [f"data.stripe={pair('alone')}"],
            "durable leg alone": [f"data.pool={mount / 'durable-alone'}"],
            "super-disk": [f"data.pool={mount / 'durable-pair'}", f"superdisk.fast={pair('leg')}"],
        }
        running = {}
        try:
            for name, settings in kinds.items():
                data = directory / name.replace(" ", "-")
                data.mkdir(parents=True)
                extra = [word for setting in [*files, *settings] for word in ("--set", setting)]
                subprocess.run([str(TARGET / "steadfast"), "format", "--data", str(data), *extra], check=True, stdout=subprocess.DEVNULL)
                running[name] = Server("steadfast", data, extra).start()
            gets = [(4096, 4000, 1), (4096, 4000, 16), (65536, 1000, 1), (65536, 1000, 16), (1 << 20, 100, 4)]
            puts = [(4096, 1), (4096, 16), (1 << 20, 4)]
            for size in sorted({size for size, *_ in gets}):
                objects = next(count for s, count, _ in gets if s == size)
                for server in running.values():
                    server.load("fill", size=size, objects=objects, clients=16, prefix=f"g{size}", unsigned=True)
            wait_clean(running["super-disk"], report)
            for size, objects, clients in gets:
                compare(report, args, running, "get", "fast leg alone", ("p50_us", "p99_us"), size, clients,
                        dict(objects=objects, prefix=f"g{size}"))
            for size, clients in puts:
                compare(report, args, running, "put", "durable leg alone", ("p50_us", "p99_us"), size, clients, {})
            status = running["super-disk"].status()["superdisks"][0]
            report.note("super-disk: " + json.dumps({k: v for k, v in status.items() if k.startswith(("reads", "hedge", "skipped", "regions"))}))
        finally:
            for server in running.values():
                server.stop()
            shutil.rmtree(directory, ignore_errors=True)


def wait_clean(server, report, seconds=120):
    end = time.monotonic() + seconds
    while server.status()["superdisks"][0]["fast"]["state"] != "clean":
        if time.monotonic() > end:
            report.note(f"the fast leg is not clean after {seconds} s: {server.status()['superdisks'][0]['fast']}")
            return
        time.sleep(0.2)


def compare(report, args, running, op, against, fields, size, clients, options):
    """The same load on each in turn; compares the super-disk with `against`, with the third in the
    detail."""
    rows = {name: [] for name in running}
    for round_ in range(args.rounds):
        # The order changes each time: the after-effects of a load, on the machine and on the disk,
        # must not always hit the same server.
        turns = list(running.items())
        for name, server in turns[round_ % len(turns):] + turns[:round_ % len(turns)]:
            more = dict(prefix=f"p{size}-{clients}-{round_}") if op == "put" else {}
            rows[name].append(server.load(op, size=size, clients=clients, seconds=args.seconds, **options, **more))
    label = f"{size >> 10} KiB" if size < 1 << 20 else f"{size >> 20} MiB"
    for field in fields:
        reach = "<= 1.1" if op == "get" or field == "p50_us" else "-"
        report.add(f"{op.upper()} {label}, {clients} clients, {field[:3]}", "us", median(rows["super-disk"], field),
                   median(rows[against], field), against, reach, rows if field == fields[0] else None)
    medians = "; ".join(f"{name} {median(rows[name], 'p50_us'):,.0f} / {median(rows[name], 'p99_us'):,.0f}" for name in rows)
    print(f"    p50 / p99 us: {medians}", flush=True)


def bench_compaction(report, args, scratch, peers):
    """PUTs over random objects, with deletes between, in a pool that is 90 % full and must compact
    all the time; compared with a pool with free space."""
    for size, clients, label in ((64 << 10, 16, "64 KiB"), (1 << 20, 4, "1 MiB")):
        # Records and chunks have heads and padding; this count fills the pool to 90 %.
        objects = int(0.9 * (POOL_MIB << 20) / (size + (4096 if size > 128 << 10 else 700)))
        kinds = {"90 % full": [f"data.pool_size={POOL_MIB} MiB"], "half empty": ["data.pool_size=24 GiB", "compaction.enabled=false"]}
        running, rows = {}, {}
        try:
            for name, settings in kinds.items():
                directory = scratch / f"compaction-{name.replace(' ', '-').replace('%', 'percent')}"
                shutil.rmtree(directory, ignore_errors=True)
                directory.mkdir(parents=True)
                extra = [word for setting in ["data.extent_size=16 MiB", "scrub.enabled=false", *settings] for word in ("--set", setting)]
                running[name] = Server("steadfast", directory, extra).start()
                running[name].load("fill", size=size, objects=objects, clients=16, prefix="c", unsigned=True)
            # Run until the extents filled in the beginning have been compacted.
            churn = dict(size=size, objects=objects, clients=clients, prefix="c", unsigned=True)
            running["90 % full"].load("churn", seconds=2 * args.seconds, **churn)
            before = running["90 % full"].status()["store"]
            for _ in range(args.rounds):
                for name, server in running.items():
                    rows.setdefault(name, []).append(server.load("churn", seconds=args.seconds, **churn))
            after = running["90 % full"].status()
            log, was = after["store"]["log"], before["log"]
            written = sum(log[key] - was[key] for key in ("frame_bytes", "chunk_bytes"))
            moved = log["compaction"]["moved_bytes"] - was["compaction"]["moved_bytes"]
            live = sum(log["extents"][key] for key in ("live_commit_bytes", "live_body_bytes"))
            used = log["extent_bytes"] * sum(log["extents"][key] for key in ("open_commit", "open_body", "sealed_commit", "sealed_body"))
            for field in ("p50_us", "p99_us", "rate"):
                report.add(f"PUT {label} at 90 % full, {clients} clients, {field.partition('_')[0]}", "PUT/s" if field == "rate" else "us", median(rows["90 % full"], field),
                           median(rows["half empty"], field), "half empty, no compaction", "-", rows if field == "p50_us" else None)
            report.add(f"  write amplification, {label}", "x", written / max(1, written - moved), None, "-", "-", dict(written=written, moved=moved))
            report.add(f"  space amplification, {label}", "x", used / max(1, after["store"]["object_bytes"]), None, "-", "-", dict(used=used, live=live, pool=POOL_MIB << 20))
            report.add(f"  live, {label}", "% of the pool", 100 * live / (POOL_MIB << 20), None, "-", "-")
            report.add(f"  errors, {label}", "requests", sum(row["errors"] for both in rows.values() for row in both), None, "-", "0")
        finally:
            for server in running.values():
                server.stop()
                shutil.rmtree(server.dir, ignore_errors=True)
