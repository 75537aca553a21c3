"""A disk that fails: errors of flushes, writes and reads, flipped bits, slowness, no space."""

import threading
import time

import pytest

from harness import load, wait


@pytest.fixture
def faulty(fuse_disk, make_server):
    # Without a read cache, so that reads reach the disk.
    server = make_server(disk=fuse_disk, pool_size="512 MiB", extent_size="8 MiB", settings={"store.cache": "0 B"})
    server.s3().create_bucket(Bucket="faults")
    return server, fuse_disk


def put(server, key, data=b"data"):
    return server.request("PUT", f"/faults/{key}", data, timeout_s=60)


def in_background(work):
    """Runs `work` in a thread; returns a function that waits for its result."""
    results = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()

    def result(deadline_s=60):
        thread.join(deadline_s)
        assert results, "no answer"
        return results[0]

    result.done = lambda: bool(results)
    return result


@pytest.mark.parametrize("operation", ["fsync", "write"])
def test_a_failed_flush_or_write_latches_the_log(faulty, operation):
    server, disk = faulty
    for number in range(20):
        assert put(server, f"before/{number}", b"%d" % number)[0] == 200
    big = load.content(1, 3_000_000)
    assert put(server, "before/big", big)[0] == 200
    assert server.admin("/health/ready")[0] == 200

    # All PUTs that wait for the failing flush: small ones in the frame, larger ones in chunks
    # outside it. A failed write of a chunk is retried elsewhere; a failed write of the frame
    # latches the log.
    large = operation == "fsync"
    contents = [load.content(number, 300_000) if large and number % 2 == 0 else b"%d" % number for number in range(8)]
    hold = disk.fault("fsync", "hold")
    pending = [in_background(lambda n=n: put(server, f"pending/{n}", contents[n])) for n in range(8)]
    wait.until(lambda: disk.counts()["held"] > 0, what="a flush that is held")
    fault = disk.fault(operation, "eio", times=1)
    disk.remove(hold)
    if operation == "fsync":
        # The held flush has passed its rules already: one more request meets the fault.
        pending.append(in_background(lambda: put(server, "pending/last")))
    wait.until(lambda: disk.hits(fault) or all(p.done() for p in pending), what="the fault")
    if not disk.hits(fault):
        pending.append(in_background(lambda: put(server, "pending/more")))
    answers = [p() for p in pending]
    assert disk.hits(fault) == 1
    failed = [(status, text) for status, _, text in answers if status != 200]
    assert failed, "no PUT failed"
    for status, text in failed:
        assert status >= 500, (status, text)
        # The outcome of those in the failed frame is unknown; the others did not reach the log.
        assert status == 503 or b"unknown" in text, (status, text)

    # Later ones are refused, and the server does not retry the disk.
    flushes = disk.counts()["fsyncs"]
    for number in range(3):
        status, _, text = put(server, f"later/{number}")
        assert status >= 500 and b"unknown" not in text, (status, text)
    assert server.request("DELETE", "/faults/before/0")[0] >= 500
    # Reads still work.
    for number in range(20):
        assert server.request("GET", f"/faults/before/{number}")[2] == b"%d" % number
    assert server.request("GET", "/faults/before/big")[2] == big
    assert len(server.s3().list_objects_v2(Bucket="faults", Prefix="before/")["Contents"]) == 21
    status, text = server.admin("/health/ready")
    assert status == 503, text
    assert server.admin("/health/live")[0] == 200
    wait.until(lambda: "restart" in server.log(), what="the remedy in the log")
    assert disk.counts()["fsyncs"] == flushes, "the server retried a failed flush"

    # After repair and restart, acknowledged objects are there; the others are whole or absent.
    server.terminate()
    server.process.wait(60)
    disk.clear()
    server.start()
    for number in range(20):
        assert server.request("GET", f"/faults/before/{number}")[2] == b"%d" % number
    assert server.request("GET", "/faults/before/big")[2] == big
    for number in range(8):
        status, _, data = server.request("GET", f"/faults/pending/{number}")
        answer, _, text = answers[number]
        whole = status == 200 and data == contents[number] and (answer == 200 or b"unknown" in text)
        assert whole or (status == 404 and answer != 200), (number, status, len(data), server.log())
    for number in range(3):
        assert server.request("GET", f"/faults/later/{number}")[0] == 404
    assert put(server, "after")[0] == 200
    assert server.admin("/health/ready")[0] == 200


def test_the_outcome_of_a_write_whose_flush_fails_is_unknown(faulty):
    server, disk = faulty
    assert put(server, "first")[0] == 200

    def quiet():
        # Zeros written ahead of the log must not meet the fault.
        before = disk.counts()
        time.sleep(0.5)
        return disk.counts()["fsyncs"] == before["fsyncs"] and disk.counts()["writes"] == before["writes"]

    wait.until(quiet, 60, "a disk with nothing to do")
    fault = disk.fault("fsync", "eio", times=1)
    status, _, text = put(server, "second")
    assert disk.hits(fault) == 1
    assert status >= 500 and b"unknown" in text, (status, text)
    assert server.request("GET", "/faults/second")[0] == 404


def test_no_answer_before_the_flush(faulty):
    server, disk = faulty
    assert put(server, "first")[0] == 200
    hold = disk.fault("fsync", "hold")
    answer = in_background(lambda: put(server, "held"))
    wait.until(lambda: disk.counts()["held"] > 0, what="a flush that is held")
    # Other requests are answered meanwhile; the one that waits for the flush is not.
    for _ in range(20):
        assert server.request("GET", "/faults/first")[2] == b"data"
    assert not answer.done()
    assert server.request("GET", "/faults/held")[0] == 404, "an object that is not durable is not visible"
    disk.remove(hold)
    assert answer()[0] == 200
    assert server.request("GET", "/faults/held")[2] == b"data"


def test_many_puts_share_a_flush(faulty):
    server, disk = faulty
    put(server, "warm")
    hold = disk.fault("fsync", "hold")
    first = in_background(lambda: put(server, "first"))
    wait.until(lambda: disk.counts()["held"] > 0, what="a flush that is held")
    before = disk.counts()["fsyncs"]
    answers = [in_background(lambda n=n: put(server, f"shared/{n}")) for n in range(60)]
    wait.until(lambda: server.metric("steadfast_s3_requests_in_flight") >= 61, what="60 PUTs that wait")
    disk.remove(hold)
    assert first()[0] == 200
    assert all(answer()[0] == 200 for answer in answers)
    flushes = disk.counts()["fsyncs"] - before
    assert flushes <= 6, f"{flushes} flushes for 60 concurrent PUTs"


def test_a_read_error_is_an_error(faulty):
    server, disk = faulty
    data = load.content(5, 2_000_000)
    assert put(server, "big", data)[0] == 200
    assert put(server, "small", b"tiny")[0] == 200
    server.stop()
    server.start()  # nothing is cached in memory now
    fault = disk.fault("read", "eio")
    status, _, got = read_all(server, "big")
    assert disk.hits(fault) > 0
    assert status >= 500 or got != data and data.startswith(got), "an error or a short body, never wrong bytes"
    status, _, got = read_all(server, "small")
    assert status >= 500, (status, got)
    assert server.admin("/health/live")[0] == 200
    disk.remove(fault)
    assert server.request("GET", "/faults/big")[2] == data, "the server may retry a read, unlike a write"
    assert server.request("GET", "/faults/small")[2] == b"tiny"
    assert put(server, "more")[0] == 200


def read_all(server, key):
    """A GET whose body may end early; returns (status, headers, received bytes)."""
    import http.client
    try:
        return server.request("GET", f"/faults/{key}")
    except http.client.IncompleteRead as broken:
        return 200, {}, broken.partial
    except (http.client.HTTPException, ConnectionError):
        return 200, {}, b""


def test_flipped_bits_are_never_served(faulty, rng):
    server, disk = faulty
    data = load.content(9, 400_000)
    assert put(server, "flipped", data)[0] == 200
    server.stop()
    pool = next(path for path in disk.backing.rglob("*") if path.is_file() and path.stat().st_size > 8 << 20)
    image = pool.read_bytes()
    server.start()
    struck = 0
    for _ in range(30):
        at = rng.randrange(len(data) - 32)
        offset = image.find(data[at:at + 32]) + rng.randrange(32)
        assert offset >= 32
        fault = disk.fault("read", "flip", offset=offset, length=1, mask=1 << rng.randrange(8))
        status, _, got = read_all(server, "flipped")
        hit = disk.hits(fault)
        disk.remove(fault)
        struck += hit
        assert got == data or status >= 500 or (len(got) < len(data) and data.startswith(got)), "wrong bytes"
        if hit:
            assert got != data, "the flip was not noticed, or not read"
    assert struck >= 10, f"only {struck} flips were read"
    # The disk works again, and the object is intact.
    assert server.request("GET", "/faults/flipped")[2] == data


def test_no_space_left(faulty):
    """The file system below the pool is full although the pool might grow."""
    server, disk = faulty
    fault = disk.fault("allocate", "enospc")
    written, status = {}, 200
    for number in range(400):
        data = load.content(number, 1_000_000)
        status, _, text = put(server, f"{number:03}", data)
        if status != 200:
            break
        written[f"{number:03}"] = data
    assert status == 507 or b"Full" in text or b"Storage" in text, (status, text)
    for key, data in list(written.items())[:3]:
        assert server.request("GET", f"/faults/{key}")[2] == data
    assert server.admin("/health/live")[0] == 200
    disk.remove(fault)
    wait.until(lambda: put(server, "again", b"room")[0] == 200, 30, "free space")
    for key, data in written.items():
        assert server.request("GET", f"/faults/{key}")[2] == data


def test_a_slow_disk_slows_only_writers(faulty):
    server, disk = faulty
    assert put(server, "small")[0] == 200
    disk.command(bandwidth=4_000_000)
    hold = disk.fault("write", "hold")
    uploads = [in_background(lambda n=n: put(server, f"slow/{n}", b"x" * 1_000_000)) for n in range(8)]
    wait.until(lambda: disk.hits(hold) > 0, what="a write that is held")
    for _ in range(4):
        assert server.request("GET", "/faults/small", timeout_s=10)[2] == b"data"
    assert not any(upload.done() for upload in uploads)
    disk.remove(hold)
    while not all(upload.done() for upload in uploads):
        assert server.request("GET", "/faults/small", timeout_s=10)[2] == b"data"
    assert {upload()[0] for upload in uploads} <= {200, 503}
