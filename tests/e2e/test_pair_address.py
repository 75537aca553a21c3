"""One address in front of a server and its standby, as docs/archive.md has it: clients see no hand-over."""

import contextlib
import json
import shutil
import subprocess
import threading
import time

import boto3
import botocore.config
import botocore.exceptions
import pytest

from harness import sign, wait
from harness.delivery import Sessions
from harness.live import CONFIG, api
from harness.server import ROOT
from test_archive import BUCKET, archive_settings
from test_restore import POOL
from test_standby import follows, promote, serves, start

S3_PORT, LIVE_PORT = 9000, 8000


def recipe(first_line):
    """A block of docs/archive.md."""
    blocks = (ROOT / "docs/archive.md").read_text().split("```\n")
    return next(block for block in blocks if block.startswith(first_line))


class Pair:
    """A server and its standby, each in a network of its own, and what is in front of them."""

    def __init__(self, make_server, networks, directory):
        self.make_server, self.networks, self.count = make_server, networks, 0
        self.file = directory / "live.json"
        self.file.write_text(json.dumps(CONFIG))
        store = make_server("store", address=networks.addresses["store"], wrapper=networks.wrapper("store"))
        store.s3().create_bucket(Bucket="backup")
        self.settings = archive_settings(store)
        self.owner = self.server("a")
        self.owner.start().s3().create_bucket(Bucket=BUCKET)
        self.standby = self.follower("b")

    def server(self, at):
        address = self.networks.addresses[at]
        self.count += 1
        server = self.make_server(f"{at}{self.count}", start=False, address=address, wrapper=self.networks.wrapper(at),
                                  settings=self.settings, **POOL,
                                  args=["--live-listen", f"0.0.0.0:{LIVE_PORT}", "--live-config", str(self.file)])
        server.s3_listen, server.admin_listen, server.announced = f"0.0.0.0:{S3_PORT}", "0.0.0.0:9001", "0.0.0.0"
        server.at = at
        return server

    def follower(self, at):
        server = self.server(at)
        server.args = [*server.args, "--standby"]
        server.data.mkdir(mode=0o700, parents=True)
        shutil.copy(self.owner.data / "seal.key", server.data)
        return start(server)

    def hand_over(self):
        """The standby takes over, and the former owner's machine becomes the standby."""
        follows(self.standby, self.owner)
        former = self.owner
        assert former.stop() == 0
        promote(self.standby)
        serves(self.standby)
        self.owner = self.standby
        self.standby = self.follower(former.at)


class Front:
    """The address that clients use."""

    def __init__(self, address, **options):
        self.address, self.live_port = address, LIVE_PORT
        self.s3 = boto3.client("s3", endpoint_url=f"http://{address}:{S3_PORT}", aws_access_key_id=sign.ACCESS,
                               aws_secret_access_key=sign.SECRET, region_name=sign.REGION, **options)

    def answers(self):
        try:
            return self.s3.list_buckets() and "result" in api(self, "info")
        except (OSError, botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError):
            return False


class Putter(threading.Thread):
    """Puts objects, and keeps the first error."""

    def __init__(self, front, number):
        super().__init__()
        self.s3, self.number, self.puts, self.slowest_s, self.error, self.stopping = front.s3, number, 0, 0, None, False

    def run(self):
        while not self.stopping and not self.error:
            begun = time.monotonic()
            try:
                self.s3.put_object(Bucket=BUCKET, Key=f"{self.number}/{self.puts}", Body=b"x" * 1000)
            except Exception as error:  # noqa: BLE001
                self.error = error
            self.puts += 1
            self.slowest_s = max(self.slowest_s, time.monotonic() - begun)


@contextlib.contextmanager
def in_front(pair, networks, directory, kind):
    """Runs what docs/archive.md puts in front of a pair."""
    owner, standby = networks.addresses["a"], networks.addresses["b"]
    processes = []
    try:
        if kind == "haproxy":
            file = directory / "haproxy.cfg"
            file.write_text(recipe("defaults\n").replace("10.0.0.1", owner).replace("10.0.1.1", standby))
            command = [shutil.which("haproxy"), "-db", "-f", str(file)]
            processes.append(subprocess.Popen([*networks.wrapper("front"), *command], start_new_session=True))
            # With the defaults of boto3.
            yield Front(networks.addresses["front"])
        else:
            address = owner.rpartition(".")[0] + ".100"
            for at in "ab":
                file = directory / f"keepalived-{at}.conf"
                file.write_text(recipe("global_defs").replace("10.0.0.100", address))
                command = [shutil.which("keepalived"), "--dont-fork", "--log-console", "--use-file", str(file),
                           "--pid", str(directory / f"{at}.pid"), "--vrrp_pid", str(directory / f"{at}.vrrp")]
                processes.append(subprocess.Popen([*networks.wrapper(at), *command], start_new_session=True))
            yield Front(address, config=botocore.config.Config(retries={"max_attempts": 10}))
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(30)


@pytest.mark.parametrize("kind", ["haproxy", pytest.param("keepalived", marks=pytest.mark.slow)])
def test_clients_see_no_hand_over(make_server, make_networks, tmp_path, kind, capsys):
    if not shutil.which(kind):
        pytest.skip(f"no {kind} here")
    networks = make_networks("a", "b", "store", "front")
    pair = Pair(make_server, networks, tmp_path)
    with in_front(pair, networks, tmp_path, kind) as front:
        wait.until(front.answers, 60, "the address answers")
        putters = [Putter(front, number) for number in range(4)]
        with Sessions([front] * 3, ["news"]) as sessions:
            [putter.start() for putter in putters]
            for number in range(2):
                api(front, "publish", channel="news", data={"n": number})
                pair.hand_over()
                wait.until(lambda number=number: all(len(session.received["news"].subscribed) == number + 2 for session in sessions.all),
                           60, "the sessions connect again")
                wait.until(front.answers, 60, "the address answers")
            for putter in putters:
                putter.stopping = True
                putter.join()
            api(front, "publish", channel="news", data={"n": 2})
            for session in sessions.all:
                received = session.received["news"]
                wait.until(lambda received=received: len(received.publications) == 3, what="all publications")
                assert received.publications == [(1, 0), (2, 1), (3, 2)]
                assert all(again.recovered for again in received.subscribed[1:])
        assert [putter.error for putter in putters] == [None] * 4
        keys = sum(len(page["Contents"]) for page in front.s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET))
        assert keys == sum(putter.puts for putter in putters)
        with capsys.disabled():
            print(f"\n{kind}: {keys} puts, the slowest {max(putter.slowest_s for putter in putters):.1f} s")
