"""Tiny records among deleted ones: compaction must not keep the memory that reads need."""

import contextlib
import http.client
import itertools
import json
import subprocess
import threading
import time

import pytest

from harness import sign, wait
from harness.live import API_KEY, CONFIG, live_server
from harness.server import binary

LOAD_S = 600
READ_MAX_S = 1.0
# An extent whose live objects exceed the disk's memory for reads, if each of them held a block.
OBJECTS = 120_000
DELETED_PERCENT = 60
CHANNELS, HISTORY, BATCH = 4000, 20, 1000


def is_deleted(number):
    return number * 7919 % 100 < DELETED_PERCENT


def key(prefix, number):
    return f"{prefix}/{number % 1000:03}/{number:08}"


class Load:
    """Objects of one byte and short publications, written until `end`, and reads whose times it keeps."""

    def __init__(self, server, rng, end):
        self.server, self.rng, self.end = server, rng, end
        self.rounds = []
        self.errors = []
        self.reads_s = {"objects": [], "histories": []}
        self.published = 0
        self.deleted = 0

    def run(self):
        threads = [threading.Thread(target=self.kept, args=(work,)) for work in
                   [self.objects, self.publications, self.read_objects, self.read_objects, self.read_histories]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.errors:
            raise self.errors[0]

    def kept(self, work):
        try:
            work()
        except BaseException as error:  # run() raises it
            self.errors.append(error)
            self.end = 0

    def is_over(self):
        return time.monotonic() > self.end

    def objects(self):
        s3 = self.server.s3(timeout_s=120)
        for number in itertools.count():
            if self.is_over():
                return
            prefix = f"r{number % 4}"
            subprocess.run(
                [binary("steadfast-bench"), "load", "--endpoint", self.server.host, "--access-key", sign.ACCESS, "--secret-key",
                 sign.SECRET, "--op", "fill", "--size", "1", "--objects", str(OBJECTS), "--clients", "32", "--prefix", prefix],
                check=True, capture_output=True)
            if prefix not in self.rounds:
                self.rounds.append(prefix)
            doomed = [key(prefix, n) for n in range(OBJECTS) if is_deleted(n)]
            for at in range(0, len(doomed), 1000):
                if self.is_over():
                    return
                some = doomed[at:at + 1000]
                answer = s3.delete_objects(Bucket="bench", Delete={"Objects": [{"Key": one} for one in some], "Quiet": True})
                assert "Errors" not in answer, answer
                self.deleted += len(some)

    def connection(self):
        return contextlib.closing(http.client.HTTPConnection(self.server.address, self.server.live_port, timeout=120))

    def call(self, connection, method, **params):
        connection.request("POST", f"/api/{method}", json.dumps(params), {"X-API-Key": API_KEY})
        return json.loads(connection.getresponse().read())

    def publications(self):
        with self.connection() as connection:
            while not self.is_over():
                channels = [f"room{self.rng.randrange(CHANNELS)}" for _ in range(BATCH)]
                commands = [{"publish": {"channel": channel, "data": 1}} for channel in channels]
                answer = self.call(connection, "batch", commands=commands, parallel=True)
                assert all("publish" in one for one in answer["replies"]), answer["replies"][:3]
                self.published += BATCH

    def read_objects(self):
        with contextlib.closing(self.server.connect(timeout_s=120)) as connection:
            while not self.is_over():
                if not self.rounds:
                    time.sleep(0.05)
                    continue
                number = self.rng.randrange(OBJECTS)
                if is_deleted(number):
                    continue
                begin = time.monotonic()
                status, _, body = self.server.request("GET", f"/bench/{key(self.rng.choice(self.rounds), number)}", connection=connection)
                self.reads_s["objects"].append(time.monotonic() - begin)
                assert status == 200 and len(body) == 1

    def read_histories(self):
        with self.connection() as connection:
            while not self.is_over():
                begin = time.monotonic()
                answer = self.call(connection, "history", channel=f"room{self.rng.randrange(CHANNELS)}", limit=HISTORY)
                self.reads_s["histories"].append(time.monotonic() - begin)
                assert "result" in answer, answer


def slowest_s(server):
    """The longest request of the disks themselves."""
    disks = server.status()["disks"]
    return max(disk["latency"][kind]["max"] for disk in disks if disk["latency"] for kind in ["read_us", "write_us", "flush_us"]) / 1e6


@pytest.mark.slow
@pytest.mark.timeout(LOAD_S + 600)
@pytest.mark.parametrize("disks", [1, 3])
def test_reads_end_while_tiny_records_are_compacted(make_server, tmp_path, disks, rng, capsys):
    config = json.loads(json.dumps(CONFIG))
    config["channel"]["without_namespace"].update(history_size=HISTORY)
    # Reads go to the disks. One disk has the memory that each of several has.
    settings = {"store.cache": "0 B", "data.read_buffers": "32 MiB"}
    if disks > 1:
        settings = {"store.cache": "0 B", "data.disks": ",".join(f"d{n}" for n in range(disks))}
    server = live_server(make_server, tmp_path, config, pool_size="2 GiB", extent_size="64 MiB", settings=settings)
    load = Load(server, rng, time.monotonic() + LOAD_S)
    load.run()
    compaction = server.status()["store"]["log"]["compaction"]
    slowest = slowest_s(server)
    counts = {name: len(times) for name, times in load.reads_s.items()}
    longest = {name: max(times) for name, times in load.reads_s.items()}
    with capsys.disabled():
        print(f"\n{disks} disks: {load.published} publications, {load.deleted} deletes, {compaction['records_moved']} records moved; "
              f"reads {counts}, the longest {longest} s; the longest of the disks themselves {slowest:.3f} s")
    assert compaction["records_moved"] > OBJECTS / 10
    assert max(longest.values()) < READ_MAX_S + slowest
    # After a restart compaction begins a second later.
    assert server.stop(10) == 0
    server.start()
    after = Load(server, rng, time.monotonic() + 10)
    after.rounds = load.rounds
    after.read_objects()
    assert len(after.reads_s["objects"]) > 100 and max(after.reads_s["objects"]) < READ_MAX_S + slowest_s(server)
    wait.until(lambda: server.admin("/health/ready")[0] == 200, 10, "readiness")
