"""Fixtures of the end-to-end tests."""

import contextlib
import itertools
import random
import shutil
import subprocess

import pytest

from harness import fuse, networks
from harness.events import Hook
from harness.origin import Origin
from harness.pair import POOL, Pair
from harness.server import Server


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="run the slow tests too")
    parser.addoption("--rounds", type=int, default=3, help="rounds of kill -9")


# This file has failed while other tests ran on the same two cores.
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
    """A self-signed certificate for 127.0.0.1, and its key."""
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    made = subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", key, "-out",
                           certificate, "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-addext",
                           "basicConstraints=critical,CA:FALSE"], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"openssl cannot make a certificate: {made.stderr}")
    return certificate, key


@pytest.fixture
def make_server(tmp_path):
    """Makes servers. After the test, they are closed and their data is removed."""
    servers, disks = [], []

    def make(name="data", disk=None, start=True, **options):
        server = Server((disk.mount if disk else tmp_path) / name, **options)
        # The log must not be on a failing disk.
        server.log_path = tmp_path / f"{name}.log"
        servers.append(server)
        disks.append(disk)
        return server.start() if start else server

    yield make
    for disk in filter(None, disks):
        disk.clear()
        disk.command(power_on=None)
    # Those that use others were made later: a stop waits for the store of an archive.
    for server in reversed(servers):
        server.close()
        shutil.rmtree(server.data, ignore_errors=True)


@pytest.fixture
def origin():
    """An HTTP origin for edge buckets."""
    found = Origin()
    yield found
    found.close()


@pytest.fixture
def make_edge(make_server, origin):
    """Makes servers whose bucket "media" has that origin."""

    def make(settings=None, pool_size="2 GiB", **keys):
        return make_server(pool_size=pool_size, settings={"edge.buckets": origin.setting(**keys), **(settings or {})})

    return make


@pytest.fixture
def make_fuse_disk(tmp_path):
    """Makes disks that fail on command."""
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
    """A disk that fails on command."""
    return make_fuse_disk()


@pytest.fixture
def make_networks():
    """Makes a network of its own for each name."""
    with contextlib.ExitStack() as stack:
        def make(*names):
            reason = networks.missing()
            if reason:
                pytest.skip(reason)
            return stack.enter_context(networks.Networks(names))

        yield make


@pytest.fixture
def rng(request):
    """Random numbers, the same in every run of a test."""
    return random.Random(request.node.name)


@pytest.fixture
def make_pair(make_fuse_disk, make_server, tmp_path):
    """Makes a server on a super-disk; `fuse` names the legs that are on FUSE disks."""
    pairs = []

    def make(fuse=(), members=1, start=True, settings=None, **options):
        durable_disk = make_fuse_disk("durable") if "durable" in fuse else None
        fast_disk = make_fuse_disk("fast") if "fast" in fuse else None
        durable = (durable_disk.mount if durable_disk else tmp_path) / "durable.pool"
        fast = [(fast_disk.mount if fast_disk else tmp_path) / f"fast{n}" for n in range(members)]
        settings = {"store.cache": "0 B", "data.pool": durable, "superdisk.fast": ",".join(map(str, fast)),
                    **(settings or {})}
        options = {"pool_size": f"{POOL} B", "extent_size": "4 MiB", **options}
        server = make_server(start=False, settings=settings, **options)
        pair = Pair(server, durable, fast, durable_disk, fast_disk)
        pairs.append(pair)
        if start:
            server.start()
            server.s3().create_bucket(Bucket="pair")
            pair.wait_state()
        return pair

    yield make
    for pair in pairs:
        for disk in filter(None, (pair.durable_disk, pair.fast_disk)):
            disk.clear()
        pair.server.close()
        for path in [pair.durable, *pair.fast]:
            pair.backing(path).unlink(missing_ok=True)


@pytest.fixture
def hook():
    """A webhook that records its requests."""
    found = Hook()
    yield found
    found.close()
