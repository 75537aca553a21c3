"""A small NBD client, and `steadfast block serve` on disks of its own."""

import json
import pathlib
import re
import signal
import socket
import struct
import subprocess

from . import wait
from .server import binary

BLOCK = 4096
READ, WRITE, DISCONNECT, FLUSH, TRIM = range(5)
FUA = 1


class Client:
    """One connection. It waits for the answer of each request before it sends the next."""

    def __init__(self, path, name=b"disk"):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(str(path))
        magic, option, _flags = struct.unpack(">8s8sH", self._take(18))
        assert (magic, option) == (b"NBDMAGIC", b"IHAVEOPT")
        # Fixed newstyle without zeroes, then EXPORT_NAME.
        self.socket.sendall(struct.pack(">I", 3) + struct.pack(">8sII", b"IHAVEOPT", 1, len(name)) + name)
        self.size, self.flags = struct.unpack(">QH", self._take(10))
        self.cookie = 0

    def _take(self, count):
        parts = []
        while count:
            part = self.socket.recv(count)
            if not part:
                raise ConnectionError("the server has closed the connection")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def send(self, kind, offset=0, length=0, payload=b"", flags=0):
        self.cookie += 1
        header = struct.pack(">IHHQQI", 0x25609513, flags, kind, self.cookie, offset, length or len(payload))
        self.socket.sendall(header + payload)

    def answer(self, length=0):
        magic, error, _cookie = struct.unpack(">IIQ", self._take(16))
        assert magic == 0x67446698
        if error:
            raise OSError(error, "refused by the server")
        return self._take(length)

    def read(self, offset, length):
        self.send(READ, offset, length)
        return self.answer(length)

    def write(self, offset, data, flags=0):
        self.send(WRITE, offset, payload=data, flags=flags)
        self.answer()

    def flush(self):
        self.send(FLUSH)
        self.answer()

    def close(self):
        self.socket.close()


class BlockServer:
    """A `steadfast block serve` process. `start`, `kill` and `stop` may alternate."""

    def __init__(self, folder, durable=None, fast=1, size="64 MiB", wrapper=()):
        self.folder = pathlib.Path(folder)
        self.durable = durable or self.folder / "durable"
        self.fast = [self.folder / f"fast{n}" for n in range(fast)]
        self.size, self.wrapper = size, list(wrapper)
        self.socket = self.folder / "nbd"
        self.uri = f"nbd+unix:///disk?socket={self.socket}"
        self.log_path = self.folder / "log"
        self.process = None
        self.admin = None

    def disks(self, durable=None):
        flags = ["--durable", str(durable or self.durable)]
        for path in self.fast:
            flags += ["--fast", str(path)]
        return flags

    def command(self, *args):
        return subprocess.run([binary(), "block", *map(str, args)], capture_output=True, text=True, timeout=60, check=False)

    def format(self):
        done = self.command("format", *self.disks(), "--size", self.size)
        assert done.returncode == 0, done.stderr

    def start(self, *args):
        log = self.log_path.open("ab")
        begin = log.tell()
        command = [*self.wrapper, binary(), "block", "serve", *self.disks(), "--listen", f"unix:{self.socket}",
                   "--admin-listen", "127.0.0.1:0", *map(str, args)]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        log.close()

        def ready():
            assert self.process.poll() is None, self.log(begin)
            return " ready: " in self.log(begin)
        wait.until(ready, 60, "the block server")
        self.admin = re.search(r"admin=(http://\S+)", self.log(begin)).group(1)
        return self

    def status(self):
        shown = self.command("status", "--admin", self.admin, "--json")
        assert shown.returncode == 0, shown.stderr
        return json.loads(shown.stdout)[0]

    def wait_clean(self):
        wait.until(lambda: self.status()["superdisks"][0]["fast"]["state"] == "clean", 60, "a clean fast leg", 0.1)

    def log(self, begin=0):
        with self.log_path.open("rb") as file:
            file.seek(begin)
            return file.read().decode(errors="replace")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def close(self):
        if self.process and self.process.poll() is None:
            self.kill()
