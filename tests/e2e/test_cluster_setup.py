"""Setting up a cluster: the documented configuration, and mistakes that operators make."""

import contextlib
import http.client
import json
import os
import re
import shutil
import subprocess

import pytest
from harness import wait
from harness.cluster import Nodes
from harness.live import CONFIG, api
from harness.server import ROOT, binary, free_port


def documented():
    """The configuration in cluster.md."""
    text = (ROOT / "docs" / "cluster.md").read_text()
    section = text.partition("## Three machines behind HAProxy")[2]
    return re.search(r"```toml\n(.*?)```", section, re.DOTALL)[1]


def status(data):
    """The status of a server, once it answers."""
    done = subprocess.run([binary(), "status", "--data", str(data), "--json"], capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.stdout.startswith("{") else None


def code(address, port, path):
    """The status code of a GET request; None while nothing listens."""
    connection = http.client.HTTPConnection(address, port, timeout=10)
    with contextlib.closing(connection):
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except ConnectionError:
            return None


def test_the_documented_configuration_differs_in_the_name_only(make_networks, tmp_path):
    machines, text = make_networks("a", "b", "c"), documented()
    files = {name: tmp_path / name for name in ["cluster.secret", "cluster.pem", "cluster.key"]}
    files["cluster.secret"].write_text("0123456789abcdef" * 2)
    assert shutil.which("openssl"), "the documentation makes the certificate with it"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1",
                    "-subj", "/CN=steadfast", "-keyout", str(files["cluster.key"]), "-out", str(files["cluster.pem"])],
                   check=True, capture_output=True)
    for name, address in zip("abc", ["10.0.0.1", "10.0.0.2", "10.0.0.3"], strict=True):
        assert address in text
        text = text.replace(address, machines.addresses[name])
    for name, path in files.items():
        assert f"/etc/steadfast/{name}" in text
        text = text.replace(f"/etc/steadfast/{name}", str(path))
    bare = {key: value for key, value in os.environ.items() if not key.startswith("STEADFAST_")}
    with contextlib.ExitStack() as stack:
        for name in "abc":
            file, log = tmp_path / f"{name}.toml", stack.enter_context(open(tmp_path / f"{name}.log", "wb"))
            # A machine has its own files.
            own = text.replace("/var/lib/steadfast", str(tmp_path / f"data-{name}"))
            assert 'name = "a"\n' in own
            file.write_text(own.replace('name = "a"\n', f'name = "{name}"\n'))
            command = [*machines.wrapper(name), binary(), "serve", "--config", str(file), "--set", "data.pool_size=256MiB"]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=bare)
            stack.callback(process.wait)
            stack.callback(process.terminate)

        def all_up():
            found = [status(tmp_path / f"data-{name}") for name in "abc"]
            links = [node["link"] for one in found if one and "cluster" in one for node in one["cluster"]["nodes"] if node["link"]]
            return len(links) == 6 and all(link["state"] == "up" for link in links)

        wait.until(all_up, 60, "the links", 0.2)
        for address in machines.addresses.values():
            # What HAProxy asks.
            assert code(address, 8000, "/health/ready") == 200


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_process_ends_where_another_answers_at_its_address(make_server, name):
    nodes = Nodes(make_server, names=["a", "b"], homes=["a", "b"])
    nodes.make("a"), nodes.make("b")
    nodes.connected()
    first = nodes.servers[name]
    settings = {**first.settings, "cluster.listen": f"127.0.0.1:{(other := free_port())}"}
    second = make_server(name="second", settings=settings, start=False)
    port = nodes.ports[name]
    why = f'another process with the name "{name}" answers at 127.0.0.1:{port}, the address of "{name}" in cluster.nodes'

    # At a start, before it serves anything.
    second.start(wait_ready=False)
    assert second.process.wait(30) == 1
    said = second.log()
    assert why in said and f"this one listens at 127.0.0.1:{other}" in said and " ready:" not in said, said
    assert first.log().count(f'another process has the name of this node, "{name}"') == 1
    # While it serves, because the first one starts later.
    first.kill()
    second.start()
    first.start()
    assert second.process.wait(15) == 1
    assert why in second.log()
    nodes.connected()


def test_a_process_that_others_refuse_because_of_its_name_ends(make_server):
    nodes = Nodes(make_server)
    a, b = nodes.make("a"), nodes.make("b")
    nodes.connected()
    # It has another address for itself, so that only the others know.
    port = free_port()
    listed = f"a=127.0.0.1:{nodes.ports['a']},b=127.0.0.1:{port}"
    settings = {**b.settings, "cluster.listen": f"127.0.0.1:{port}", "cluster.nodes": listed}
    second = make_server(name="second", settings=settings)

    def refused():
        nodes_of = second.status()["cluster"]["nodes"]
        return next(node["link"]["error"] for node in nodes_of if node["name"] == "a")

    why = wait.until(refused, 10, "the reason")
    assert re.search(r'another process with the name "b" is connected, at 127\.0\.0\.1:\d+, and this one is at', why), why
    assert second.command("status", "--data", second.data).stdout.count("another process with the name") == 1
    shown = wait.until(lambda: nodes.link("a")["refused"], 10, "the refusal")
    assert shown["address"].startswith("127.0.0.1:") and shown["ago_s"] <= 2
    assert "A SECOND PROCESS with this name, at 127.0.0.1:" in a.command("status", "--data", a.data).stdout
    # Several further attempts change nothing.
    first = shown["address"]
    wait.until(lambda: nodes.link("a")["refused"]["address"] != first, 10, "a further attempt")
    assert nodes.link("a")["established"] == 1 and nodes.is_up("a", "b")
    assert a.log().count("a second process with the name") == 1
    assert second.process.wait(20) == 1
    assert "stopping: another process with the name" in second.log() and f"this one listens at 127.0.0.1:{port}" in second.log()
    assert b.process.poll() is None and nodes.is_up("a", "b")


def test_a_front_without_a_home_is_not_ready(make_server):
    nodes = Nodes(make_server, names=["home", "one", "two"], homes=["home"])
    one = nodes.make("one", ready_without_homes="1s")
    two = nodes.make("two", ready_without_homes="0s")

    def ready(server):
        found = {server.admin("/health/ready")[0], code("127.0.0.1", server.live_port, "/health/ready")}
        return found.pop() if len(found) == 1 else None

    wait.until(lambda: ready(one) == 503, 10, "the loss of readiness")
    reason = one.admin("/health/ready")[1]
    assert re.match(r"not ready: this front has had no link to a home for \d+ s", reason), reason
    assert "NO: this front has had no link" in one.command("status", "--data", one.data).stdout
    # It is no reason to restart the process.
    assert one.admin("/health/live")[0] == 200 and code("127.0.0.1", one.live_port, "/health") == 200
    assert ready(two) == 200
    home = nodes.make("home")
    wait.until(lambda: ready(one) == 200, 10, "readiness")
    home.kill()
    wait.until(lambda: ready(one) == 503, 10, "the loss of readiness")
    assert ready(two) == 200


def test_fronts_on_one_machine_need_no_port_for_s3(make_server):
    nodes = Nodes(make_server, names=["home", "one", "two"], homes=["home"])
    nodes.make("home")
    for name in ["one", "two"]:
        front = nodes.make(name, start=False)
        front.s3_listen = None
        front.start()
    nodes.connected()
    for name in ["one", "two"]:
        front = nodes.servers[name]
        assert " s3=" not in front.log() and "connections" not in front.status()
        shown = front.command("status", "--data", front.data).stdout
        assert "?" not in shown and f"node {name} of 3, a front without disks; homes: home" in shown, shown
        assert front.stop(10) == 0


def test_nodes_that_store_a_namespace_in_other_ways_refuse_each_other(make_server, tmp_path):
    nodes = Nodes(make_server, names=["home", "front"], homes=["home"])

    def make(name, change):
        config = json.loads(json.dumps(CONFIG))
        change(config["channel"]["without_namespace"])
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(config))
        return nodes.make(name, args=["--live-config", str(file)])

    make("home", lambda options: None)
    front = make("front", lambda options: options.update(history_size=0, history_ttl="0s", force_recovery=False))
    for name in ["home", "front"]:
        wait.until(lambda name=name: "has other options of history for channels without a namespace" in (nodes.link(name)["error"] or ""),
                   10, "the reason")
    # What the home would not store is not acknowledged.
    assert api(front, "publish", channel="room", data={})["error"]["code"] == 100
    assert front.stop(10) == 0
    # Rights may differ, so that they can change node by node.
    front = make("front", lambda options: options.update(allow_publish_for_client=True))
    nodes.connected()
    for name in ["home", "front"]:
        assert nodes.link(name)["differing_namespaces"] == [""]
        server = nodes.servers[name]
        assert "OTHER OPTIONS there for channels without a namespace" in server.command("status", "--data", server.data).stdout
    assert api(front, "publish", channel="room", data={})["result"]["offset"] == 1
