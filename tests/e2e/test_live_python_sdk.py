"""The tests of Centrifugo's Python SDK, from its source distribution, unmodified, against the
server."""

import json
import os
import pathlib
import subprocess
import sys
import tarfile

import pytest

from harness import python_sdk, wait
from harness.cluster import Nodes
from harness.live import live_server

SOURCES = pathlib.Path(sys.prefix) / "sources"
# What the distribution's docker-compose.yml sets.
SESSION = {"presence": True, "join_leave": True, "force_push_join_leave": True, "allow_presence_for_subscriber": True}
CHANNEL = {"history_ttl": "300s", "allow_publish_for_subscriber": True, "allow_history_for_subscriber": True}
CONFIG = {
    "client": {"token": {"hmac_secret_key": "secret"}, "subscribe_to_user_personal_channel": {"enabled": True}},
    "channel": {
        "without_namespace": {**SESSION, **CHANNEL, "history_size": 100, "force_recovery": True,
                              "allowed_delta_types": ["fossil"], "delta_publish": True},
        "namespaces": [
            {"name": "smallhistory", **CHANNEL, "history_size": 2, "force_recovery": True},
            {"name": "example", **SESSION, **CHANNEL, "history_size": 300},
        ],
    },
}
# The number of tests in the version that sources.txt names, and the fewest sessions they open.
TESTS, SESSIONS = 185, 75
DEADLINE_S = 280


@pytest.fixture
def source(tmp_path):
    """The distribution, unpacked."""
    found = list(SOURCES.glob("centrifuge_python-*.tar.gz"))
    if not found:
        pytest.skip("no source distribution of centrifuge-python: ./test fetches it")
    (archive,) = found
    with tarfile.open(archive) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    return source


@pytest.fixture(params=[pytest.param("one node", marks=pytest.mark.slow), "three nodes"])
def servers(request, make_server, tmp_path):
    """One server, or the nodes of a cluster: a home and two fronts."""
    if request.param == "one node":
        return [live_server(make_server, tmp_path, CONFIG)]
    return Nodes(make_server, names=["home", "one", "two"], homes=["home"]).make_live(tmp_path, CONFIG)


@pytest.mark.timeout(DEADLINE_S + 60)
def test_the_sdk_s_own_tests_pass(servers, tmp_path, source, capsys):
    # Each connection is to another front.
    ports = ",".join(str(server.live_port) for server in servers[-2:])
    report = tmp_path / "report.json"
    # No environment variable may redirect a connection.
    env = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    with open(tmp_path / "output", "w+") as output:
        try:
            done = subprocess.run([sys.executable, python_sdk.__file__, ports, str(report)], cwd=source, env=env,
                                  stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=DEADLINE_S, check=False)
        except subprocess.TimeoutExpired:
            done = None
        output.seek(0)
        tail = output.read()[-20_000:]
    assert done is not None, f"the tests did not end; the end of their output: {tail}"
    assert done.returncode == 0 and report.exists(), tail
    results = json.loads(report.read_text())
    passed = [test for test in results["ran"] if test not in results["failed"] and test not in results["skipped"]]
    with capsys.disabled():
        print(f"\n{source.name}: of its own {len(results['ran'])} tests {len(passed)} passed, {len(results['failed'])} failed, "
              f"{len(results['skipped'])} skipped {results['skipped'] or ''}")
    assert not results["failed"], "\n".join(f"{test}:\n{trace}" for test, trace in results["failed"].items())
    # Without openssl it skips its tests of TLS, which need no server.
    assert all("openssl" in reason for reason in results["skipped"].values()), results["skipped"]
    assert len(passed) + len(results["skipped"]) == TESTS
    wait.until(lambda: sum(server.metric("steadfast_live_ended_sessions_total") for server in servers[-2:]) >= SESSIONS,
               what="the end of their sessions")
