"""The server API with slow disks, full disks, and requests that would take much memory."""

import json
import socket
import urllib.request

import pytest

from harness import wait
from harness.live import API_KEY, api, live_server

MIB = 1 << 20


def config(**namespace):
    return {"client": {"insecure": True, "history_max_publication_limit": 10_000}, "http_api": {"key": API_KEY},
            "channel": {"without_namespace": {"history_ttl": "1h", **namespace}}}


def post(server, method, body, timeout_s=120):
    request = urllib.request.Request(f"http://127.0.0.1:{server.live_port}/api/{method}", method="POST",
                                     data=json.dumps(body).encode(), headers={"X-API-Key": API_KEY})
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:
        return answer.read()


def test_a_retry_by_its_key_is_not_published_twice_while_the_disk_hangs(fuse_disk, make_server, tmp_path):
    server = live_server(make_server, tmp_path, config(history_size=10), disk=fuse_disk,
                         settings={"store.write_wait": "1 s"})
    assert "result" in api(server, "publish", channel="c", data=0)
    hold = fuse_disk.fault("fsync", "hold")
    publish = {"channel": "c", "data": 1, "idempotency_key": "k"}
    # Like a back end with a short timeout. The server waits longer than this for a hung disk.
    with pytest.raises((socket.timeout, TimeoutError)):
        post(server, "publish", publish, timeout_s=4)
    without_key = json.loads(post(server, "publish", {"channel": "c", "data": 2}))
    assert without_key["error"]["code"] == 100, without_key
    fuse_disk.remove(hold)
    first = json.loads(post(server, "publish", publish))
    assert first["result"]["offset"] == 2, first
    assert json.loads(post(server, "publish", publish)) == first
    history = api(server, "history", channel="c", limit=10)["result"]["publications"]
    assert [one["data"] for one in history].count(1) == 1, history


def test_the_broadcasts_of_a_batch_share_a_bound(make_server, tmp_path, capsys):
    settings = {"log.write_budget": "32 MiB", "store.cache": "16 MiB", "store.channel_tails": "16 MiB"}
    server = live_server(make_server, tmp_path, config(history_size=1), pool_size="2 GiB", settings=settings)
    base = server.memory_kib("VmRSS")
    data, channels = "x" * 36_000, [f"c{n}" for n in range(48)]
    commands = [{"broadcast": {"channels": channels, "data": data}} for _ in range(256)]
    body = {"commands": commands, "parallel": True}
    replies = json.loads(post(server, "batch", body))["replies"]
    assert len(replies) == 256
    assert all("result" in one for reply in replies for one in reply["broadcast"]["responses"])
    grown = (server.memory_kib("VmHWM") - base) / 1024
    with capsys.disabled():
        print(f"\n256 broadcasts of 36 KB to 48 channels each in one request: {grown:.0f} MiB more memory")
    # The body, its parsed form, and the budgets above with a margin.
    assert grown < 9 * 3 + 32 + 16 + 16 + 80


def test_a_long_history_takes_its_bytes_and_not_values(make_server, tmp_path, capsys):
    settings = {"log.write_budget": "32 MiB", "store.cache": "16 MiB", "store.channel_tails": "16 MiB",
                "live.history_max": "16 MiB", "live.answers_memory": "64 MiB"}
    server = live_server(make_server, tmp_path, config(history_size=10_000), pool_size="1 GiB", settings=settings)
    data = [0] * 2000
    for _ in range(8):
        commands = [{"publish": {"channel": "c", "data": data}} for _ in range(512)]
        post(server, "batch", {"commands": commands})
    base = server.memory_kib("VmRSS")
    answer = post(server, "history", {"channel": "c", "limit": 10_000})
    grown = (server.memory_kib("VmHWM") - base) / 1024
    with capsys.disabled():
        print(f"\na history of {len(answer) / MIB:.0f} MiB: {grown:.0f} MiB more memory")
    assert len(answer) > 15 * MIB
    assert json.loads(answer)["result"]["publications"][0]["data"] == data
    assert grown < 64 + 32


def test_binary_publications_do_not_hide_the_others(make_server, tmp_path):
    server = live_server(make_server, tmp_path, config(history_size=10))
    api(server, "publish", channel="c", data={"a": 1})
    api(server, "publish", channel="c", b64data="/wA=")
    found = api(server, "history", channel="c", limit=10)["result"]["publications"]
    assert [(one.get("data"), one.get("b64data")) for one in found] == [({"a": 1}, None), (None, "/wA=")]


def test_a_full_pool_is_shown_to_monitoring(make_server, tmp_path):
    server = live_server(make_server, tmp_path, config(history_size=1), pool_size="64 MiB", extent_size="1 MiB",
                         settings={"live.publish_reserve": "60"})
    assert server.admin("/health/ready") == (200, "ready\n")
    server.s3().create_bucket(Bucket="full")
    for number in range(30):
        assert server.request("PUT", f"/full/{number}", bytes(1 << 20))[0] == 200
    wait.until(lambda: "nearly full" in server.admin("/health/ready")[1], what="the reason in /health/ready")
    assert server.admin("/health/ready")[0] == 200
    assert 10 < server.metric("steadfast_disks_free_percent") < 60


def test_many_histories_from_the_disk_do_not_wait_for_each_other(make_server, tmp_path):
    settings = {"data.read_buffers": "32 MiB", "store.cache": "0 B"}
    server = live_server(make_server, tmp_path, config(history_size=1000), pool_size="512 MiB", settings=settings)
    server.s3().create_bucket(Bucket="others")
    assert server.request("PUT", "/others/one", bytes(100_000))[0] == 200
    channels, data = [f"c{n}" for n in range(40)], "x" * 13_000
    for _ in range(30):
        post(server, "batch", {"commands": [{"broadcast": {"channels": channels, "data": data}}] * 8})
    # Nothing of it remains in memory.
    assert server.stop() == 0
    server.start()
    histories = [{"history": {"channel": channel, "limit": 1000}} for channel in channels]
    replies = json.loads(post(server, "batch", {"commands": histories, "parallel": True}))["replies"]
    assert len(replies) == len(channels)
    assert any("history" in reply for reply in replies), replies[0]
    assert len(server.request("GET", "/others/one", timeout_s=10)[2]) == 100_000
