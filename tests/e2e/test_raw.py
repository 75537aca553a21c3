"""Misbehaving clients: malformed requests, slow, stalled and vanished clients, too many at once."""

import base64
import hashlib
import random
import threading

import pytest

from harness import load, sign, wait
from harness.raw import Raw
from harness.server import in_threads


@pytest.fixture
def impatient(make_server):
    """A server with short timeouts."""
    server = make_server(settings={"limits.header_timeout": "1s", "limits.stall_timeout": "2s"})
    server.s3().create_bucket(Bucket="raw")
    return server


def pending(server):
    """Bytes of the budget for data on its way to disk that requests hold."""
    return server.metric("steadfast_log_pending_bytes")


@pytest.mark.parametrize("text", [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
    b"\x00" * 100, b"PUT /b/k HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
    b"PUT /b/k HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
    b"PUT /b/k HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"GET /%zz HTTP/1.1\r\nhost: x\r\n\r\n", b"GET /b/%ff%fe HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: x\r\nauthorization: AWS4-HMAC-SHA256 nonsense\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: x\r\nx-amz-date: yesterday\r\nauthorization: AWS4-HMAC-SHA256 Credential=a/b/c/d/e, "
    b"SignedHeaders=host, Signature=0\r\n\r\n",
    b"GET /?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Expires=99999999999 HTTP/1.1\r\nhost: x\r\n\r\n",
], ids=range(14))
def test_malformed_requests(impatient, text):
    raw = Raw(impatient).send(text)
    raw.socket.shutdown(1)
    answer = raw.closed()
    raw.close()
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4"), answer[:200]
    assert impatient.admin("/health/live")[0] == 200
    assert impatient.request("GET", "/")[0] == 200


def test_random_bytes_in_requests(impatient):
    """Valid requests with a few random bytes changed."""
    rng = random.Random(3)
    headers = sign.headers_for("PUT", impatient.host, "/raw/k", headers={"content-length": "4"})
    lines = ["PUT /raw/k HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items()), "", "data"]
    good = "\r\n".join(lines).encode()
    for _ in range(150):
        bad = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        raw = Raw(impatient, timeout_s=20).send(bytes(bad))
        raw.socket.shutdown(1)
        answer = raw.closed()
        raw.close()
        # An unknown method or sub-resource is not implemented.
        known = answer[:10] in (b"HTTP/1.1 4", b"HTTP/1.1 2") or answer.startswith(b"HTTP/1.1 501 ")
        assert answer == b"" or known, answer[:200]
    status, _, data = impatient.request("GET", "/raw/k")
    assert status == 404 or len(data) == 4
    assert impatient.request("PUT", "/raw/fine", b"x")[0] == 200


def test_malformed_bodies(impatient):
    for path, query in (("/raw", {"delete": ""}), ("/raw/k", {"uploadId": "x"})):
        for body in (b"", b"<", b"<Delete>", b"<Delete></Complete>", b"\xff\xfe", b"<a/>" * 1000, b"[1]",
                     b'<!DOCTYPE a [<!ENTITY b "c">]><Delete><Object><Key>&b;</Key></Object></Delete>'):
            md5 = base64.b64encode(hashlib.md5(body).digest()).decode()
            status, _, text = impatient.request("POST", path, body, {"content-md5": md5}, query)
            assert 400 <= status < 500, (path, body, status, text)


def test_slow_headers_are_cut_off(impatient):
    raws = [Raw(impatient).send(b"GET / HTTP/1.1\r\nhost: ") for _ in range(20)]
    assert impatient.request("GET", "/")[0] == 200
    for raw in raws:
        answer = raw.closed()
        assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
        raw.close()


def test_idle_connections_are_closed(impatient):
    raw = Raw(impatient)
    assert raw.closed() == b""
    raw.close()


@pytest.mark.parametrize("sent", [0, 100, 70_000, 3_000_000])
def test_a_body_that_stalls(impatient, sent):
    size = 6_000_000
    raw = Raw(impatient)
    raw.request_head("PUT", "/raw/stalled", sign.headers_for(
        "PUT", impatient.host, "/raw/stalled", headers={"content-length": str(size)}))
    raw.send(b"x" * sent)
    answer = raw.closed()
    assert answer == b"" or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 100")), answer[:300]
    raw.close()
    wait.until(lambda: pending(impatient) == 0, what="the release of its budget")
    assert impatient.request("GET", "/raw/stalled")[0] == 404


@pytest.mark.parametrize("sent", [0, 70_000, 5_999_999])
def test_a_client_that_vanishes(impatient, sent):
    size = 6_000_000
    raws = []
    for number in range(5):
        path = f"/raw/vanished/{number}"
        raw = Raw(impatient)
        raw.request_head("PUT", path, sign.headers_for("PUT", impatient.host, path, headers={"content-length": str(size)}))
        raws.append(raw.send(b"x" * sent))
    for raw in raws:
        raw.reset()
    wait.until(lambda: pending(impatient) == 0, what="the release of their budget")
    for number in range(5):
        assert impatient.request("GET", f"/raw/vanished/{number}")[0] == 404
    assert impatient.request("PUT", "/raw/after", b"x")[0] == 200


def test_a_reader_that_stalls(impatient):
    data = load.content(1, 30_000_000)
    assert impatient.request("PUT", "/raw/big", data)[0] == 200
    raws = []
    for _ in range(10):
        raw = Raw(impatient)
        raw.request_head("GET", "/raw/big", sign.headers_for("GET", impatient.host, "/raw/big"))
        assert raw.socket.recv(100)
        raws.append(raw)
    assert impatient.request("GET", "/raw/big")[2] == data
    # They are cut off: no wait for them exceeds the stall timeout.
    wait.until(lambda: impatient.metric("steadfast_connections_open") <= 1, 30, "stalled readers that are cut off")
    for raw in raws:
        raw.close()


def test_expect_continue(impatient):
    """The server requests the body only if it will serve the request."""
    headers = sign.headers_for("PUT", impatient.host, "/raw/expect", headers={"content-length": "4"})
    raw = Raw(impatient)
    raw.request_head("PUT", "/raw/expect", {**headers, "expect": "100-continue"})
    assert raw.socket.recv(100).startswith(b"HTTP/1.1 100")
    raw.send(b"data")
    assert raw.status() == 200
    raw.close()
    raw = Raw(impatient)
    raw.request_head("PUT", "/raw/expect", {**headers, "authorization": headers["authorization"][:-4] + "0000",
                                            "expect": "100-continue"})
    refused = raw.socket.recv(4000)
    assert b"403" in refused
    # The client never sent the body, so the connection is unusable. The answer closes it, lest the
    # client send its next request here.
    assert b"connection: close" in refused.lower()
    raw.close()


def test_pipelined_requests_are_answered_in_order(impatient):
    for number in range(5):
        impatient.request("PUT", f"/raw/p{number}", b"%d" % number)
    raw = Raw(impatient)
    for number in range(5):
        raw.request_head("GET", f"/raw/p{number}", sign.headers_for("GET", impatient.host, f"/raw/p{number}"))
    got = b""
    while got.count(b"HTTP/1.1 200") < 5 or not got.endswith(b"4"):
        more = raw.socket.recv(65536)
        assert more, got
        got += more
    assert [part.rpartition(b"\r\n\r\n")[2][:1] for part in got.split(b"HTTP/1.1 ")[1:]] == [b"0", b"1", b"2", b"3", b"4"]
    raw.close()


def test_slow_down_at_the_bound(fuse_disk, make_server):
    """When the budget is full, writers get SlowDown, and all other requests are served."""
    server = make_server(disk=fuse_disk, settings={"log.write_budget": "16 MiB", "store.write_wait": "500ms"})
    server.s3().create_bucket(Bucket="raw")
    assert server.request("PUT", "/raw/small", b"data")[0] == 200
    # Read it into the cache: the kernel may make reads of a FUSE file wait for its writes, which
    # will hang.
    assert server.request("GET", "/raw/small")[2] == b"data"
    hold = fuse_disk.fault("write", "hold")

    def put(number):
        return server.request("PUT", f"/raw/{number}", b"x" * 2_000_000, timeout_s=60)

    answers = []
    threads = [threading.Thread(target=lambda n=n: answers.append(put(n))) for n in range(40)]
    for thread in threads:
        thread.start()
    wait.until(lambda: len(answers) >= 20, what="refusals")
    for status, headers, text in list(answers):
        assert status == 503 and b"<Code>SlowDown</Code>" in text, (status, text)
        assert int(headers["retry-after"]) >= 1
    assert server.request("GET", "/raw/small")[2] == b"data"
    assert server.s3().list_objects_v2(Bucket="raw")["KeyCount"] == 1
    fuse_disk.remove(hold)
    for thread in threads:
        thread.join()
    # Writers that held memory got the error of a hung disk, if the server detected it in time.
    assert len(answers) == 40 and {status for status, _, _ in answers} <= {200, 503}
    assert any(b"at the bound" in text for _, _, text in answers)
    wait.until(lambda: pending(server) == 0, what="the budget")
    there = server.s3().list_objects_v2(Bucket="raw")["Contents"]
    assert all(found["Size"] == 2_000_000 for found in there if found["Key"] != "small")
    assert len(there) >= 1 + sum(status == 200 for status, _, _ in answers)
    # A client that backs off succeeds.
    s3 = server.s3(attempts=5)
    in_threads(8, lambda n: s3.put_object(Bucket="raw", Key=f"again/{n}", Body=b"x" * 2_000_000))
