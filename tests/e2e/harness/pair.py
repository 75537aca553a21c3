"""A server on a super-disk, and objects on it."""

from . import load, wait
from .server import in_threads

MIB = 1 << 20
POOL = 192 * MIB


class Pair:
    """A server on a super-disk: its legs as files, and the FUSE disks below them, if any."""

    def __init__(self, server, durable, fast, durable_disk, fast_disk):
        self.server, self.durable, self.fast = server, durable, fast
        self.durable_disk, self.fast_disk = durable_disk, fast_disk

    def backing(self, path):
        """The file below a FUSE disk."""
        for disk in filter(None, (self.durable_disk, self.fast_disk)):
            if path.is_relative_to(disk.mount):
                return disk.backing / path.relative_to(disk.mount)
        return path

    def state(self):
        return self.server.status()["superdisks"][0]["fast"]["state"]

    def wait_state(self, state="clean", deadline_s=60):
        wait.until(lambda: self.state() == state, deadline_s, f"a fast leg that is {state}; it is {self.state()}", 0.05)

    def by_leg(self, name, leg):
        return self.server.metrics()[f'steadfast_superdisk_{name}_total{{disk="{self.durable}",leg="{leg}"}}']

    def healed(self, leg):
        return self.by_leg("healed", leg)


def put(server, key, data):
    status, _, text = server.request("PUT", f"/pair/{key}", data, timeout_s=60)
    assert status == 200, (status, text)


def get(server, key):
    status, _, data = server.request("GET", f"/pair/{key}", timeout_s=60)
    assert status == 200, (key, status, data[:300])
    return data


def fill(server, count, size, first=0):
    """Writes objects of one chunk each; returns them as a dictionary."""
    objects = {f"o{number:04}": load.content(number, size) for number in range(first, first + count)}

    def work(part):
        for key in sorted(objects)[part::4]:
            put(server, key, objects[key])

    in_threads(4, work)
    return objects


def check_all(server, objects, threads=4):
    """Checks that every object is intact."""
    def work(part):
        for key in sorted(objects)[part::threads]:
            assert get(server, key) == objects[key], f"{key}: wrong bytes"

    in_threads(threads, work)


def verify(server, *args):
    done = server.command("verify", "--data", str(server.data), *args)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
