"""Writers that record acknowledged writes, and a check of a server against their records.

Each key belongs to one writer, which has one request at a time in flight. So after a crash a key
must hold the last acknowledged value, or the whole result of the one unanswered request.
"""

import hashlib
import random
import threading

from . import server

#: What a key holds when it does not exist.
ABSENT = None


def content(seed, size):
    """Bytes generated from a seed, so that a record needs only the seed."""
    return random.Random(seed).randbytes(size)


def digest(data):
    return hashlib.blake2b(data, digest_size=16).digest()


class Writer:
    """One client that puts, replaces and deletes its own keys until it is stopped or the server is
    gone."""

    def __init__(self, number, bucket, seed=0, sizes=(0, 100, 4_000, 70_000, 1_500_000, 3_000_000), keys=40):
        self.bucket, self.prefix, self.sizes, self.key_count = bucket, f"w{number:02}/", sizes, keys
        self.random = random.Random(seed * 1000 + number)
        self.acknowledged = {}  # key -> digest or ABSENT
        self.unknown = {}  # key -> what else it may hold
        self.touched = set()
        self.attempts = {}  # key -> all that it was ever to hold, in order
        self.count = 0
        self.refused = {}
        self.stopping = threading.Event()

    def run(self, target, operations=None):
        """Sends requests until the server stops answering, `stop` is set, or `operations` are done.
        """
        connection = target.connect(timeout_s=60)
        try:
            while not self.stopping.is_set() and (operations is None or operations > 0):
                if operations is not None:
                    operations -= 1
                self.step(target, connection)
        except (OSError, server.http.client.HTTPException):
            return
        finally:
            connection.close()

    def step(self, target, connection):
        key = f"{self.prefix}{self.random.randrange(self.key_count)}"
        if self.random.random() < 0.2:
            method, data, after = "DELETE", None, ABSENT
        else:
            # Most objects are small, as in production.
            size = self.sizes[min(self.random.randrange(len(self.sizes)), self.random.randrange(len(self.sizes)))]
            method, data = "PUT", content(self.random.random(), size)
            after = digest(data)
        self.touched.add(key)
        self.unknown.setdefault(key, []).append(after)
        self.attempts.setdefault(key, []).append(after)
        status, _, text = target.request(method, f"/{self.bucket}/{key}", data, connection=connection)
        if status in (200, 204):
            self.acknowledged[key] = after
            self.unknown[key] = []
            self.count += 1
        elif status == 503 and b"<Code>SlowDown</Code>" in text or status == 507 or b"Full" in text:
            # Refused: the server accepted nothing.
            self.unknown[key].pop()
            self.refused[status] = self.refused.get(status, 0) + 1
        else:
            self.refused[status] = self.refused.get(status, 0) + 1

    def may_hold(self, key):
        return [self.acknowledged.get(key, ABSENT), *self.unknown.get(key, [])]

    def moment(self):
        """The record of this moment: a copy made from now on is checked against it, see `allowed`.
        """
        # In this order: a write acknowledged in between is in both.
        marks = {key: len(tried) for key, tried in list(self.attempts.items())}
        return marks, dict(self.acknowledged)

    def allowed(self, moment, key):
        """The values that a copy made after `moment` may hold for a key: the one acknowledged then,
        and those tried since."""
        marks, acknowledged = moment
        # The last attempt before the moment may have been in flight.
        return [acknowledged.get(key, ABSENT), *self.attempts.get(key, [])[max(0, marks.get(key, 0) - 1):]]

    def settle(self, key, found):
        """Records the value read after a crash as the value of the key."""
        self.acknowledged[key] = found
        self.unknown[key] = []


def check(target, writers, every_key=False):
    """Reads back the touched keys (or all) and compares; returns the number of keys read."""
    wrong = []

    def read(number):
        writer, connection = writers[number], target.connect(timeout_s=60)
        keys = sorted(writer.acknowledged.keys() | writer.unknown.keys()) if every_key else sorted(writer.touched)
        for key in keys:
            status, _, data = target.request("GET", f"/{writer.bucket}/{key}", connection=connection)
            found = digest(data) if status == 200 else ABSENT
            if status not in (200, 404) or found not in writer.may_hold(key):
                wrong.append(f"{key}: status {status}, {len(data)} bytes; acknowledged: "
                             f"{writer.acknowledged.get(key) is not ABSENT}; in flight: {len(writer.unknown.get(key, []))}")
            writer.settle(key, found)
        writer.touched.clear()
        connection.close()
        return len(keys)

    counts = server.in_threads(len(writers), read)
    assert not wrong, f"{len(wrong)} keys are not what was acknowledged:\n" + "\n".join(wrong[:20])
    return sum(counts)


def check_listing(target, writers):
    """Checks that the listing names exactly the keys that the reads found."""
    expected = sorted(key for writer in writers for key, found in writer.acknowledged.items() if found is not ABSENT)
    s3 = target.s3()
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=writers[0].bucket)
    found = [entry["Key"] for page in pages for entry in page.get("Contents", []) if entry["Key"].startswith("w")]
    assert found == expected


def start(writers, target):
    """Starts the writers; returns their threads."""
    threads = []
    for writer in writers:
        writer.stopping.clear()
        threads.append(threading.Thread(target=writer.run, args=(target,), daemon=True))
        threads[-1].start()
    return threads


def stop(writers, threads):
    for writer in writers:
        writer.stopping.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
