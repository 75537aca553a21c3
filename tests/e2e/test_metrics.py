"""Monitoring: every metric is documented, devices are measured leg by leg, slow requests are
logged."""

import asyncio
import json
import re
import shutil
import threading
import time

from harness import load, sign, wait
from harness.live import CONFIG, api, live_server, token
from harness.nbd import BlockServer
from harness.raw import Raw
from harness.server import ROOT, free_port
from harness.session import connecting
from test_archive import archive_settings, store  # noqa: F401
from test_live_proxies import BackEnd

KIB, MIB = 1 << 10, 1 << 20


def documented():
    """Kinds of metrics by name, from the table in docs/operations.md."""
    text = (ROOT / "docs/operations.md").read_text()
    table = text.split("\n## Metrics\n", 1)[1].split("\n## ", 1)[0]
    found = {}
    for line in table.splitlines():
        row = re.fullmatch(r"\| (.+?) \| (counter|gauge|histogram) \| .+ \|", line)
        if row is None:
            continue
        for name in re.findall(r"`([a-z0-9_]+)`", row[1]):
            assert name not in found, f"{name} is in the table twice"
            found[f"steadfast_{name}"] = row[2]
    return found


def keys(value, path=""):
    """The keys of a status, with `[]` for the items of a list."""
    if isinstance(value, list):
        return set().union(*(keys(item, path + "[]") for item in value))
    if not isinstance(value, dict):
        return set()
    below = [keys(item, f"{path}.{key}" if path else key) for key, item in value.items()]
    return {f"{path}.{key}" if path else key for key in value}.union(*below)


def follower(make_server, owner, archive):
    """A standby of a pool of two disks that has a copy."""
    standby = make_server("standby", start=False, settings={**archive, "data.disks": "d0,d1"})
    standby.args, standby.admin_listen = ["--standby"], f"{standby.address}:{free_port()}"
    standby.admin_port = int(standby.admin_listen.rpartition(":")[2])
    standby.data.mkdir(mode=0o700)
    shutil.copy(owner.data / "seal.key", standby.data)
    standby.start(wait_ready=False)

    def has_copy():
        assert standby.process.poll() is None, standby.log()
        return "standby: admin=" in standby.log() and standby.status()["standby"].get("copied_ms")

    wait.until(has_copy, 60, "it has a copy")
    return standby


def test_the_names_of_metrics_and_status_keys_are_the_listed_ones(make_server, store, origin, tmp_path):  # noqa: F811
    archive = {**archive_settings(store), "archive.lease": "10 s"}
    back_end = BackEnd()
    back_end.answers["/hook"] = {}
    config = {**CONFIG, "rpc": {"proxy": {"endpoint": back_end.url("/rpc")}, "without_namespace": {"proxy_enabled": True}}}
    try:
        device = BlockServer(tmp_path / "block", fast=0)
        device.folder.mkdir()
        device.format()
        file = tmp_path / "steadfast.toml"
        file.write_text(f'[[block]]\nname = "db"\ndurable = "{device.durable}"\nlisten = "unix:{device.socket}"\n')
        server = live_server(make_server, tmp_path, config, start=False, settings={
            "superdisk.fast": tmp_path / "fast", "events.webhooks": f"app={back_end.url('/hook')}",
            "edge.buckets": origin.setting(), "cluster.name": "a", "cluster.homes": "a", "cluster.secret": "0123456789abcdef",
            "cluster.nodes": f"a=127.0.0.1:{free_port()},b=127.0.0.1:1", "live.listen": "127.0.0.1:0",
            **archive})
        server.args += ["--config", str(file)]
        server.start()
        server.s3().create_bucket(Bucket="measured")
        # The metrics of moves exist once keys have moved.
        added = server.command("disk", "add", str(tmp_path / "second"), "--data", str(server.data))
        assert added.returncode == 0, added.stderr
        types = re.findall(r"^# TYPE (\S+) (\S+)$", server.admin("/metrics")[1], re.M)
        status = keys(json.loads(server.admin("/status")[1]))
        standby = follower(make_server, server, archive)
        of_standby = re.findall(r"^# TYPE (steadfast_standby\S+) (\S+)$", standby.admin("/metrics")[1], re.M)
        assert of_standby
        types += of_standby
        status |= keys(json.loads(standby.admin("/status")[1]))
    finally:
        back_end.close()
    given, table = dict(types), documented()
    assert len(given) == len(types), "a metric is defined twice"
    assert given.keys() - table.keys() == set(), "exported, but not in docs/operations.md"
    assert table.keys() - given.keys() == set(), "in docs/operations.md, but not exported"
    assert {name: kind for name, kind in given.items() if table[name] != kind} == {}, "of another kind than in the table"
    # Scripts of operators read these keys: a change of the list belongs into the changelog.
    listed = set((ROOT / "tests/e2e/status_keys.txt").read_text().split())
    assert status - listed == set(), "in the status, but not in status_keys.txt"
    assert listed - status == set(), "in status_keys.txt, but not in the status"


# -- devices ---------------------------------------------------------------------------------------


class Legs:
    """The metrics of each device."""

    def __init__(self, server):
        self.samples = server.metrics()

    def get(self, name, leg, member, **labels):
        found = []
        for sample, value in self.samples.items():
            base, _, rest = sample.partition("{")
            of = dict(re.findall(r'(\w+)="([^"]*)"', rest))
            if base == f"steadfast_disk_leg_{name}" and (of["leg"], of["member"]) == (leg, str(member)) \
                    and all(of[key] == text for key, text in labels.items()):
                found.append(value)
        assert len(found) == 1, (name, leg, member, labels, found)
        return found[0]


def test_devices_are_measured_by_leg_and_member(make_fuse_disk, make_server, tmp_path):
    disk = make_fuse_disk()
    pool, fast = disk.mount / "durable.pool", [tmp_path / "fast0", tmp_path / "fast1"]
    server = make_server(pool_size="128 MiB", extent_size="4 MiB", settings={
        "store.cache": "0 B", "data.pool": pool, "superdisk.fast": ",".join(map(str, fast))})
    s3 = server.s3()
    s3.create_bucket(Bucket="legs")
    state = lambda: server.status()["superdisks"][0]["fast"]["state"]  # noqa: E731
    wait.until(lambda: state() == "clean", 60, "a clean fast leg", 0.05)
    before = Legs(server)
    delay = disk.fault("fsync", "delay", delay_ms=600)
    s3.put_object(Bucket="legs", Key="k", Body=load.content(1, 4 * MIB))
    disk.remove(delay)
    after = Legs(server)

    def more(name, leg, member, **labels):
        return after.get(name, leg, member, **labels) - before.get(name, leg, member, **labels)

    assert more("written_bytes_total", "durable", pool) >= 4 * MIB
    assert more("write_seconds_count", "durable", pool) >= 4
    # Each flush took as long as the disk was set to take.
    flushes = more("flush_seconds_count", "durable", pool)
    assert flushes >= 1 and more("flush_seconds_sum", "durable", pool) >= 0.6
    assert more("flush_seconds_bucket", "durable", pool, le="0.524287") < flushes
    for member in fast:
        assert more("written_bytes_total", "fast", member) >= MIB, "a stripe shares out"
    # The fast leg answers, as soon as it has a full copy.
    before = after

    def read_from_fast():
        nonlocal after
        assert s3.get_object(Bucket="legs", Key="k")["Body"].read() == load.content(1, 4 * MIB)
        after = Legs(server)
        return sum(more("read_bytes_total", "fast", member) for member in fast) >= 4 * MIB

    wait.until(read_from_fast, what="reads of the fast leg")
    assert sum(more("read_seconds_count", "fast", member) for member in fast) >= 4
    assert after.get("read_seconds_bucket", "fast", fast[0], le="+Inf") == after.get("read_seconds_count", "fast", fast[0])
    # The same, as text for people.
    shown = server.command("status", "--data", server.data).stdout
    lines = {words[2].rstrip(":"): line for line in shown.splitlines() if (words := line.split())[:1] == ["leg"]}
    assert set(lines) == {str(pool), *map(str, fast)}, shown
    line = re.fullmatch(r"leg +durable \S+: .* flushes \(half within .+, 99 % within (.+), all within (.+)\)", lines[str(pool)])
    assert line and re.search(r"\d\d\d\.\d ms|\d\.\d s", line[2]), shown


# -- slow requests ---------------------------------------------------------------------------------


def slow_lines(server):
    """The log entries about slow requests."""
    lines = (json.loads(line) for line in server.log().splitlines() if line.startswith("{"))
    return [line["fields"] for line in lines if "request was slow" in line["fields"].get("message", "")]


def slow_count(server, door):
    return server.metrics().get(f'steadfast_slow_requests_total{{door="{door}"}}', 0)


# The threshold is far above the time of a quick request on a busy machine.
SLOW = {"output.format": "json", "limits.slow_request": "1s", "store.cache": "0 B"}


def log_entry(server, operation):
    """The log entry of a slow request. The server writes it after sending the answer."""
    return wait.until(lambda: next((line for line in slow_lines(server) if line["operation"] == operation), None),
                      what=f"the line of {operation}")


def stages(line):
    return {name[:-3]: ms for name, ms in line.items() if name.endswith("_ms") and name != "total_ms"}


def test_a_slow_write_is_logged_with_its_stages(fuse_disk, make_server):
    server = make_server(disk=fuse_disk, settings=SLOW)
    server.s3().create_bucket(Bucket="slow")
    assert server.request("PUT", "/slow/quick", b"x" * 4096)[0] == 200
    delay = fuse_disk.fault("fsync", "delay", delay_ms=1500)
    body = b"what no log may show" * 100
    status, headers, _ = server.request("PUT", "/slow/a-private-key", body)
    fuse_disk.remove(delay)
    assert status == 200
    line = log_entry(server, "PutObject")
    assert (line["door"], line["status"], line["bytes_in"]) == ("s3", 200, len(body)), line
    assert json.loads(line["about"]) == "slow" and line["request"] == headers["x-amz-request-id"], line
    assert line["flush_ms"] >= 1400, line
    # The stages account for all of the time.
    assert abs(sum(stages(line).values()) - line["total_ms"]) < 2, line
    assert slow_count(server, "s3") == 1 and len(slow_lines(server)) == 1
    for secret in ("a-private-key", "no log may show", sign.ACCESS, sign.SECRET):
        assert secret not in json.dumps(slow_lines(server)), secret
    assert [one["count"] for one in server.status()["slow_requests"] if one["door"] == "s3"] == [1]


def test_a_slow_read_of_a_large_body_is_attributed_to_the_disk(fuse_disk, make_server):
    server = make_server(disk=fuse_disk, settings=SLOW)
    s3 = server.s3()
    s3.create_bucket(Bucket="slow")
    data = load.content(2, MIB)
    s3.put_object(Bucket="slow", Key="k", Body=data)
    delay = fuse_disk.fault("read", "delay", delay_ms=700)
    assert server.request("GET", "/slow/k")[2] == data
    fuse_disk.remove(delay)
    line = log_entry(server, "GetObject")
    assert line["disk_ms"] >= 1000 and line["bytes_out"] == len(data), line
    assert line["disk_ms"] > line["total_ms"] / 2, line


def test_a_queued_request_is_attributed_to_the_gate(fuse_disk, make_server):
    settings = {**SLOW, "limits.requests": 1, "limits.request_wait": "60s", "store.cache": "0 B"}
    server = make_server(disk=fuse_disk, settings=settings)
    server.s3().create_bucket(Bucket="slow")
    assert server.request("PUT", "/slow/first", load.content(1, 64 * KIB))[0] == 200
    hold = fuse_disk.fault("read", "hold")
    first = threading.Thread(target=lambda: server.request("GET", "/slow/first"))
    first.start()
    wait.until(lambda: fuse_disk.counts()["held"] > 0, what="a read that is held")
    second = threading.Thread(target=lambda: server.request("HEAD", "/slow"))
    second.start()
    wait.until(lambda: server.metrics()['steadfast_bound_waiting{bound="s3_requests"}'] == 1, what="a waiting request")
    time.sleep(1.2)
    fuse_disk.remove(hold)
    first.join(30), second.join(30)
    wait.until(lambda: slow_count(server, "s3") == 2, what="both")
    # Of two at once, the log has one; the counter has both.
    lines = {line["operation"]: line for line in slow_lines(server)}
    assert len(lines) == 1, lines
    if "HeadBucket" in lines:
        assert lines["HeadBucket"]["gate_ms"] >= 1100, lines
    else:
        assert "gate_ms" not in lines["GetObject"] and lines["GetObject"]["disk_ms"] >= 1100, lines


def test_the_time_of_a_slow_client_does_not_count(make_server):
    server = make_server(settings=SLOW)
    server.s3().create_bucket(Bucket="slow")
    raw = Raw(server)
    data = load.content(3, 64 * KIB)
    raw.request_head("PUT", "/slow/k", sign.headers_for("PUT", server.host, "/slow/k", headers={"content-length": str(len(data))}))
    raw.send(data[:1000])
    time.sleep(1.5)
    raw.send(data[1000:])
    assert raw.status() == 200
    raw.close()
    assert slow_count(server, "s3") == 0 and not slow_lines(server)


def test_the_log_of_slow_requests_can_be_off(fuse_disk, make_server):
    server = make_server(disk=fuse_disk, settings={**SLOW, "limits.slow_request": "0s"})
    server.s3().create_bucket(Bucket="slow")
    with_delay = fuse_disk.fault("fsync", "delay", delay_ms=1500)
    assert server.request("PUT", "/slow/k", b"x")[0] == 200
    fuse_disk.remove(with_delay)
    assert slow_count(server, "s3") == 0 and not slow_lines(server)


def test_slow_publications_are_logged_by_their_port(fuse_disk, make_server, tmp_path):
    server = live_server(make_server, tmp_path, disk=fuse_disk, settings=SLOW)
    channel = 'news"\n'
    delay = fuse_disk.fault("fsync", "delay", delay_ms=1500)
    assert "result" in api(server, "publish", channel=channel, data={"secret": "of a user"})
    line = log_entry(server, "publish")
    assert line["door"] == "api" and line["about"] == json.dumps(channel) and line["status"] == 0, line
    assert line["flush_ms"] >= 1400 and line["bytes_in"] > 10, line

    async def run():
        client, _ = await connecting(server, False, token=token("ann"))
        fuse_disk.clear()
        subscription = client.new_subscription("room")
        await subscription.subscribe()
        await subscription.ready()
        fuse_disk.fault("fsync", "delay", delay_ms=1500)
        await subscription.publish({"secret": "of a user"})
        await client.disconnect()

    asyncio.run(run())
    fuse_disk.remove(delay)
    line = wait.until(lambda: next((line for line in slow_lines(server) if line["door"] == "live"), None), what="the log entry")
    assert (line["operation"], json.loads(line["about"])) == ("publish", "room") and line["flush_ms"] >= 1400, line
    assert "of a user" not in json.dumps(slow_lines(server))
    assert (slow_count(server, "api"), slow_count(server, "live")) == (1, 1)


def test_a_slow_back_end_is_attributed_to_the_proxy(make_server, tmp_path):
    back_end = BackEnd()
    answered = threading.Event()

    def rpc(_):
        answered.wait(1.5)
        return {"result": {"data": 1}}

    back_end.answers["/rpc"] = rpc
    config = {**CONFIG, "rpc": {"proxy": {"endpoint": back_end.url("/rpc"), "timeout": "60s"}, "without_namespace": {"proxy_enabled": True}}}
    try:
        server = live_server(make_server, tmp_path, config, settings=SLOW)

        async def run():
            client, _ = await connecting(server, False, token=token("ann"))
            await client.rpc("m", {"x": 1})
            await client.disconnect()

        asyncio.run(run())
        line = log_entry(server, "rpc")
        assert line["door"] == "live" and line["proxy_ms"] >= 1400, line
    finally:
        back_end.close()
