"""Clients that are slow, stall or only connect do not stop others."""

import itertools
import socket
import threading
import time

import pytest

from harness import load, sign, wait
from harness.raw import Raw
from harness.server import in_threads

pytestmark = pytest.mark.alone

# A slow client is not cut off before these tests end: only the bounds keep it from stopping others.
PATIENT = {"limits.stall_timeout": "1h", "limits.header_timeout": "1h", "limits.client_rate_min": "0 B"}
#: Addresses of the clients that are slow.
SLOW = ("127.0.0.2", "127.0.0.3")


def begun(server, method, path, size=None, sent=b"", source=SLOW[0]):
    """A request that the client neither sends nor reads any further."""
    headers = {"content-length": str(size)} if size is not None else {}
    raw = Raw(server, source=source)
    raw.request_head(method, path, sign.headers_for(method, server.host, path, headers=headers))
    return raw.send(sent)


def work(server, number):
    """The work of other clients meanwhile."""
    small, large = load.content(number, 1024), load.content(number, 1 << 20)
    for name, data in (("small", small), ("large", large)):
        path = f"/slow/{name}/{number}"
        assert server.request("PUT", path, data, timeout_s=60)[0] == 200
        status, _, got = server.request("GET", path, timeout_s=60)
        assert status == 200 and got == data


def places(server):
    """Requests being served, without answers being sent."""
    return server.metrics()['steadfast_bound_used{bound="s3_requests"}']


def test_downloads_that_are_not_read(make_server):
    server = make_server(settings={"store.cache": "0 B", "store.read_ahead": "4 MiB", **PATIENT})
    server.s3().create_bucket(Bucket="slow")
    data = load.content(1, 20_000_000)
    assert server.request("PUT", "/slow/big", data)[0] == 200
    base_kib = server.memory_kib("VmRSS")
    raws = [begun(server, "GET", "/slow/big") for _ in range(200)]
    for raw in raws:
        assert raw.socket.recv(1000).startswith(b"HTTP/1.1 200")
    # A piece of 256 KiB each, read-ahead, the disk's read buffers, and a margin for the allocator.
    grown_mib = (server.memory_kib("VmHWM") - base_kib) / 1024
    assert grown_mib < 200 * 0.25 + 4 + 64 + 32, f"memory grew by {grown_mib:.0f} MiB"
    in_threads(8, lambda n: [work(server, n * 5 + i) for i in range(5)])
    assert places(server) == 0, "they hold request permits"
    # A client that reads later still receives everything. The head held the beginning, above.
    got = bytearray()
    while not got.endswith(data[-1000:]):
        got += raws[0].socket.recv(1 << 20)
    assert len(got) > 19_990_000 and data.endswith(got)
    for raw in raws:
        raw.close()


def test_uploads_that_stall(make_server):
    # 200 stalled uploads pass the budget on once a second, one after the other. The last ones wait
    # about ten seconds for it, longer beside other load.
    budget = {"log.write_budget": "16 MiB", "store.write_wait": "1m"}
    server = make_server(settings={"store.cache": "0 B", **budget, **PATIENT})
    server.s3().create_bucket(Bucket="slow")
    base_kib = server.memory_kib("VmRSS")
    sizes = [(6_000_000, 1_300_000), (6_000_000, 100_000), (6_000_000, 2_097_152), (120_000, 70_000)]
    raws = []
    for number in range(200):
        size, sent = sizes[number % 4]
        raws.append(begun(server, "PUT", f"/slow/stalled/{number}", size, b"x" * sent))
    in_threads(8, lambda n: [work(server, n * 5 + i) for i in range(5)])
    assert places(server) == 0, "they hold request permits"
    grown_mib = (server.memory_kib("VmHWM") - base_kib) / 1024
    assert grown_mib < 16 + 64 + 96, f"memory grew by {grown_mib:.0f} MiB"
    # They still complete.
    for number in range(8):
        size, sent = sizes[number % 4]
        raws[number].send(b"y" * (size - sent))
        assert raws[number].status() == 200
        got = server.request("GET", f"/slow/stalled/{number}")[2]
        assert got == b"x" * sent + b"y" * (size - sent)
    for raw in raws:
        raw.close()


@pytest.mark.parametrize("kind", ["uploads", "downloads"])
def test_a_slow_client_holds_no_request_place(make_server, kind):
    server = make_server(settings={"limits.requests": "8", "limits.answers": "8", "limits.request_wait": "1s", **PATIENT})
    server.s3().create_bucket(Bucket="slow")
    assert server.request("PUT", "/slow/big", load.content(1, 20_000_000))[0] == 200
    if kind == "uploads":
        raws = [begun(server, "PUT", f"/slow/stalled/{n}", 6_000_000, b"x" * 1000) for n in range(12)]
        wait.until(lambda: server.metric("steadfast_connections_open") == 12 and places(server) == 0, what="free permits")
    else:
        # One address gets two of the eight permits for long answers; its other requests get
        # SlowDown.
        raws = [begun(server, "GET", "/slow/big") for _ in range(12)]
        refused = [raw.socket.recv(1000).startswith(b"HTTP/1.1 503") for raw in raws]
        assert refused.count(True) == 10, refused
    in_threads(2, lambda n: work(server, n))
    assert server.request("GET", "/slow/big", timeout_s=60)[0] == 200
    for raw in raws:
        raw.close()


def test_a_thousand_slow_uploads_delay_no_download(make_server):
    """1,024 presigned PUTs at 4 KiB/s from two addresses; GETs of 1 KB and 1 MiB take less than a
    second each."""
    server = make_server()
    s3 = server.s3()
    s3.create_bucket(Bucket="slow")
    sizes = {"small": 1024, "large": 1 << 20}
    for name, size in sizes.items():
        assert server.request("PUT", f"/slow/{name}", load.content(1, size))[0] == 200
    uploads = []
    for number in range(1024):
        url = s3.generate_presigned_url("put_object", Params={"Bucket": "slow", "Key": f"upload/{number}"})
        raw = Raw(server, source=SLOW[number % 2])
        raw.request_head("PUT", url.split(server.host, 1)[1], {"host": server.host, "content-length": "6000000"})
        uploads.append(raw)
    stop, sent = threading.Event(), itertools.count()

    def drip():
        # 4 KiB of each upload a second.
        while not stop.is_set():
            begin = time.monotonic()
            for raw in uploads:
                raw.send(b"x" * 4096)
                next(sent)
            stop.wait(max(0.0, 1 - (time.monotonic() - begin)))

    dripping = threading.Thread(target=drip)
    dripping.start()
    try:
        wait.until(lambda: server.metric("steadfast_connections_open") >= 1024, what="all uploads")
        slowest = 0.0
        for number in range(40):
            name = ("small", "large")[number % 2]
            begin = time.monotonic()
            status, _, got = server.request("GET", f"/slow/{name}")
            slowest = max(slowest, time.monotonic() - begin)
            assert status == 200 and len(got) == sizes[name]
    finally:
        stop.set()
        dripping.join()
    assert slowest < 1, f"a GET took {slowest:.2f} s"
    assert next(sent) >= 1024, "every upload has sent something"
    for raw in uploads:
        raw.close()


def test_a_client_that_reads_a_byte_now_and_then_is_cut_off(make_server):
    server = make_server(settings={"limits.stall_timeout": "2s", "limits.client_rate_min": "64 KiB"})
    server.s3().create_bucket(Bucket="slow")
    assert server.request("PUT", "/slow/big", load.content(1, 50_000_000))[0] == 200
    download, upload = begun(server, "GET", "/slow/big"), begun(server, "PUT", "/slow/k", 1_000_000)

    def cut_off():
        for raw, byte in ((download, None), (upload, b"x")):
            try:
                raw.send(byte) if byte else raw.socket.recv(1)
            except OSError:
                pass
        return server.metric("steadfast_connections_open") == 0

    wait.until(cut_off, 60, "both to be cut off", every_s=0.2)
    assert server.request("GET", "/slow/k")[0] == 404


def test_silent_connections_leave_descriptors_for_the_rest(make_server):
    server = make_server(settings={"live.listen": "127.0.0.1:0", **PATIENT},
                         wrapper=("bash", "-c", 'ulimit -n 700; "$@"; exit $?', "server"))
    assert "fewer connections than configured" in server.log(), server.log()
    server.s3().create_bucket(Bucket="slow")
    idle = []
    for port in (server.s3_port, server.live_port):
        for _ in range(600):
            idle.append(socket.create_connection(("127.0.0.1", port), timeout=10, source_address=(SLOW[0], 0)))
    assert server.admin("/health/ready", timeout_s=60)[0] == 200
    # The server accepts a new connection: the other address has its share, and no more.
    work(server, 1)
    assert server.metric("steadfast_connections_refused_total") > 0

    def live():
        try:
            with socket.create_connection(("127.0.0.1", server.live_port), timeout=30) as connection:
                connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
                return connection.recv(100).startswith(b"HTTP/1.1 200")
        except OSError:
            return False

    wait.until(live, 60, "an accepted connection", every_s=0.1)
    assert "Too many open files" not in server.log()
    for connection in idle:
        connection.close()


def test_two_thousand_silent_connections(make_server):
    """From four addresses, whose connections together may fill the port: the server closes idle
    ones."""
    server = make_server(settings={"limits.connections": "1000", **PATIENT})
    server.s3().create_bucket(Bucket="slow")
    idle = []
    for number in range(2000):
        source = f"127.0.0.{2 + number % 4}"
        idle.append(socket.create_connection(("127.0.0.1", server.s3_port), timeout=10, source_address=(source, 0)))
    begin = time.monotonic()
    work(server, 1)
    # Four requests, each on a connection that waits until the server closes an idle one.
    assert time.monotonic() - begin < 10
    assert server.metric("steadfast_connections_idle_closed_total") > 0
    assert server.metric("steadfast_connections_open") <= 1000
    for connection in idle:
        connection.close()


def test_a_page_of_another_name_does_not_read_the_admin_port(make_server):
    server = make_server(settings={"admin.token": "t0ken"})
    for host, token, status in (("localhost", "t0ken", 200), ("attacker.example", "t0ken", 403), ("127.0.0.1", "t0kem", 401)):
        with socket.create_connection(("127.0.0.1", server.admin_port), timeout=30) as connection:
            connection.sendall(f"GET /status HTTP/1.1\r\nhost: {host}:{server.admin_port}\r\n"
                               f"authorization: Bearer {token}\r\nconnection: close\r\n\r\n".encode())
            assert connection.recv(1000).startswith(f"HTTP/1.1 {status}".encode())
    assert server.admin("/health/ready")[0] == 200
    done = server.command("status", "--admin", f"http://127.0.0.1:{server.admin_port}", "--json")
    assert done.returncode == 0, done.stderr
