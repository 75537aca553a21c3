"""Benchmarks of the archive: restores from a second server."""

import json
import os
import shutil
import statistics
import subprocess
import time

from common import KEY, SECRET, TARGET, Server, fio, inner, median

OBJECTS, OBJECT_BYTES = 410, 10 << 20


def archived(pool):
    """Waits until the archive has all; how long that took."""
    begin = time.monotonic()
    begun_ms = time.time() * 1000
    while True:
        now = pool.status()["archive"]
        if now["error"]:
            raise RuntimeError(now["error"])
        if now["looked_ms"] > begun_ms and now["following"] and now["lag_bytes"] == 0 and now["lag_seconds"] == 0:
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
            settings = [f"--set=archive.{name}={value}" for name, value in (
                ("to", f"s3://backup/{prefix}"), ("endpoint", f"http://127.0.0.1:{store.port}"), ("access_key", KEY), ("secret_key", SECRET))]
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
                    read = store.load("get", size=8 << 20, objects=64, clients=8, seconds=args.seconds, prefix="limit", bucket="backup")
                    limits.append(dict(store=read["mib_per_s"], disk=(fio(scratch, "write", "1m", 8, args.seconds, ["--end_fsync=1"]) or {}).get("mib_per_s")))
                rows.append(row)
            detail = dict(rows=rows, limits=limits, shipped_s=waited)
            if prefix == "media":
                slower = [min(value for value in limit.values() if value) for limit in limits]
                report.add(label, "MiB/s", median(rows, "mib_per_s"), statistics.median(slower), "the slower of store and disk", reach, detail)
            else:
                report.add(label, "s", median(rows, "ready_s"), None, "-", reach, detail)
    finally:
        [server.stop() for server in running]
        [shutil.rmtree(directory, ignore_errors=True) for directory in directories]
        (scratch / "fio.dat").unlink(missing_ok=True)
