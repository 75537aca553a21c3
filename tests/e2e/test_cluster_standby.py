"""Homes with standbys: the channels of a home move to the machine that takes over, and no session ends."""

import json
import os
import shutil
import signal
import time

import pytest

from harness import wait
from harness.cluster import Nodes
from harness.delivery import Publishers, Sessions, check_all, check_kept, summary
from harness.live import api
from harness.server import free_port
from test_archive import archive_settings, caught_up, refused, store  # noqa: F401
from test_cluster_faults import CHANNELS, CONFIG
from test_restore import POOL
from test_standby import ARCHIVED, progress, promote, serves, start, writes_wait

LEASE_S = 5
FRONTS = ["one", "two"]


class Homes:
    """Homes with standbys, and fronts: the nodes of a cluster. Each home has two addresses, used in turn."""

    def __init__(self, make_server, store, directory, names, fronts, promise):  # noqa: F811
        self.make_server, self.store, self.promise = make_server, store, promise
        self.nodes = Nodes(make_server, names=[*names, *fronts], homes=names, standbys=names)
        self.file = directory / "live.json"
        self.file.write_text(json.dumps(CONFIG))
        self.count = 0
        self.standbys = {}
        for name in names:
            self.nodes.servers[name] = self.process(name, self.nodes.ports[name]).start()
        for name in fronts:
            self.nodes.make(name, args=self.live())
        self.nodes.connected()
        for name in names:
            self.add_standby(name)

    def live(self):
        return ["--live-listen", "127.0.0.1:0", "--live-config", str(self.file)]

    def process(self, name, port):
        self.count += 1
        settings = {**self.nodes.settings(name, port=port), **archive_settings(self.store, name),
                    "archive.lease": f"{LEASE_S} s", **self.promise}
        return self.make_server(f"{name}{self.count}", start=False, settings=settings, args=self.live(), **POOL)

    def add_standby(self, name):
        """Starts a standby at the address of the home that is free, and waits until it follows."""
        owner = self.nodes.servers[name]
        ports = {self.nodes.ports[name], self.nodes.standby_ports[name]}
        used = int(owner.settings["cluster.listen"].rpartition(":")[2])
        standby = self.process(name, (ports - {used}).pop())
        standby.args = [*standby.args, "--standby"]
        standby.data.mkdir(mode=0o700, parents=True)
        shutil.copy(owner.data / "seal.key", standby.data)
        standby.admin_listen = f"{standby.address}:{free_port()}"
        start(standby)
        if "archive.acknowledge" in self.promise:
            writes_wait(owner)
        wait.until(lambda: owner.status()["archive"]["following"], 60, "the owner follows")
        version = owner.status()["archive"]["version"]
        wait.until(lambda: progress(standby)["state"] == "following" and progress(standby)["version"] >= version, 60,
                   "the standby follows")
        self.standbys[name] = standby

    def promoted(self, name):
        """Waits until the standby serves the home."""
        standby = self.standbys.pop(name)
        wait.until(lambda: "ready:" in standby.log() or standby.process.poll() is not None, 60, "it takes over")
        serves(standby)
        self.nodes.servers[name] = standby
        return standby


@pytest.mark.timeout(3600)
def test_channels_move_to_the_standby_and_no_session_ends(make_server, store, tmp_path, request, rng, capsys):  # noqa: F811
    """Each session at the fronts receives what was acknowledged exactly once, over the same connection."""
    rounds = 50 if request.config.getoption("--long") else 2
    homes = Homes(make_server, store, tmp_path, ["left", "right"], FRONTS, ARCHIVED)
    fronts, took = [homes.nodes.servers[name] for name in FRONTS], []
    with Sessions(fronts * 3, CHANNELS) as sessions, Publishers(fronts, CHANNELS) as publishers:
        for number in range(rounds):
            publishers.more(rng.randrange(10, 100))
            name = ["left", "right"][number % 2]
            owner, begun = homes.nodes.servers[name], time.monotonic()
            hangs = number % 4 == 1
            if hangs:
                owner.process.send_signal(signal.SIGSTOP)
            else:
                owner.kill()
            promoted = homes.promoted(name)
            tenure = promoted.status()["archive"]["tenure"]
            wait.until(lambda: {homes.nodes.links(front)[name]["tenure"] for front in FRONTS} == {tenure}, what="the links")
            before = {channel: len(known) for channel, known in publishers.acknowledged.items()}
            wait.until(lambda: all(len(publishers.acknowledged[channel]) > count for channel, count in before.items()),
                       what="all channels are back")
            took.append(time.monotonic() - begun)
            if hangs:
                owner.process.send_signal(signal.SIGCONT)
                assert owner.process.wait(60) == 4, owner.log()
            shutil.rmtree(owner.data)
            homes.add_standby(name)
        homes.nodes.connected(*FRONTS)
        check_all(fronts[0], sessions.all, publishers)
        check_kept(sessions.all)
        figures = summary(sessions.all, publishers)
    with capsys.disabled():
        print(f"\n{rounds} homes lost with their disks: back in {min(took):.1f} to {max(took):.1f} s, {figures}")
    assert max(took) < LEASE_S + 5, took


def test_sessions_learn_that_publications_are_lost(make_server, store, tmp_path):  # noqa: F811
    """The archive lacks publications that the home has acknowledged, and sessions have received."""
    homes = Homes(make_server, store, tmp_path, ["home"], ["front"], {})
    home, front = homes.nodes.servers["home"], homes.nodes.servers["front"]
    publish = lambda value: api(front, "publish", channel="news", data={"n": value})["result"]
    with Sessions([front], ["news"]) as sessions:
        received = sessions.all[0].received["news"]
        kept = publish(0)
        caught_up(home)
        os.kill(store.process.pid, signal.SIGSTOP)
        lost = [publish(value) for value in range(1, 4)]
        assert {one["epoch"] for one in lost} == {kept["epoch"]}
        wait.until(lambda: len(received.publications) == 4, what="the session receives them")
        home.kill()
        shutil.rmtree(home.data)
        os.kill(store.process.pid, signal.SIGCONT)
        homes.promoted("home")
        homes.nodes.connected("front")
        wait.until(lambda: received.resubscribed and len(received.subscribed) == 2, what="the session subscribes again")
        again = received.subscribed[1]
        assert again.was_recovering and not again.recovered
        new = publish(10)
        assert new["epoch"] != kept["epoch"] and new["offset"] == 2, "the archive has the first publication"
        wait.until(lambda: received.publications[-1] == (2, 10), what="the session continues")
        check_kept(sessions.all)
        history = api(front, "history", channel="news", limit=10)["result"]
        assert [one["data"]["n"] for one in history["publications"]] == [0, 10]


def test_a_former_owner_learns_of_the_new_one_from_the_nodes(make_server, store, tmp_path):  # noqa: F811
    """It cannot reach the store. Its next start must, though it has promised nothing to wait for."""
    homes = Homes(make_server, store, tmp_path, ["home"], ["front"], {"archive.lease": None, "archive.start_wait": "1 s"})
    owner = homes.nodes.servers["home"]
    caught_up(owner)
    owner.process.send_signal(signal.SIGSTOP)
    promote(homes.standbys["home"], "--force")
    homes.promoted("home")
    homes.nodes.connected("front")
    os.kill(store.process.pid, signal.SIGSTOP)
    owner.process.send_signal(signal.SIGCONT)
    assert owner.process.wait(60) == 4, owner.log()
    assert "has seen its tenure" in owner.log(), owner.log()
    code, log = refused(owner)
    assert code == 1 and "may have another owner" in log, log
    os.kill(store.process.pid, signal.SIGCONT)
    assert refused(owner)[0] == 4
