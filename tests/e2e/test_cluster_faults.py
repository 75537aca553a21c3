"""Faults of a cluster under load: killed homes and fronts, lost packets, and a front that stops."""

import collections
import http.client
import itertools
import json
import multiprocessing
import os
import signal
import threading
import time

import pytest

from harness import wait
from harness.cluster import Nodes
from harness.delivery import Publishers, Sessions, check, check_all, check_kept, summary
from harness.events import history
from harness.live import API_KEY, SECRET, api, restart

HISTORY = {"history_size": 200_000, "history_ttl": "1h", "force_recovery": True, "allow_subscribe_for_client": True}
CONFIG = {
    "client": {"token": {"hmac_secret_key": SECRET}, "queue_max_size": 64 << 20, "recovery_max_publication_limit": 200_000},
    "http_api": {"key": API_KEY},
    "channel": {
        "without_namespace": HISTORY,
        "namespaces": [{"name": "room", "presence": True, "join_leave": True, "force_push_join_leave": True, **HISTORY}],
    },
}
CHANNELS = [f"channel{number}" for number in range(8)]
# Each node finds a dead link 3 s after the last frame. Where packets to the other node are lost, that is its last ping,
# up to 1 s later. A second more is for the status.
FOUND_S = 5
NODE_TTL_S = 4
# The home looks for clients to remove every second; a second more is for the machine.
PRESENT_S = NODE_TTL_S + 2


@pytest.fixture
def rounds(request):
    """The number of rounds: few, or 50 with --long."""
    return lambda few: 50 if request.config.getoption("--long") else few


def state(nodes, at, of):
    """The state of a link, as one node shows it."""
    return nodes.links(at)[of]["state"]


@pytest.mark.timeout(1800)
def test_a_home_killed_under_load_costs_no_session_and_no_publication(make_server, tmp_path, rounds, rng, capsys):
    """Each session at the fronts receives what was acknowledged exactly once, over the same connection."""
    nodes = Nodes(make_server, names=["left", "right", "one", "two"], homes=["left", "right"])
    *homes, one, two = nodes.make_live(tmp_path, CONFIG)
    with Sessions([one, two] * 4, CHANNELS) as sessions, Publishers([one, two], CHANNELS) as publishers:
        for _ in range(rounds(3)):
            publishers.more(rng.randrange(10, 200))
            home = rng.choice(homes)
            home.kill()
            if rng.random() < 0.5:
                # The other home's channels continue.
                publishers.more(rng.randrange(10, 100))
            if rng.random() < 0.3:
                # Kill it again while the fronts read what they missed.
                restart(home)
                wait.until(lambda: any(state(nodes, name, home.data.name) == "up" for name in ["one", "two"]), what="a link")
                home.kill()
            restart(home)
            nodes.connected()
            publishers.more(len(CHANNELS))
            check(sessions.all, publishers.acknowledged)
        check_all(one, sessions.all, publishers)
        figures = summary(sessions.all, publishers)
        with capsys.disabled():
            print(f"\nkilled homes ({rounds(3)} rounds): {figures}")
        check_kept(sessions.all)


def present(server, channel):
    return sorted(api(server, "presence", channel=channel)["result"]["presence"])


@pytest.mark.timeout(3600)
def test_the_sessions_of_a_killed_front_recover_at_another_and_leave_no_ghost(make_server, tmp_path, rounds, rng, capsys):
    """They miss nothing. The presence is soon exactly the sessions that live, and so are the joins less the leaves."""
    channels = ["room:a", "room:b", *CHANNELS[:2]]
    nodes = Nodes(make_server, names=["home", "one", "two", "three"], homes=["home"])
    home, one, two, three = nodes.make_live(tmp_path, CONFIG, node_ttl=f"{NODE_TTL_S}s")
    moved_s, present_s = [], []
    # The first session is there before the others join.
    with Sessions([three, *[one, two] * 4], channels) as sessions, Publishers([three], channels) as publishers:
        witness = sessions.all[0]
        for number in range(rounds(2)):
            publishers.more(rng.randrange(10, 100))
            front, other = [(one, two), (two, one)][number % 2]
            moving = [session for session in sessions.all if session.server is front]
            connections = {session: len(session.ids) + 1 for session in moving}
            for session in moving:
                session.move(other)
            begin = time.monotonic()
            front.kill()
            quickly = rng.random() < 0.5
            if quickly:
                restart(front)
            wait.until(lambda: all(session.is_ready(connections[session]) for session in moving), what="the sessions elsewhere")
            moved = time.monotonic()
            living = sorted(session.ids[-1] for session in sessions.all)
            for channel in channels[:2]:
                for server in [three, home]:
                    wait.until(lambda: present(server, channel) == living, max(moved + PRESENT_S - time.monotonic(), 0),
                               f"the presence of {channel} without ghosts, at {server.data.name}", every_s=0.05)
            moved_s.append(moved - begin)
            present_s.append(time.monotonic() - moved)
            for session in moving:
                for channel, received in session.received.items():
                    assert (received.subscribed[-1].was_recovering, received.subscribed[-1].recovered) == (True, True), channel
            if not quickly:
                restart(front)
            nodes.connected()
            publishers.more(len(channels))
            check(sessions.all, publishers.acknowledged)
            for channel in channels[:2]:
                assert present(three, channel) == living, "the front that is back changed the presence"
            check_members(witness, sessions.all, channels[:2], living)
        check_all(three, sessions.all, publishers)
        with capsys.disabled():
            print(f"\nkilled fronts ({rounds(2)} rounds): {summary(sessions.all, publishers)}; the sessions moved within "
                  f"{max(moved_s):.1f} s; the presence was right {max(present_s):.1f} s later at most")
        check_kept([witness])


def check_members(witness, sessions, channels, living):
    """The witness saw each client join and leave once, and leave only after its connection had ended."""
    ended = {client: moment for session in sessions for client, moment in session.ended.items()}
    for channel in channels:
        received = witness.received[channel]
        expected = sorted(client for session in sessions for client in session.ids)
        wait.until(lambda: sorted(received.joins) == expected, 5, f"one join of each client in {channel}")
        wait.until(lambda: len(received.leaves) >= len(ended), 5, f"the leaves in {channel}")
        left = [client for _, client in received.leaves]
        assert sorted(left) == sorted(ended) and not set(left) & set(living)
        early = [client for moment, client in received.leaves if moment < ended[client]]
        assert not early, f"clients left {channel} while they were present: {early}"


@pytest.mark.timeout(3600)
def test_lost_packets_between_a_front_and_a_home_cost_no_publication(make_networks, make_server, tmp_path, rounds, rng, capsys):
    """Both nodes find the link dead within 4 s (5 s in the status), whichever direction loses packets. It is up again after
    that, and each session of the front has what was acknowledged through the other front."""
    separate = make_networks("home", "one", "two")
    nodes = Nodes(make_server, names=["home", "one", "two"], homes=["home"], networks=separate)
    _, one, two = nodes.make_live(tmp_path, CONFIG)
    ways = {"both ways": [("home", "one"), ("one", "home")], "to the front": [("home", "one")], "to the home": [("one", "home")]}
    found_s, healed_s = collections.defaultdict(list), []
    with Sessions([one, two] * 3, CHANNELS) as sessions, Publishers([one, two], CHANNELS) as publishers:
        turns = list(ways)
        rng.shuffle(turns)
        for way in itertools.islice(itertools.cycle(turns), rounds(2)):
            publishers.more(rng.randrange(10, 200))
            begin = time.monotonic()
            for source, target in ways[way]:
                separate.drop(source, target)
            for at, of in [("one", "home"), ("home", "one")]:
                wait.until(lambda: state(nodes, at, of) != "up", max(begin + FOUND_S - time.monotonic(), 0),
                           f"the loss of packets {way}, at {at}")
                found_s[way].append(time.monotonic() - begin)
            publishers.more(rng.randrange(10, 300), through=two)
            begin = time.monotonic()
            separate.heal()
            nodes.connected()
            healed_s.append(time.monotonic() - begin)
            publishers.more(len(CHANNELS), through=one)
            check(sessions.all, publishers.acknowledged)
        check_all(two, sessions.all, publishers)
        with capsys.disabled():
            found = ", ".join(f"{way} {max(times):.1f} s" for way, times in found_s.items())
            print(f"\nlost packets ({rounds(2)} rounds): {summary(sessions.all, publishers)}; found after at most: {found}; "
                  f"up again {max(healed_s):.1f} s after the end at most")
        check_kept(sessions.all)


BUSY = [f"busy{number}" for number in range(100)]
# The publications of a batch, and of a second.
BATCH, RATE = 100, 5_000


def publish_batches(address, port, ending, reports):
    """Publishes at the rate until `ending`; reports the publications, the seconds, and what was refused. The data holds the
    time before the request."""
    connection = http.client.HTTPConnection(address, port, timeout=20)
    begin, count, refused = time.monotonic(), 0, 0
    padding = "x" * 200
    while not ending.is_set():
        # A late batch does not lead to several at once.
        time.sleep(max(0, begin + count / RATE - time.monotonic()))
        now = time.monotonic()
        commands = [{"publish": {"channel": BUSY[(count + place) % len(BUSY)], "data": {"n": [count + place, now], "p": padding}}}
                    for place in range(BATCH)]
        connection.request("POST", "/api/batch", json.dumps({"commands": commands, "parallel": True}), {"X-API-Key": API_KEY})
        replies = json.loads(connection.getresponse().read())["replies"]
        refused += sum("error" in reply for reply in replies)
        count += BATCH
    reports.put((count, time.monotonic() - begin, refused))


def p99_ms(sessions, begin, end):
    """The p99 of the time from publishing to delivery, of publications that arrived between two times."""
    times = sorted(arrived - value[1] for session in sessions for received in session.received.values()
                   for (_, value), arrived in zip(received.publications, received.times) if begin <= arrived < end)
    assert len(times) > 1000, "too few publications arrived"
    return times[len(times) * 99 // 100] * 1000


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(600)
def test_a_front_that_stops_slows_no_other_and_costs_the_home_little_memory(make_server, tmp_path, capsys):
    """While a front is stopped, the time to sessions of the other front stays, and the home's memory is bounded. Afterwards
    its sessions receive everything."""
    nodes = Nodes(make_server, names=["home", "one", "two"], homes=["home"])
    home, one, two = nodes.make_live(tmp_path, CONFIG)
    context = multiprocessing.get_context("spawn")
    ending, reports = context.Event(), context.Queue()
    publisher = context.Process(target=publish_batches, args=(home.address, home.live_port, ending, reports))
    watched = BUSY[::10]
    with Sessions([two, one], watched) as sessions:
        others = sessions.all[:1]
        for session in sessions.all:
            sessions.run(session.wait_longer())
        publisher.start()
        try:
            count = lambda: sum(len(received.publications) for received in others[0].received.values())
            wait.until(lambda: count() > 5 * RATE * len(watched) // len(BUSY), 60, "publications")
            begin = time.monotonic()
            wait.until(lambda: time.monotonic() > begin + 15, 60, "the figures before the stop", every_s=0.1)
            memory_kib = home.memory_kib("VmRSS")
            stop, peak_kib = time.monotonic(), 0
            os.kill(one.pid, signal.SIGSTOP)
            try:
                while time.monotonic() < stop + 30:
                    peak_kib = max(peak_kib, home.memory_kib("VmRSS"))
                    time.sleep(0.1)
                assert state(nodes, "home", "one") != "up"
            finally:
                os.kill(one.pid, signal.SIGCONT)
            end = time.monotonic()
            nodes.connected()
        finally:
            ending.set()
            published, seconds, refused = reports.get(timeout=30)
            publisher.join(30)
        assert refused == 0 and published % len(BUSY) == 0
        expected = [(offset, offset * len(BUSY)) for offset in range(1, published // len(BUSY) + 1)]
        for session in sessions.all:
            for number, (channel, received) in enumerate(session.received.items()):
                wait.until(lambda: len(received.publications) >= len(expected), 60, f"all publications of {channel}")
                got = [(offset, value[0] - 10 * number + len(BUSY)) for offset, value in received.publications]
                assert got == expected, f"{channel} at {session.server.data.name}"
        check_kept(sessions.all)
        before, during = p99_ms(others, begin, stop), p99_ms(others, stop, end)
        growth_mib = (peak_kib - memory_kib) / 1024
        with capsys.disabled():
            print(f"\na stopped front: {published / seconds:.0f} publications/s, p99 {before:.1f} ms before and {during:.1f} ms "
                  f"during, the home's memory {memory_kib / 1024:.0f} MiB and {growth_mib:.1f} MiB more, "
                  f"{sum(session.resubscribed for session in sessions.all)} subscriptions made again")
        assert during < 3 * before + 20
        outbox_mib = home.metric("steadfast_cluster_outbox_limit_bytes") / (1 << 20)
        assert growth_mib < outbox_mib + 64


class Repeating(threading.Thread):
    """Publishes with idempotency keys. It repeats each publication until it is answered, and then once more."""

    def __init__(self, servers, channel):
        super().__init__(daemon=True)
        self.servers, self.channel, self.stopped = servers, channel, threading.Event()
        self.offsets, self.repeated, self.wrong = {}, 0, []

    def attempt(self, server, number):
        """The offset; None: there is no answer yet."""
        try:
            answer = api(server, "publish", channel=self.channel, data={"n": number}, idempotency_key=f"key {number}")
        except OSError:
            return None
        return answer["result"]["offset"] if "result" in answer else None

    def run(self):
        for number in itertools.count():
            if self.stopped.is_set():
                return
            for attempt in itertools.count():
                offset = self.attempt(self.servers[(number + attempt) % len(self.servers)], number)
                if offset is not None:
                    break
                self.repeated += 1
                time.sleep(0.01)
            self.offsets[number] = offset
            again = self.attempt(self.servers[number % len(self.servers)], number)
            if again not in (None, offset):
                self.wrong.append((number, offset, again))


@pytest.mark.timeout(3600)
def test_repetitions_with_a_key_are_stored_once_over_restarts_of_the_home(make_server, tmp_path, request, rng, capsys):
    """Whether the home is killed or stopped, and whichever node is asked."""
    nodes = Nodes(make_server, names=["home", "one"], homes=["home"])
    home, one = servers = nodes.make_live(tmp_path, CONFIG)
    publishers = [Repeating(servers if number % 2 else [one], f"channel{number}") for number in range(8)]
    for publisher in publishers:
        publisher.start()
    for turn in range(200 if request.config.getoption("--long") else 5):
        time.sleep(rng.uniform(0.05, 0.3))
        home.kill() if turn % 2 else home.stop()
        restart(home)
        nodes.connected()
    for publisher in publishers:
        publisher.stopped.set()
    for publisher in publishers:
        publisher.join(60)
        assert not publisher.wrong, "a repetition has the position of the first one"
        publications = history(home, publisher.channel)
        stored = {publication["data"]["n"]: publication["offset"] for publication in publications}
        assert len(stored) == len(publications), "none is stored twice"
        assert stored == publisher.offsets, "all that was answered is stored, where the answer said"
    with capsys.disabled():
        stored, repeated = (sum(counts) for counts in
                            zip(*[(len(publisher.offsets), publisher.repeated) for publisher in publishers]))
        print(f" {stored} publications, {repeated} repetitions without an answer ", end="")
