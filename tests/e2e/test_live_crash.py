"""Many sessions over kills of the server, and one session that does not read. The load generator
holds the sessions."""

import json
import queue
import subprocess
import threading
import time

import pytest

from harness.live import API_KEY, live_server, restart
from harness.server import binary

pytestmark = pytest.mark.alone

HISTORY = {"history_ttl": "1h", "force_recovery": True}
CONFIG = {
    "client": {"insecure": True, "recovery_max_publication_limit": 100_000, "queue_max_size": 1 << 20},
    "http_api": {"key": API_KEY},
    "channel": {
        "without_namespace": {"history_size": 100_000, **HISTORY},
        "namespaces": [{"name": "short", "history_size": 10, **HISTORY}],
    },
}
DEADLINE_S = 120


@pytest.fixture
def live(make_server, tmp_path):
    return live_server(make_server, tmp_path, CONFIG)


class Watch:
    """Sessions on one channel and a publisher, which outlive the server."""

    def __init__(self, server, sessions, encoding, rate):
        self.process = subprocess.Popen(
            [binary("steadfast-bench"), "live-watch", "--endpoint", f"127.0.0.1:{server.live_port}", "--api-key", API_KEY,
             "--sessions", str(sessions), "--format", encoding, "--rate", str(rate),
             "--patience", str(DEADLINE_S)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.lines, self.errors = queue.Queue(), []
        self.readers = [threading.Thread(target=self.read_lines), threading.Thread(target=self.read_errors)]
        for reader in self.readers:
            reader.start()

    def read_lines(self):
        for line in self.process.stdout:
            self.lines.put(json.loads(line))
        self.lines.put(None)

    def read_errors(self):
        self.errors.extend(self.process.stderr)

    def until(self, condition, what, deadline_s=DEADLINE_S):
        """The report for which the condition first held."""
        end = time.monotonic() + deadline_s
        status = None
        while True:
            try:
                status = self.lines.get(timeout=max(0, end - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"waited {deadline_s} s for {what}; the last was {status}") from None
            assert status is not None, "".join(self.errors[-20:])
            if condition(status):
                return status

    def stop(self):
        """The report once every session has every publication."""
        self.process.stdin.write("stop\n")
        self.process.stdin.flush()
        last = None
        while (status := self.lines.get(timeout=2 * DEADLINE_S)) is not None:
            last = status
        self.close()
        assert self.process.returncode == 0, "".join(self.errors[-20:])
        return last

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.close()

    def close(self):
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
        for reader in self.readers:
            reader.join()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("encoding", ["json", "protobuf"])
def test_over_kills_every_session_gets_the_same_without_a_gap(live, encoding, request, rng):
    sessions, kills, rate = (10_000, 10, 10) if request.config.getoption("--long") else (500, 3, 200)
    with Watch(live, sessions, encoding, rate) as watch:
        status = {"acknowledged": 0}
        for kill in range(kills):
            # Before the generator notices the kill, it still reports all sessions as ready.
            watch.until(lambda status: status["ready"] == sessions and status["reconnects"] >= sessions * kill, "all sessions")
            enough = status["acknowledged"] + rng.randrange(1, 100)
            status = watch.until(lambda status: status["acknowledged"] >= enough, "publications")
            live.kill()
            # At times, kill it again while sessions reconnect.
            if rng.random() < 0.5:
                restart(live)
                watch.until(lambda status: status["ready"] >= sessions * 0.1, "some sessions")
                live.kill()
            restart(live)
        watch.until(lambda now: now["ready"] == sessions and now["reconnects"] >= sessions * kills
                    and now["acknowledged"] > status["acknowledged"], "all sessions again")
        report = watch.stop()
    print(report)
    assert report["delivered_to_each"] >= report["acknowledged"] > 0
    assert report["reconnects"] >= sessions * kills


def test_every_disk_leaves_beneath_a_channel_and_no_session_notices(make_server, tmp_path):
    sessions = 200
    live = live_server(make_server, tmp_path, CONFIG, pool_size="1 GiB", extent_size="8 MiB",
                       settings={"data.disks": "d0,d1", "store.move_rate": "0 B"})
    with Watch(live, sessions, "json", 200) as watch:
        status = watch.until(lambda status: status["ready"] == sessions and status["acknowledged"] > 0, "all sessions")
        for change in (("add", "d2"), ("drain", "d0"), ("replace", "d1", "d3")):
            paths = [str(live.data / name) for name in change[1:]]
            done = live.command("disk", change[0], *paths, "--data", str(live.data))
            assert done.returncode == 0, done.stdout + done.stderr
            enough = status["acknowledged"] + 50
            status = watch.until(lambda status: status["acknowledged"] >= enough, "publications")
            assert (status["ready"], status["reconnects"]) == (sessions, 0), status
        live.kill()
        restart(live)
        watch.until(lambda now: now["ready"] == sessions and now["reconnects"] >= sessions
                    and now["acknowledged"] > status["acknowledged"], "all sessions again")
        report = watch.stop()
    names = [entry["name"].rsplit("/", 1)[1] for entry in live.status()["store"]["disks"]]
    assert names == ["d2", "d3"]
    assert report["delivered_to_each"] >= report["acknowledged"] > 0


# A busy channel: its sessions, its publications each second, and the duration of each phase: first
# while all read, then while one does not.
BUSY = {
    "500 sessions": (256 << 10, {"sessions": 500, "size": 8192, "rate": 20, "seconds": 6}),
    # At 94 MiB, memory would show it if the server kept it for the session that does not read.
    "much data": (24 << 20, {"sessions": 8, "size": 64 << 10, "rate": 150, "seconds": 10}),
}
MEMORY_GROWTH_MIB_MAX = 64


@pytest.mark.parametrize("queue_max_size, busy", BUSY.values(), ids=BUSY)
def test_a_session_that_does_not_read_is_ended_as_slow_and_costs_little(make_server, tmp_path, queue_max_size, busy, capsys):
    live = live_server(make_server, tmp_path, {**CONFIG, "client": {**CONFIG["client"], "queue_max_size": queue_max_size}})
    done = subprocess.run(
        [binary("steadfast-bench"), "live", "--measure", "slow", "--endpoint", f"127.0.0.1:{live.live_port}",
         "--api-key", API_KEY, "--channel", "short:busy", "--pid", str(live.pid),
         *(argument for name, value in busy.items() for argument in (f"--{name}", str(value)))],
        capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    with capsys.disabled():
        print(f"\n{busy}: the others' p99 was {report['all_read']['p99_us'] / 1000:.1f} ms while all read and "
              f"{report['one_does_not']['p99_us'] / 1000:.1f} ms while one did not; it got {report['its_publications']} publications "
              f"and ended with {report['its_code']}; memory grew by {report['memory_growth_mib']:.1f} MiB")
    # The socket is full, so the code (3008) may not reach the client.
    assert report["its_code"] in (3008, 0)
    assert live.metrics()['steadfast_live_ended_sessions_total{code="3008"}'] == 1
    published = busy["seconds"] * busy["rate"]
    assert report["its_publications"] < published
    assert report["memory_growth_mib"] < MEMORY_GROWTH_MIB_MAX
    # The others received everything, in order (else the load generator fails), and none was slow.
    assert report["all_read"]["deliveries"] == report["one_does_not"]["deliveries"] == published * (busy["sessions"] - 1)
