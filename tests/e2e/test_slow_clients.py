"""Clients that are slow, stall or only connect keep nobody else out."""

import socket

import pytest

from harness import load, sign, wait
from harness.raw import Raw
from harness.server import in_threads

pytestmark = pytest.mark.alone

# Whatever hangs is to hang for longer than any client of these tests waits.
PATIENT = {"limits.stall_timeout": "1h", "limits.header_timeout": "1h", "limits.client_rate_min": "0 B"}


def begun(server, method, path, size=None, sent=b""):
    """A request that goes no further by itself."""
    headers = {"content-length": str(size)} if size is not None else {}
    raw = Raw(server)
    raw.request_head(method, path, sign.headers_for(method, server.host, path, headers=headers))
    return raw.send(sent)


def work(server, number):
    """What everybody else does meanwhile."""
    small, large = load.content(number, 1024), load.content(number, 1 << 20)
    for name, data in (("small", small), ("large", large)):
        path = f"/slow/{name}/{number}"
        assert server.request("PUT", path, data, timeout_s=60)[0] == 200
        status, _, got = server.request("GET", path, timeout_s=60)
        assert status == 200 and got == data


def test_downloads_that_nobody_reads(make_server):
    server = make_server(settings={"store.cache": "0 B", "store.read_ahead": "4 MiB", **PATIENT})
    server.s3().create_bucket(Bucket="slow")
    data = load.content(1, 20_000_000)
    assert server.request("PUT", "/slow/big", data)[0] == 200
    raws = [begun(server, "GET", "/slow/big") for _ in range(200)]
    for raw in raws:
        assert raw.socket.recv(1000).startswith(b"HTTP/1.1 200")
    in_threads(8, lambda n: [work(server, n * 5 + i) for i in range(5)])
    assert server.metric("steadfast_s3_requests_in_flight") < 100, "they do not hold places of requests"
    # Who begins to read after all gets everything. The beginning came with the head, above.
    got = bytearray()
    while not got.endswith(data[-1000:]):
        got += raws[0].socket.recv(1 << 20)
    assert len(got) > 19_990_000 and data.endswith(got)
    for raw in raws:
        raw.close()


def test_uploads_that_stall(make_server):
    server = make_server(settings={"store.cache": "0 B", "log.write_budget": "16 MiB", **PATIENT})
    server.s3().create_bucket(Bucket="slow")
    sizes = [(6_000_000, 1_300_000), (6_000_000, 100_000), (6_000_000, 2_097_152), (120_000, 70_000)]
    raws = []
    for number in range(200):
        size, sent = sizes[number % 4]
        raws.append(begun(server, "PUT", f"/slow/stalled/{number}", size, b"x" * sent))
    in_threads(8, lambda n: [work(server, n * 5 + i) for i in range(5)])
    # They come to their end all the same.
    for number in range(8):
        size, sent = sizes[number % 4]
        raws[number].send(b"y" * (size - sent))
        assert raws[number].status() == 200
        got = server.request("GET", f"/slow/stalled/{number}")[2]
        assert got == b"x" * sent + b"y" * (size - sent)
    for raw in raws:
        raw.close()


@pytest.mark.parametrize("kind", ["uploads", "downloads"])
def test_places_are_not_held_by_those_who_wait(make_server, kind):
    server = make_server(settings={"limits.requests": "8", "limits.answers": "8", "limits.request_wait": "60s", **PATIENT})
    server.s3().create_bucket(Bucket="slow")
    assert server.request("PUT", "/slow/big", load.content(1, 20_000_000))[0] == 200
    if kind == "uploads":
        raws = [begun(server, "PUT", f"/slow/stalled/{n}", 6_000_000, b"x" * 1000) for n in range(12)]
    else:
        raws = [begun(server, "GET", "/slow/big") for _ in range(12)]
    in_threads(4, lambda n: work(server, n))
    assert server.request("GET", "/slow/big", timeout_s=60)[0] == 200
    wait.until(lambda: server.metric("steadfast_connections_relieved_total") > 0, what="the count of those who made room")
    for raw in raws:
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


def test_connections_that_say_nothing_leave_descriptors_for_the_rest(make_server):
    server = make_server(settings={"live.listen": "127.0.0.1:0", **PATIENT},
                         wrapper=("bash", "-c", 'ulimit -n 700; "$@"; exit $?', "server"))
    assert "fewer connections than configured" in server.log(), server.log()
    server.s3().create_bucket(Bucket="slow")
    idle = []
    for port in (server.s3_port, server.live_port):
        for _ in range(600):
            idle.append(socket.create_connection(("127.0.0.1", port), timeout=10))
    assert server.admin("/health/ready", timeout_s=60)[0] == 200
    # A new connection is served: one of the idle ones makes room.
    work(server, 1)

    def live():
        try:
            with socket.create_connection(("127.0.0.1", server.live_port), timeout=30) as connection:
                connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
                return connection.recv(100).startswith(b"HTTP/1.1 200")
        except OSError:
            return False

    wait.until(live, 60, "a connection that is let in", every_s=0.1)
    assert "Too many open files" not in server.log()
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
