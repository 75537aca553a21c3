"""A pool that is full, on a real small file system, and by its own limit."""

import os
import subprocess

import pytest

from harness import load, wait


def fill(server, size=700_000, prefix="f"):
    """Puts until the server reports that it is full; returns the acknowledged objects."""
    acknowledged = {}
    for number in range(2_000):
        key = f"{prefix}/{number:04}"
        status, _, text = server.request("PUT", f"/space/{key}", load.content(key, size), timeout_s=60)
        if status == 200:
            acknowledged[key] = size
            continue
        assert status == 507 and b"<Code>InsufficientStorage</Code>" in text, (status, text)
        return acknowledged
    raise AssertionError("the pool was never full")


def check(server, acknowledged):
    for key, size in acknowledged.items():
        status, _, data = server.request("GET", f"/space/{key}")
        assert status == 200 and data == load.content(key, size), key


def full_and_back(server):
    server.s3().create_bucket(Bucket="space")
    acknowledged = fill(server)
    assert len(acknowledged) > 10
    check(server, acknowledged)
    assert server.admin("/health/live")[0] == 200
    # A small object is either refused as well, or stored whole.
    status, _, _ = server.request("PUT", "/space/small", b"x")
    assert status in (200, 507)
    # Deletes still work, and free space.
    gone = list(acknowledged)[::2]
    for key in gone:
        assert server.request("DELETE", f"/space/{key}")[0] == 204, key
        del acknowledged[key]
    more = {}

    def room():
        key = f"more/{len(more)}"
        status, _, _ = server.request("PUT", f"/space/{key}", load.content(key, 700_000), timeout_s=60)
        if status == 200:
            more[key] = 700_000
        return len(more) >= len(gone) // 3

    wait.until(room, 60, "free space after deletes", every_s=0.05)
    acknowledged |= more
    check(server, acknowledged)
    server.kill()
    server.start()
    check(server, acknowledged)
    for key in gone:
        assert server.request("GET", f"/space/{key}")[0] == 404
    assert server.stop() == 0


def test_a_pool_at_its_own_limit(make_server):
    full_and_back(make_server(pool_size="64 MiB", extent_size="2 MiB"))


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_a_small_file_system(make_server, tmp_path, kind):
    """The pool may grow without limit, but the file system is full."""
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    mount, image = tmp_path / "small", tmp_path / "image"
    mount.mkdir()
    if kind == "tmpfs":
        command = ["mount", "-t", "tmpfs", "-o", "size=96m", "none", mount]
    else:
        with open(image, "wb") as file:
            file.truncate(112 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
        command = ["mount", "-o", "loop", image, mount]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount {kind} here: {mounted.stderr.strip()}")
    try:
        server = make_server(name="small/data", start=False, pool_size=None, extent_size="2 MiB")
        server.log_path = tmp_path / "small.log"
        server.start()
        try:
            full_and_back(server)
        finally:
            server.close()
    finally:
        subprocess.run(["umount", mount], check=False)


def test_the_limit_on_the_size_of_files_ends_writes_and_not_the_server(make_server):
    """`ulimit -f`: by default the kernel would end the process with SIGXFSZ."""
    server = make_server(pool_size="128 MiB", extent_size="4 MiB", wrapper=("prlimit", f"--fsize={40 << 20}"))
    server.s3().create_bucket(Bucket="space")
    acknowledged, status = {}, 200
    for number in range(200):
        key = f"f/{number:04}"
        status, _, text = server.request("PUT", f"/space/{key}", load.content(key, 700_000), timeout_s=60)
        if status != 200:
            break
        acknowledged[key] = 700_000
    assert status in (500, 503, 507) and len(acknowledged) > 10, (status, text)
    assert server.process.poll() is None
    check(server, acknowledged)
    server.kill()
    server.wrapper = []
    server.start()
    check(server, acknowledged)
    status, _, text = server.request("PUT", "/space/more", load.content("more", 700_000), timeout_s=60)
    assert status == 200, text
