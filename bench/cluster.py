"""Benchmarks of a cluster: a home and two fronts, compared with one node in the same rounds."""

import contextlib
import json
import shutil

from common import Server, free_port, inner, median
from live import LIVE_CONFIG, live_options, live_server

NODES = ["home", "one", "two"]


@contextlib.contextmanager
def cluster(scratch):
    """The servers of the nodes and their live ports, the home first."""
    directory = scratch / "cluster"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    config = directory / "live.json"
    config.write_text(json.dumps(LIVE_CONFIG))
    links, ports = {name: free_port() for name in NODES}, [free_port() for _ in NODES]
    nodes = ",".join(f"{name}=127.0.0.1:{port}" for name, port in links.items())
    servers = []
    try:
        for name, port in zip(NODES, ports):
            settings = ["live.publish_rate=0", f"cluster.name={name}", f"cluster.nodes={nodes}", "cluster.homes=home",
                        "cluster.secret=the-secret-of-benchmarks", f"cluster.listen=127.0.0.1:{links[name]}"]
            extra = ["--live-listen", f"127.0.0.1:{port}", "--live-config", str(config)]
            extra += [part for setting in settings for part in ("--set", setting)]
            servers.append(Server("steadfast", directory / name, extra).start())
        while not all(node["link"] is None or node["link"]["state"] == "up"
                      for server in servers for node in server.status()["cluster"]["nodes"]):
            pass
        yield servers, ports
    finally:
        for server in servers:
            server.stop()
        shutil.rmtree(directory, ignore_errors=True)


def channels(server):
    return server.status()["cluster"]["channels"]


def bench_cluster(report, args, scratch, peers):
    """Sessions of one channel at two fronts, its home on a third node, against one node with all
    sessions."""
    sessions = max(args.live_sessions)
    publications = max(10, min(200, 400_000 // sessions))
    fanout, storm = ([], []), ([], [])
    requested = []
    for round_ in range(args.rounds):
        # They take turns within a round.
        for at in (0, 1) if round_ % 2 == 0 else (1, 0):
            with (live_server(scratch) if at else cluster(scratch)) as (servers, ports):
                server, port = (servers, ports) if at else (servers[0], ports[0])
                for measure, rows, count in [("fanout", fanout, publications), ("storm", storm, 10)]:
                    command = live_options(port, server.process.pid, measure, sessions=sessions, publications=count,
                                           channel=f"cluster-{measure}")
                    if not at:
                        command[command.index("--endpoint") + 1] = ",".join(f"127.0.0.1:{one}" for one in ports[1:])
                    before = None if at else (channels(servers[0]), [channels(one) for one in servers[1:]])
                    row = inner(report, *command)
                    if row:
                        rows[at].append(row)
                    if row and not at:
                        sent = channels(servers[0])["publications_sent"] - before[0]["publications_sent"]
                        print(f"    {measure}: the home sent {sent} publications to fronts", flush=True)
                        if measure == "storm":
                            after = [channels(one)["histories_requested"] for one in servers[1:]]
                            requested.append(sum(after) - sum(one["histories_requested"] for one in before[1]))
    field = "last_delivery_p50_us"
    report.add(f"publish to last of {sessions:,} sessions at two fronts", "us", median(fanout[0], field), median(fanout[1], field), "one node", "<= 1.15", fanout[0])
    report.add("  CPU of the home, resp. the one node, per delivery", "us", median(fanout[0], "server_cpu_us"), median(fanout[1], "server_cpu_us"), "one node", "-")
    report.add(f"reconnect storm of {sessions:,} at two fronts, recoveries", "per s", median(storm[0], "recoveries_per_s"), median(storm[1], "recoveries_per_s"), "one node", "-", storm[0])
    if requested:
        print(f"    histories that the fronts requested from the home in a storm: {requested}", flush=True)
