"""Benchmarks of the archive: what it costs, and restores from a second server."""

import json
import os
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

from common import KEY, SECRET, TARGET, Server, find, fio, inner, median
from live import live_options, live_server

OBJECTS, OBJECT_BYTES = 410, 10 << 20
SERVED_OBJECTS = 100_000


def archived(pool):
    """Waits until the archive has all; how long that took."""
    begin = time.monotonic()
    begun_ms = time.time() * 1000
    while True:
        # The pool may not be open yet.
        now = pool.status().get("archive")
        if now and now["error"]:
            raise RuntimeError(now["error"])
        if now and now["looked_ms"] > begun_ms and now["following"] and now["lag_bytes"] == 0 and now["lag_seconds"] == 0:
            return time.monotonic() - begin
        time.sleep(0.05)


def restore(directory, settings):
    """Restores into a directory: the report of the command, and the seconds it took."""
    begin = time.monotonic()
    done = subprocess.run([str(TARGET / "steadfast"), "restore", "--data", str(directory), "--take-over", "--json", *settings],
                          capture_output=True, text=True, env=dict(os.environ, STEADFAST_ACCESS_KEY=KEY, STEADFAST_SECRET_KEY=SECRET))
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout), time.monotonic() - begin


def settings_of(store, prefix):
    place = dict(to=f"s3://backup/{prefix}", endpoint=f"http://127.0.0.1:{store.port}", access_key=KEY, secret_key=SECRET)
    return [f"--set=archive.{name}={value}" for name, value in place.items()]


def bench_archive(report, args, scratch, peers):
    """Writes with an archive in a second server on the same machine, against those without."""
    directory = scratch / "store"
    shutil.rmtree(directory, ignore_errors=True)
    store = Server("store", directory).start()
    store.load("fill", size=1, objects=1, clients=1, bucket="backup")
    try:
        with live_server(scratch, "plain") as (plain, plain_port), \
             live_server(scratch, "archived", extra=settings_of(store, "writes")) as (ours, port):
            archived(ours)
            for size, clients in ((4096, 1), (4096, 64), (1 << 20, 8)):
                rows = {}
                for n in range(args.rounds):
                    for server in (plain, ours):
                        row = server.load("put", size=size, clients=clients, seconds=args.seconds, prefix=f"a{size}-{clients}-{n}")
                        rows.setdefault(server, []).append(row)
                        archived(ours)
                for field, unit, reach in (("rate", "PUT/s", ">= 0.9"), ("p50_us", "us", "<= 1.03" if clients == 1 else "-"),
                                           ("server_cpu_us", "us CPU", "<= 1.1" if size == 4096 else "-")):
                    report.add(f"PUT {size >> 10} KiB, {clients} clients, archived", unit, median(rows[ours], field), median(rows[plain], field),
                               "without an archive", reach, rows[ours])
            for publishers in (1, 64):
                rows = {}
                for n in range(args.rounds):
                    for server, at in ((plain, plain_port), (ours, port)):
                        command = live_options(at, server.process.pid, "publish", publishers=publishers, seconds=args.seconds, way="http",
                                               channel=f"p{publishers}-{n}")
                        rows.setdefault(server, []).append(inner(report, *command))
                        archived(ours)
                for field, unit, reach in (("rate", "per s", ">= 0.9"), ("p50_us", "us", "<= 1.03" if publishers == 1 else "-")):
                    report.add(f"publish, {publishers} publishers, archived", unit, median(rows[ours], field), median(rows[plain], field),
                               "without an archive", reach, rows[ours])
            now = ours.status()
            sent, written = now["archive"]["sent_bytes"], sum(find(now["disk"], name) or 0 for name in ("written_bytes", "write_bytes"))
            requests = now["archive"]["creates"] + now["archive"]["replaces"]
            report.note(f"archived: {sent >> 20} MiB sent in {requests:,} requests, {now['archive']['cuts']:,} states; the disk wrote {written >> 20} MiB")
        hand_over(report, args, scratch, store)
    finally:
        store.stop()
        shutil.rmtree(directory, ignore_errors=True)


def hand_over(report, args, scratch, store):
    """Sessions that connect again after a hand-over: to a server that has just been promoted, at the same port."""
    rows, sessions, directory = [], 5_000, scratch / "standby"
    for n in range(args.rounds):
        settings = settings_of(store, f"hand-over-{n}")
        with live_server(scratch, "owner", extra=settings) as (owner, port):
            archived(owner)
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(mode=0o700, parents=True)
            shutil.copy(owner.dir / "seal.key", directory)
            live = owner.extra[:owner.extra.index(settings[0])]
            standby = Server("standby", directory, [*live, *settings, "--standby"])
            try:
                standby.start(standby.admin_port)
                # The owner has handed the archive over when it permits the promotion.
                promote = f"{TARGET / 'steadfast'} promote --data {directory}"
                command = f"kill -TERM {owner.process.pid}; until {promote} > /dev/null 2>&1; do sleep 0.02; done"
                found = inner(report, "live", "--endpoint", f"127.0.0.1:{port}", "--measure", "storm", "--api-key", KEY,
                              "--sessions", sessions, "--publications", 10, "--between", command)
                if found:
                    rows.append(dict(found, all_s=found["between_s"] + found["seconds"]))
            finally:
                standby.stop()
                shutil.rmtree(directory, ignore_errors=True)
    report.add("hand-over to a standby, until it serves", "s", median(rows, "between_s"), None, "-", "<= 2 s", rows)
    report.add(f"  and {sessions:,} sessions have recovered", "s", median(rows, "all_s"), None, "-", "<= 10 s", rows)


def limit(scratch, store, seconds, rate):
    """GETs of 8 MiB from the store, while the same disk takes writes at the rate of the restore."""
    options = dict(size=8 << 20, objects=64, clients=8, seconds=seconds, prefix="limit", bucket="backup")
    with ThreadPoolExecutor() as pool:
        writes = pool.submit(fio, scratch, "write", "1m", 8, seconds + 1, ["--end_fsync=1", f"--rate={max(1, int(rate))}m"])
        return dict(store=store.load("get", **options)["mib_per_s"], written=writes.result())


def serve_point(report, args, store, directory, running):
    """The newest state of a pool of small objects, served straight from its archive."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    if not inner(report, "fill-store", "--dir", directory, "--objects", SERVED_OBJECTS, "--size", 4096):
        return
    settings = settings_of(store, "served")
    pool = Server("pool", directory, settings).start()
    running.append(pool)
    archived(pool)
    pool.stop()
    shutil.rmtree(directory)
    rows = []
    for _ in range(args.rounds):
        before, begin = store.status()["disk"]["stats"]["read_bytes"], time.monotonic()
        point = Server("point", directory, [*settings, "--at", "s3://backup/served"]).start()
        while not point.status()["ready"]:
            time.sleep(0.02)
        ready_s = time.monotonic() - begin
        read = store.status()["disk"]["stats"]["read_bytes"] - before
        rows.append(dict(ready_s=ready_s, read_mib=read >> 20, objects=point.status()["store"]["objects"]))
        point.stop()
    report.add(f"serve --at, {SERVED_OBJECTS:,} objects of 4 KiB, ready", "s", median(rows, "ready_s"), None, "-", "<= 5 s", rows)
    report.note(f"serve --at: {rows[0]['read_mib']} MiB read from the store's disk until it was ready, of {SERVED_OBJECTS >> 8} MiB")


def bench_restore(report, args, scratch, peers):
    """4 GiB of media, and many small objects, from a server that reads them from its disk."""
    directories = [scratch / name for name in ("store", "pool")]
    [shutil.rmtree(directory, ignore_errors=True) for directory in directories]
    store = Server("store", directories[0], ["--set", "store.cache=0 B"]).start()
    running = [store]
    try:
        store.load("fill", size=8 << 20, objects=64, clients=8, prefix="limit", bucket="backup")
        for label, prefix, reach in ((f"restore {OBJECTS * OBJECT_BYTES >> 20} MiB", "media", ">= 0.7"),
                                     (f"restore {args.start_objects:,} objects of 4 KiB, ready", "small", "<= 60 s")):
            shutil.rmtree(directories[1], ignore_errors=True)
            settings = settings_of(store, prefix)
            if prefix == "small":
                directories[1].mkdir(parents=True)
                if not inner(report, "fill-store", "--dir", directories[1], "--objects", args.start_objects, "--size", 4096):
                    return
            pool = Server("pool", directories[1], settings).start()
            running.append(pool)
            if prefix == "media":
                pool.load("fill", size=OBJECT_BYTES, objects=OBJECTS, clients=8, prefix="m")
            waited = archived(pool)
            pool.stop()
            rows, limits = [], []
            for _ in range(args.rounds):
                shutil.rmtree(directories[1])
                done, seconds = restore(directories[1], settings)
                row = dict(mib_per_s=done["bytes"] / seconds / (1 << 20), seconds=seconds, objects=done["objects"])
                if prefix == "small":
                    begin = time.monotonic()
                    pool.start()
                    row["ready_s"] = seconds + time.monotonic() - begin
                    pool.stop()
                else:
                    limits.append(limit(scratch, store, args.seconds, row["mib_per_s"]))
                rows.append(row)
            detail = dict(rows=rows, limits=limits, shipped_s=waited)
            if prefix == "media":
                report.add(label, "MiB/s", median(rows, "mib_per_s"), median(limits, "store"), "GETs beside such writes", reach, detail)
            else:
                report.add(label, "s", median(rows, "ready_s"), None, "-", reach, detail)
        serve_point(report, args, store, directories[1], running)
    finally:
        [server.stop() for server in running]
        [shutil.rmtree(directory, ignore_errors=True) for directory in directories]
        (scratch / "fio.dat").unlink(missing_ok=True)
