"""Fixtures of the end-to-end tests."""

import itertools
import random
import shutil
import subprocess

import pytest

from harness import fuse
from harness.server import Server


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="run the slow tests too")
    parser.addoption("--rounds", type=int, default=3, help="rounds of kill -9")


# Has failed while other tests ran on the same two cores.
ALONE = ("test_live_python_sdk.py",)


def pytest_collection_modifyitems(config, items):
    for item in items:
        if item.path.name in ALONE:
            item.add_marker(pytest.mark.alone)
    if not config.getoption("--long"):
        skip = pytest.mark.skip(reason="slow: runs with --long")
        for item in items:
            if "slow" in item.keywords:
                item.add_marker(skip)


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """A server for tests that only talk to it."""
    with Server(tmp_path_factory.mktemp("shared") / "data", pool_size="4 GiB", extent_size="64 MiB",
                settings={"s3.domain": "s3.localhost"}) as server:
        yield server


@pytest.fixture(scope="session")
def s3(shared):
    return shared.s3()


_numbers = itertools.count(1)


@pytest.fixture
def bucket(s3):
    """A new bucket."""
    name = f"bucket-{next(_numbers)}"
    s3.create_bucket(Bucket=name)
    return name


@pytest.fixture
def certificate(tmp_path):
    """A certificate for 127.0.0.1 that vouches for itself, and its key."""
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    made = subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", key, "-out",
                           certificate, "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-addext",
                           "basicConstraints=critical,CA:FALSE"], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"openssl cannot make a certificate: {made.stderr}")
    return certificate, key


@pytest.fixture
def make_server(tmp_path):
    """Makes servers that are closed at the end, and whose data is removed."""
    servers, disks = [], []

    def make(name="data", disk=None, start=True, **options):
        server = Server((disk.mount if disk else tmp_path) / name, **options)
        # The log is kept off a disk that misbehaves.
        server.log_path = tmp_path / f"{name}.log"
        servers.append(server)
        disks.append(disk)
        return server.start() if start else server

    yield make
    for disk in filter(None, disks):
        disk.clear()
        disk.command(power_on=None)
    for server in servers:
        server.close()
        shutil.rmtree(server.data, ignore_errors=True)


@pytest.fixture
def make_fuse_disk(tmp_path):
    """Makes disks that misbehave on command."""
    reason = fuse.missing()
    if reason:
        pytest.skip(reason)
    disks = []

    def make(name="fuse"):
        disks.append(fuse.FuseDisk(tmp_path / name))
        return disks[-1]

    yield make
    for disk in disks:
        disk.close()
        shutil.rmtree(disk.backing, ignore_errors=True)


@pytest.fixture
def fuse_disk(make_fuse_disk):
    """A disk that misbehaves on command."""
    return make_fuse_disk()


@pytest.fixture
def rng(request):
    """Random numbers, the same in every run of a test."""
    return random.Random(request.node.name)
