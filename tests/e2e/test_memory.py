"""Memory is bounded by configuration, not by clients."""

import base64
import hashlib
import hmac
import zlib

import pytest

from harness import sign
from harness.raw import Raw
from harness.server import in_threads


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_hundred_uploads_onto_a_slow_disk(fuse_disk, make_server):
    budget_mib = 64
    server = make_server(disk=fuse_disk, pool_size="2 GiB", settings={
        "log.write_budget": f"{budget_mib} MiB", "data.write_buffers": "32 MiB", "data.read_buffers": "32 MiB"})
    server.s3().create_bucket(Bucket="memory")
    assert server.request("PUT", "/memory/small", b"data")[0] == 200
    base_kib = server.memory_kib("VmRSS")
    fuse_disk.command(bandwidth=5_000_000)
    done, answered = [], 0

    def upload(number):
        if number == 200:
            return read_meanwhile()
        # Like an SDK, it retries after SlowDown.
        for _ in range(60):
            status, _, text = server.request("PUT", f"/memory/{number}", b"m" * (2 << 20), timeout_s=300)
            if status != 503:
                break
        assert status == 200, (status, text)
        done.append(number)

    def read_meanwhile():
        nonlocal answered
        while len(done) < 200:
            assert server.request("GET", "/memory/small", timeout_s=10)[2] == b"data"
            answered += 1

    in_threads(201, upload)
    peak_mib = server.memory_kib("VmHWM") / 1024
    print(f"peak {peak_mib:.0f} MiB, at rest {base_kib / 1024:.0f} MiB, budget {budget_mib} MiB, {answered} reads meanwhile")
    assert answered > 50
    assert peak_mib <= budget_mib + 64
    assert server.s3().list_objects_v2(Bucket="memory")["KeyCount"] == 201


@pytest.mark.parametrize("mib", [160, pytest.param(512, marks=pytest.mark.slow)])
@pytest.mark.parametrize("signed", [False, True], ids=["unsigned", "signed"])
@pytest.mark.timeout(600)
def test_one_chunk_as_large_as_the_object(make_server, signed, mib):
    """SDKs send an object as a single aws-chunk; the server must not buffer it whole."""
    budget_mib = 16
    server = make_server(pool_size="2 GiB", settings={
        "log.write_budget": f"{budget_mib} MiB", "data.write_buffers": "32 MiB", "data.read_buffers": "32 MiB",
        "store.cache": "16 MiB"})
    server.s3().create_bucket(Bucket="memory")
    assert server.request("PUT", "/memory/warm", bytes(1 << 20))[0] == 200
    base_kib = server.memory_kib("VmRSS")

    piece, size = bytes(range(256)) * 4096, mib << 20
    crc, sha256 = 0, hashlib.sha256()
    for _ in range(mib):
        crc = zlib.crc32(piece, crc)
        sha256.update(piece)
    trailer = ("x-amz-checksum-crc32", base64.b64encode(crc.to_bytes(4, "big")).decode())
    date, key = sign.amz_date(), None
    payload = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER" if signed else "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
    headers = sign.headers_for("PUT", server.host, "/memory/k", payload_hash=payload, date=date, headers={
        "content-encoding": "aws-chunked", "x-amz-decoded-content-length": str(size), "x-amz-trailer": trailer[0]})

    def chained(previous, kind, *hashes):
        to_sign = "\n".join([kind, date, sign.scope(date), previous, *hashes])
        return hmac.new(sign.signing_key(date), to_sign.encode(), hashlib.sha256).hexdigest()

    first = last = end = ""
    if signed:
        seed = headers["authorization"].rpartition("Signature=")[2]
        key = chained(seed, "AWS4-HMAC-SHA256-PAYLOAD", sign.EMPTY_SHA256, sha256.hexdigest())
        first = f";chunk-signature={key}"
        key = chained(key, "AWS4-HMAC-SHA256-PAYLOAD", sign.EMPTY_SHA256, sign.EMPTY_SHA256)
        last = f";chunk-signature={key}"
        line = hashlib.sha256(f"{trailer[0]}:{trailer[1]}\n".encode()).hexdigest()
        end = f"x-amz-trailer-signature:{chained(key, 'AWS4-HMAC-SHA256-TRAILER', line)}\r\n"
    head = f"{size:x}{first}\r\n".encode()
    tail = f"\r\n0{last}\r\n{trailer[0]}:{trailer[1]}\r\n{end}\r\n".encode()

    raw = Raw(server, timeout_s=300)
    raw.request_head("PUT", "/memory/k", {**headers, "content-length": str(len(head) + size + len(tail))})
    raw.send(head)
    for _ in range(mib):
        raw.send(piece)
    raw.send(tail)
    answer = raw.receive()
    raw.close()
    assert answer.startswith(b"HTTP/1.1 200"), answer
    peak_mib = server.memory_kib("VmHWM") / 1024
    print(f"peak {peak_mib:.0f} MiB, before {base_kib / 1024:.0f} MiB, budget {budget_mib} MiB, chunk {mib} MiB")
    assert peak_mib <= base_kib / 1024 + budget_mib + 48
    listed = server.s3().head_object(Bucket="memory", Key="k", ChecksumMode="ENABLED")
    assert (listed["ContentLength"], listed["ChecksumCRC32"]) == (size, trailer[1])
