"""System calls of the process: one flush for many PUTs, direct writes only, no answer before the
flush."""

import re
import shutil
import subprocess

import pytest

from harness.server import in_threads

pytestmark = pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")


@pytest.fixture
def traced(make_server, tmp_path):
    probe = subprocess.run(["strace", "-o", "/dev/null", "-e", "inject=fdatasync:delay_enter=1", "true"],
                           capture_output=True, check=False)
    if probe.returncode != 0:
        pytest.skip("strace is not allowed here, or cannot delay calls")
    trace = tmp_path / "trace"
    server = make_server(
        settings={"data.io": "threads"},
        # Slow flushes, so that many requests arrive during one on any machine.
        wrapper=["strace", "-f", "-y", "-ttt", "-s", "160", "-o", str(trace), "-e", "inject=fdatasync:delay_enter=30000", "-e",
                 "trace=openat,open,fdatasync,fsync,sync_file_range,pwrite64,pwritev,pwritev2,write,writev,sendto,sendmsg,recvfrom,read"])
    server.s3().create_bucket(Bucket="traced")
    return server, trace


CALL = re.compile(r"^(\d+)\s+([\d.]+) (?:<\.\.\. )?(\w+)")


def lines_after(trace, mark):
    text = trace.read_text(errors="replace")
    return text[text.index(mark):].splitlines()


def test_the_calls_of_concurrent_puts(traced):
    server, trace = traced
    connections = [server.connect() for _ in range(64)]
    in_threads(64, lambda n: server.request("PUT", f"/traced/warm/{n}", b"x", connection=connections[n]))
    before = server.metric("steadfast_disk_flushes_total")
    count = 64 * 4

    def put(thread):
        for number in range(4):
            status, _, text = server.request("PUT", f"/traced/{thread}/{number}", b"y" * 4096, connection=connections[thread])
            assert status == 200, text

    in_threads(64, put)
    flushes = server.metric("steadfast_disk_flushes_total") - before
    assert flushes <= count / 8, f"{flushes} flushes for {count} PUTs of 64 clients"
    assert server.stop() == 0

    text = trace.read_text(errors="replace")
    pool = re.compile(re.escape(str(server.data)) + r"/pool\b")
    opens = [line for line in text.splitlines() if "open" in line and pool.search(line) and "O_RDWR" in line]
    assert opens and all("O_DIRECT" in line for line in opens), opens
    traced_flushes = sum(1 for line in text.splitlines() if re.search(r"\b(fdatasync|fsync)\(\d+<[^>]*/pool>", line))
    assert traced_flushes < count / 2
    assert "O_DSYNC" not in text and "O_SYNC" not in text.replace("O_DSYNC", "")


def test_no_answer_before_its_flush(traced):
    """For single PUTs: between the request's arrival and its answer, a flush of the pool begins and
    ends."""
    server, trace = traced
    connection = server.connect()
    for number in range(20):
        assert server.request("PUT", f"/traced/one-{number:03}", b"z", connection=connection)[0] == 200
    assert server.stop() == 0
    lines = trace.read_text(errors="replace").splitlines()
    for number in range(20):
        arrived = next(at for at, line in enumerate(lines) if f"PUT /traced/one-{number:03}" in line)
        answered = next(at for at in range(arrived + 1, len(lines)) if "HTTP/1.1 200" in lines[at])
        between = lines[arrived:answered]
        # The frame; zeros ahead of the log are written at any time.
        wrote = [at for at, line in enumerate(between) if re.search(r'pwrite\w*\(\d+<[^>]*/pool>, "SFRM', line)]
        assert wrote, between
        flushed = [line for line in between[wrote[-1] + 1:] if re.search(r"(fdatasync|fsync)\b.*= 0\b", line)]
        assert flushed, f"PUT {number} was answered without a flush after its write:\n" + "\n".join(between)
