"""Nodes: links are opened, lost and opened again, and refused if the nodes differ."""

import collections
import contextlib
import itertools
import json
import os
import re
import signal
import socket
import threading

import pytest

from harness import wait
from harness.cluster import Nodes
from test_live_proxy_tls import Authority

# A lost link is found within 3 s; a second more is for the status.
LOST_S = 4


@pytest.fixture
def nodes(make_server):
    return Nodes(make_server)


def shown(server):
    """The lines of the link in the status."""
    text = server.command("status", "--data", server.data).stdout
    return [line for line in text.splitlines() if line.startswith(("cluster ", "link "))]


def test_a_link_is_opened_and_shown(nodes):
    a, b = nodes.make("a"), nodes.make("b")
    nodes.connected()
    assert f"cluster=127.0.0.1:{nodes.ports['a']}" in a.log()
    cluster, link = shown(b)
    assert "node b of 2; homes: a, b" in cluster
    assert re.fullmatch(rf"link +a at 127\.0\.0\.1:{nodes.ports['a']}: up for \d+ s, round trip .+ ms, 0 B wait to be sent", link), link
    metrics = a.metrics()
    assert metrics['steadfast_cluster_link_up{node="b"}'] == 1
    assert metrics['steadfast_cluster_links_established_total{node="b"}'] == 1
    assert 0 < metrics['steadfast_cluster_round_trip_seconds{node="b"}'] < 10
    assert metrics["steadfast_cluster_outbox_limit_bytes"] == 64 << 20
    wait.until(lambda: a.metrics()['steadfast_cluster_frames_received_total{node="b"}'] > 2, what="further frames")
    assert "other machines reach" not in a.log()
    # A stop closes the link at once.
    assert b.stop(10) == 0
    wait.until(lambda: nodes.link("a")["state"] == "down", LOST_S, "the end of the link")
    assert metrics.keys() == a.metrics().keys() and a.metrics()['steadfast_cluster_link_up{node="b"}'] == 0


def test_strangers_do_not_keep_a_node_out(nodes):
    nodes.make("a"), nodes.make("b")
    nodes.connected()
    end, connections = threading.Event(), collections.deque()

    def connect():
        # Of several addresses, because one has a quarter of the port.
        for number in itertools.count():
            if end.wait(1 / 800):
                return
            with contextlib.suppress(OSError):
                stranger = socket.socket()
                stranger.bind((f"127.0.0.{2 + number % 8}", 0))
                stranger.settimeout(1)
                stranger.connect(("127.0.0.1", nodes.ports["a"]))
                connections.append(stranger)
            if len(connections) > 2000:
                connections.popleft().close()

    thread = threading.Thread(target=connect)
    thread.start()
    try:
        wait.until(lambda: len(connections) > 150, what="a full port")
        for _ in range(2):
            nodes.servers["b"].kill()
            wait.until(lambda: nodes.link("a")["state"] == "down", LOST_S, "the end of the link")
            nodes.servers["b"].start()
            nodes.connected()
    finally:
        end.set()
        thread.join()
        for stranger in connections:
            stranger.close()
    assert nodes.servers["a"].log().count("a link is refused") <= 1


@pytest.mark.parametrize("lost", ["a", "b"])
def test_a_killed_node_is_down_until_it_starts_again(nodes, lost):
    left = "b" if lost == "a" else "a"
    nodes.make("a"), nodes.make("b")
    nodes.connected()
    nodes.servers[lost].kill()
    down = wait.until(lambda: (link := nodes.link(left))["state"] == "down" and link["error"] and link, LOST_S, "the loss")
    assert re.search("closed the link|the connection is lost|cannot connect to", down["error"]), down
    line = shown(nodes.servers[left])[1]
    assert re.fullmatch(rf"link +{lost} at .*: DOWN for \d+ s: .+", line), line
    # The other node serves without it.
    assert nodes.servers[left].admin("/health/ready")[0] == 200
    nodes.servers[lost].start()
    nodes.connected()
    assert nodes.link(left)["error"] is None and nodes.link(left)["established"] == 2


def test_a_node_that_hangs_is_down_until_it_continues(nodes):
    a, b = nodes.make("a"), nodes.make("b")
    nodes.connected()
    os.kill(b.pid, signal.SIGSTOP)
    try:
        down = wait.until(lambda: (link := nodes.link("a"))["state"] == "down" and link["error"] and link, LOST_S, "the loss")
        assert "nothing arrived for 3 s" in down["error"], down
    finally:
        os.kill(b.pid, signal.SIGCONT)
    nodes.connected()
    assert a.metrics()['steadfast_cluster_links_established_total{node="b"}'] == 2


def test_a_node_with_another_list_of_homes_is_refused(nodes):
    nodes.make("a"), nodes.make("b", homes="b")
    for name in "ab":
        why = wait.until(lambda name=name: nodes.link(name)["error"], what="a reason")
        assert "another list of homes: cluster.homes must be the same" in why
        assert nodes.link(name)["established"] == 0 and "another list of homes" in shown(nodes.servers[name])[1]
    assert nodes.servers["b"].stop() == 0
    nodes.make("b")
    nodes.connected()


def test_a_node_with_another_secret_is_refused(nodes):
    nodes.make("a"), nodes.make("b", secret="another-secret-of-16")
    why = wait.until(lambda: nodes.link("b")["error"], what="a reason")
    assert "cluster.secret must be the same" in why
    assert not nodes.is_up("a") and nodes.link("a")["established"] == 0
    for server in nodes.servers.values():
        assert "another-secret-of-16" not in server.log() + json.dumps(server.status())


def test_nodes_with_one_certificate_have_an_encrypted_link(nodes, tmp_path):
    ours, other = Authority(tmp_path, "cluster"), Authority(tmp_path, "other")
    nodes.make("a", certificate=ours.certificate, key=ours.key)
    b = nodes.make("b", certificate=other.certificate, key=other.key)
    why = wait.until(lambda: nodes.link("b")["error"], what="a reason")
    assert "all nodes must have the same" in why and nodes.link("a")["established"] == 0
    assert b.stop() == 0
    b = nodes.make("b")
    why = wait.until(lambda: nodes.link("b")["error"], what="a reason without TLS")
    assert nodes.link("a")["established"] == 0, why
    assert b.stop() == 0
    nodes.make("b", certificate=ours.certificate, key=ours.key)
    nodes.connected()


def test_both_nodes_find_the_home_of_a_channel_in_the_configuration(nodes, tmp_path):
    listed = ", ".join(f'{{ name = "{name}", address = "127.0.0.1:{port}" }}' for name, port in nodes.ports.items())

    def ring(own, channel, homes):
        file = tmp_path / f"{own}.toml"
        file.write_text(f'[cluster]\nname = "{own}"\nnodes = [{listed}]\nhomes = {homes}\nsecret = "0123456789abcdef"\n')
        command = ["cluster", "ring", channel, "--config", str(file)]
        bare = nodes.make_server(name="bare", start=False, settings={"live.listen": "127.0.0.1:0"})
        found = json.loads(bare.command(*command, "--json").stdout)
        home = found["home"]
        assert found["channel"] == channel and home["address"] == f"127.0.0.1:{nodes.ports[home['name']]}"
        assert bare.command(*command).stdout == f"{home['name']} at {home['address']}\n"
        return home["name"]

    channels = [f"room:{number}" for number in range(12)]
    homes = [ring("a", channel, '["a", "b"]') for channel in channels]
    assert homes == [ring("b", channel, '["a", "b"]') for channel in channels] and set(homes) == {"a", "b"}
    assert {ring(own, channel, '["b"]') for own in "ab" for channel in channels[:3]} == {"b"}


def test_a_server_without_nodes_has_no_links(make_server):
    server = make_server()
    assert "cluster" not in server.status() and not any("cluster" in name for name in server.metrics())
    assert "cluster=" not in server.log() and not shown(server)
    ring = server.command("cluster", "ring", "news")
    assert ring.returncode == 0 and "This one process is the home of every channel" in ring.stdout
    assert json.loads(server.command("cluster", "ring", "news", "--json").stdout) == {"channel": "news", "home": None}


def test_mistakes_stop_the_start(make_server):
    server = make_server(start=False)
    for setting, expected in [
        ("cluster.homes=c", "the home \"c\" is not among the nodes"),
        ("cluster.secret=short", "at least 16"),
        ("cluster.certificate=/nowhere.pem", "needs both cluster.certificate and cluster.key"),
    ]:
        given = ["cluster.name=a", "cluster.nodes=a=127.0.0.1:1", "cluster.homes=a", "cluster.secret=0123456789abcdef", setting]
        failed = server.command("serve", "--data", str(server.data), *(part for text in given for part in ("--set", text)))
        assert failed.returncode == 1 and expected in failed.stderr, failed.stderr
