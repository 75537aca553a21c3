"""The live port with Centrifugo's JavaScript SDK, unmodified: in Node and in a headless Chromium,
over each transport."""

import pytest

from harness import js
from harness.cluster import Nodes
from harness.live import CONFIG, live_server, missed, restart, token

TRANSPORTS = {
    "websocket": lambda port: f"ws://127.0.0.1:{port}/connection/websocket",
    "http_stream": lambda port: [{"transport": "http_stream", "endpoint": f"http://127.0.0.1:{port}/connection/http_stream"}],
    "sse": lambda port: [{"transport": "sse", "endpoint": f"http://127.0.0.1:{port}/connection/sse"}],
}
KINDS = [("websocket", False), ("websocket", True), ("http_stream", False), ("http_stream", True), ("sse", False)]
STREAMS = {"http_stream": {"enabled": True}, "sse": {"enabled": True}}

kinds = pytest.mark.parametrize(
    "transport, protobuf", KINDS, ids=[f"{transport}-{'protobuf' if protobuf else 'json'}" for transport, protobuf in KINDS])


@pytest.fixture
def live(make_server, tmp_path):
    return live_server(make_server, tmp_path, {**CONFIG, **STREAMS})


@pytest.fixture(params=["node", "chromium"])
def driver(request, live):
    reason = js.chromium_missing() if request.param == "chromium" else js.node_missing()
    if reason:
        pytest.skip(reason)
    # A page of the server's own origin.
    driver = js.Driver(f"http://127.0.0.1:{live.live_port}/health" if request.param == "chromium" else None)
    yield driver
    driver.close()


def opened(driver, live, name, transport, protobuf):
    port = live.live_port
    client = {} if transport == "websocket" else {"emulationEndpoint": f"http://127.0.0.1:{port}/emulation"}
    driver.call(name, "open", endpoint=TRANSPORTS[transport](port),
                options={"protobuf": protobuf, "token": token(name), "client": client})
    driver.call(name, "connect")


def exchange(driver, servers, transport, protobuf):
    """Two sessions receive each other's publications: each is at its server."""
    opened(driver, servers[0], "ann", transport, protobuf)
    opened(driver, servers[1], "bob", "websocket", not protobuf)
    driver.call("ann", "subscribe", channel="room")
    driver.call("bob", "subscribe", channel="room")
    driver.wait_event("ann", "join", user="bob")
    assert driver.call("ann", "presence", channel="room") == ["ann", "bob"]
    assert driver.call("bob", "presence_stats", channel="room") == [2, 2]
    messages = [{"from": name, "n": n, "text": "é, \"quoted\"\n and said"} for n in range(5) for name in ("ann", "bob")]
    for one in messages:
        driver.call(one["from"], "publish", channel="room", data=one)
    for name in ("ann", "bob"):
        publications = driver.wait_event(name, "publication", len(messages))
        assert [(one["offset"], one["data"]) for one in publications] == list(enumerate(messages, 1))
    assert driver.call("ann", "history", channel="room") == [list(one) for one in enumerate(messages, 1)]
    driver.call("bob", "unsubscribe", channel="room")
    driver.wait_event("ann", "leave", user="bob")
    sessions = {(kind["transport"], kind["encoding"]): kind["sessions"] for kind in servers[0].status()["live"]["sessions_by"]}
    assert sessions[transport, "protobuf" if protobuf else "json"] == 1
    driver.call("ann", "disconnect")


@kinds
def test_sessions_receive_each_others_publications(driver, live, transport, protobuf):
    exchange(driver, [live, live], transport, protobuf)


@kinds
def test_sessions_at_two_fronts_receive_each_others_publications(make_server, tmp_path, transport, protobuf):
    if reason := js.node_missing():
        pytest.skip(reason)
    fronts = Nodes(make_server, names=["home", "one", "two"], homes=["home"]).make_live(tmp_path, {**CONFIG, **STREAMS})[1:]
    driver = js.Driver(None)
    try:
        exchange(driver, fronts, transport, protobuf)
    finally:
        driver.close()


@kinds
def test_a_crash_loses_nothing(driver, live, transport, protobuf):
    opened(driver, live, "ann", transport, protobuf)
    driver.call("ann", "subscribe", channel="news")
    for n in range(3):
        driver.call("ann", "publish", channel="news", data=n)
    driver.wait_event("ann", "publication", 3)
    live.kill()
    driver.wait_event("ann", "connecting", 2)
    missed(live, "news", range(3, 6))
    restart(live)
    back = driver.wait_event("ann", "subscribed", 2)[-1]
    assert back["was_recovering"] and back["recovered"]
    publications = driver.wait_event("ann", "publication", 6)
    assert [(one["offset"], one["data"]) for one in publications] == [(n + 1, n) for n in range(6)]
    assert driver.call("ann", "presence", channel="news") == ["ann"]
    driver.call("ann", "publish", channel="news", data="after it")
    assert driver.wait_event("ann", "publication", 7)[-1]["data"] == "after it"


def test_a_token_that_is_not_valid_ends_a_session_for_good(driver, live):
    for transport, protobuf in KINDS:
        name = f"{transport} {protobuf}"
        client = {"emulationEndpoint": f"http://127.0.0.1:{live.live_port}/emulation"}
        driver.call(name, "open", endpoint=TRANSPORTS[transport](live.live_port),
                    options={"protobuf": protobuf, "token": "nonsense", "client": client})
        with pytest.raises(AssertionError, match="connect"):
            driver.call(name, "connect")
        assert driver.wait_event(name, "disconnected")[0]["code"] == 3500
