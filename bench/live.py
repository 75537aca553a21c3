"""Benchmarks of the live port, compared with a bare `send()` loop, JetStream and Centrifugo."""

import contextlib
import json
import os
import shutil
import subprocess

from common import KEY, OUT, ROOT, TARGET, Server, find_go, free_port, inner, median, wait_for

LIVE_CONFIG = {
    "client": {"insecure": True},
    "http_api": {"key": KEY},
    "channel": {
        "without_namespace": {"history_size": 1000, "history_ttl": "1h", "force_recovery": True},
        # The server detects a session that does not read after this many bytes plus its socket's
        # buffer.
        "namespaces": [{"name": "short", "history_size": 10, "history_ttl": "1h", "force_recovery": True}],
    },
}


def bench_live(report, args, scratch, peers):
    """The live port: fan-out, connects, storms, publications and a session that does not read,
    compared with a bare send() loop and NATS JetStream."""
    global PEER, CENTRIFUGO
    named = os.environ.get("CENTRIFUGO")
    PEER, CENTRIFUGO = (None, "Centrifugo") if named else (build_peer(), "Centrifugo's engine")
    if not named and not PEER:
        report.note("Centrifugo's engine could not be built: no comparison with it (CENTRIFUGO=host:port,pid,api-key of a Centrifugo adds one)")
    for sessions in args.live_sessions:
        live_fanout(report, args, scratch, sessions)
    most = max(args.live_sessions)
    live_connects(report, args, scratch, most)
    live_publish(report, args, scratch)
    live_slow(report, args, scratch)


def live_fanout(report, args, scratch, sessions):
    publications = max(10, min(200, 400_000 // sessions))
    with live_server(scratch) as (server, port), floor_server() as (floor, floor_port), centrifugo_server() as centrifugo:
        for encoding in ("json", "protobuf"):
            options = dict(sessions=sessions, publications=publications, format=encoding)
            commands = [live_options(port, server.process.pid, "fanout", channel=f"fan-{encoding}", **options),
                        live_options(floor_port, floor.pid, "fanout", bare=True, **options)]
            if centrifugo:
                commands.append(peer_options(centrifugo, "fanout", **options))
            ours, bare, *peer = inner_rows(report, args.rounds, *commands)
            field = "last_delivery_p50_us"
            report.add(f"publish to last of {sessions:,} sessions, {encoding}", "us", median(ours, field), median(bare, field), "bare send()", "<= 1.4", ours + bare)
            report.add("  server CPU per delivery", "us", median(ours, "server_cpu_us"), median(bare, "server_cpu_us"), "bare send()", "<= 7 us")
            if peer:
                report.add("  last delivery", "us", median(ours, field), median(peer[0], field), CENTRIFUGO, "<= 0.45", peer[0])
                report.add("  server CPU per delivery", "us", median(ours, "server_cpu_us"), median(peer[0], "server_cpu_us"), CENTRIFUGO, "-")
            print(f"    client CPU per delivery: {median(ours, 'client_cpu_us') or 0:.2f} us, at the floor {median(bare, 'client_cpu_us') or 0:.2f} us", flush=True)


def live_connects(report, args, scratch, sessions):
    rows, peer = ({"connect": [], "storm": []} for _ in range(2))
    for _ in range(args.rounds):
        # A fresh server each time: memory is measured on a server that had no sessions before.
        for measure, found in rows.items():
            with live_server(scratch) as (server, port):
                found.append(inner(report, *live_options(port, server.process.pid, measure, sessions=sessions, publications=10)))
            with centrifugo_server() as centrifugo:
                if centrifugo:
                    peer[measure].append(inner(report, *peer_options(centrifugo, measure, sessions=sessions, publications=10)))
    connect, storm = ([row for row in found if row] for found in rows.values())
    beside = CENTRIFUGO if any(peer.values()) else "-"
    theirs = lambda measure, field: median([row for row in peer[measure] if row], field)
    report.add(f"connects, {sessions:,} sessions", "per s", median(connect, "connects_per_s"), theirs("connect", "connects_per_s"), beside, ">= 20,000/s", connect)
    report.add("  with a subscription", "per s", median(connect, "connects_with_subscribe_per_s"), theirs("connect", "connects_with_subscribe_per_s"), beside, "-")
    report.add("  memory of an idle session", "KiB", median(connect, "idle_session_kib"), theirs("connect", "idle_session_kib"), beside, "<= 4 KiB")
    print(f"    CPU us: {show(connect, 'connect_server_cpu_us', 'connect_client_cpu_us', 'subscribe_server_cpu_us', 'subscribe_client_cpu_us')}", flush=True)
    report.add(f"reconnect storm of {sessions:,}, recoveries", "per s", median(storm, "recoveries_per_s"), theirs("storm", "recoveries_per_s"), beside, ">= 20,000/s", storm)
    report.add("  to the last one recovered", "s", median(storm, "seconds"), theirs("storm", "seconds"), beside, "-")
    print(f"    CPU us: {show(storm, 'server_cpu_us', 'client_cpu_us')}; sessions opened at a time: {median(storm, 'window') or 0:.0f}", flush=True)


def live_publish(report, args, scratch):
    with live_server(scratch) as (server, port), nats_server(scratch) as (nats, nats_port), centrifugo_server() as centrifugo:
        if not nats:
            report.note("NATS is not installed and could not be built: no comparison with it")
        for publishers in (1, 64):
            ways = [live_options(port, server.process.pid, "publish", publishers=publishers, seconds=args.seconds, way=way, channel=f"p{publishers}-{way}")
                    for way in ("http", "websocket")]
            others = [["nats", "--endpoint", f"127.0.0.1:{nats_port}", "--pid", str(nats.pid), "--publishers", str(publishers), "--seconds", str(args.seconds)]] if nats else []
            if centrifugo:
                others.append(peer_options(centrifugo, "publish", publishers=publishers, seconds=args.seconds))
            http, websocket, *rest = inner_rows(report, args.rounds, *ways, *others)
            for way, rows in (("HTTP", http), ("WebSocket", websocket)):
                reach = ">= 10, and 20,000/s" if publishers == 64 else "-"
                report.add(f"durable publications, {publishers} publishers, {way}", "per s", median(rows, "rate"), median(rest[0], "rate") if nats else None, "JetStream, sync always", reach, rows)
                print(f"    {show(rows, 'p50_us', 'p99_us', 'server_cpu_us', 'client_cpu_us')}", flush=True)
            if nats:
                print(f"    JetStream: {show(rest[0], 'p50_us', 'p99_us', 'server_cpu_us', 'client_cpu_us')}", flush=True)
            if centrifugo:
                report.add(f"publications, {publishers} publishers, HTTP", "per s", median(http, "rate"), median(rest[-1], "rate"), f"{CENTRIFUGO}, in memory", ">= 1", rest[-1])


def live_slow(report, args, scratch):
    with live_server(scratch, client={"queue_max_size": 256 << 10}) as (server, port):
        (rows,) = inner_rows(report, args.rounds, live_options(port, server.process.pid, "slow", sessions=1000, size=1024, rate=50, seconds=max(20, args.seconds), channel="short:slow"))
    with_slow, without = ([row[part] for row in rows] for part in ("one_does_not", "all_read"))
    report.add("1,000 sessions, one does not read: the others' p99", "us", median(with_slow, "p99_us"), median(without, "p99_us"), "while all read", "unchanged", rows)
    report.add("  p50", "us", median(with_slow, "p50_us"), median(without, "p50_us"), "while all read", "unchanged")
    report.add("  memory that it cost", "MiB", median(rows, "memory_growth_mib"), None, "-", "-")
    print(f"    the session was disconnected with {sorted({row['its_code'] for row in rows})}; {show(rows, 'its_publications', 'memory_mib', 'peak_mib', 'server_cpu_us', 'client_cpu_us')}", flush=True)


def live_options(port, pid, measure, **options):
    command = ["live", "--endpoint", f"127.0.0.1:{port}", "--pid", str(pid), "--measure", measure, "--api-key", KEY]
    for name, value in options.items():
        command += [f"--{name}"] + ([] if value is True else [str(value)])
    return command


def peer_options(centrifugo, measure, **options):
    address, pid, key = centrifugo.split(",")
    command = live_options(0, pid, measure, **options)
    command[command.index("--endpoint") + 1], command[command.index("--api-key") + 1] = address, key
    return command


def inner_rows(report, rounds, *commands):
    """Runs each command `rounds` times, taking turns; returns a list of rows for each."""
    rows = [[] for _ in commands]
    for _ in range(rounds):
        for number, command in enumerate(commands):
            row = inner(report, *command)
            if row:
                rows[number].append(row)
    return rows


def show(rows, *fields):
    return ", ".join(f"{field} {value:,.3g}" for field in fields if (value := median(rows, field)) is not None)


@contextlib.contextmanager
def live_server(scratch, name="live", client=None, extra=()):
    """Steadfast's live port on a fresh directory; returns its server and its port."""
    directory = scratch / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    config = directory / "live.json"
    config.write_text(json.dumps(dict(LIVE_CONFIG, client=dict(LIVE_CONFIG["client"], **(client or {})))))
    port = free_port()
    server = Server("steadfast", directory / "data", ["--live-listen", f"127.0.0.1:{port}", "--live-config", str(config), "--set", "live.publish_rate=0", *extra]).start()
    try:
        yield server, port
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def floor_server():
    """The bare `send()` program; returns its process and its port."""
    process = subprocess.Popen([str(TARGET / "steadfast-bench"), "live-floor"], stdout=subprocess.PIPE, text=True)
    try:
        yield process, int(process.stdout.readline().rpartition(":")[2])
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def centrifugo_server():
    """`host:port,pid,api-key` of the Centrifugo that the environment names, else of a new server of
    its engine (`peer/`); `None` where neither is available."""
    named = os.environ.get("CENTRIFUGO")
    if named or not PEER:
        yield named
        return
    process = subprocess.Popen([PEER, "-key", KEY], stdout=subprocess.PIPE, text=True)
    try:
        yield f"{process.stdout.readline().rpartition(' ')[2].strip()},{process.pid},{KEY}"
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def nats_server(scratch):
    """NATS with JetStream that flushes before it answers; `None` where it is not available."""
    binary = find_go("nats-server", "github.com/nats-io/nats-server/v2@latest", "NATS")
    if not binary:
        yield None, None
        return
    directory = scratch / "nats"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    config, port = directory / "nats.conf", free_port()
    config.write_text(f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{directory}", sync_interval: always }}\n')
    with open(OUT / "nats.log", "a") as log:
        process = subprocess.Popen([binary, "-c", str(config)], stdout=log, stderr=log)
    try:
        wait_for(port, process)
        yield process, port
    finally:
        process.terminate()
        process.wait(30)
        shutil.rmtree(directory, ignore_errors=True)


def build_peer():
    """Centrifugo's engine with the API that the load generator uses; `None` where it cannot be
    built."""
    binary = ROOT / "bench" / ".cache" / "bin" / "centrifuge-peer"
    if not shutil.which("go"):
        return None
    built = subprocess.run(["go", "build", "-o", binary, "."], cwd=ROOT / "bench" / "peer")
    return str(binary) if built.returncode == 0 else None
