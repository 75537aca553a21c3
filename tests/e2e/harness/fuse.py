"""A directory that fails on command (tests/fusedisk)."""

import json
import os
import pathlib
import select
import socket
import subprocess

from . import server


def missing():
    """The reason why this machine cannot mount a FUSE disk; None when it can."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "no /dev/fuse that can be opened here"
    return None


class FuseDisk:
    """Mounts on `directory`/disk, over `directory`/backing."""

    def __init__(self, directory):
        directory = pathlib.Path(directory)
        self.mount, self.backing = directory / "disk", directory / "backing"
        self.mount.mkdir(parents=True)
        self.backing.mkdir()
        control = directory / "control"
        self.process = subprocess.Popen([server.binary("steadfast-fusedisk"), self.backing, self.mount, control],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        ready, _, _ = select.select([self.process.stdout], [], [], 20)
        assert ready and self.process.stdout.readline() == "ready\n", "the FUSE disk did not start"
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(control))
        self.stream = self.socket.makefile("rw")

    def command(self, **command):
        self.stream.write(json.dumps(command) + "\n")
        self.stream.flush()
        answer = json.loads(self.stream.readline())
        assert "error" not in answer, answer
        return answer

    def fault(self, op, fault, path="pool", **more):
        """Arms a rule; returns its id."""
        return self.command(add={"op": op, "fault": fault, "path": path, **more})["id"]

    def remove(self, rule):
        self.command(remove=rule)

    def clear(self):
        self.command(clear=None)

    def counts(self):
        return self.command(counts=None)

    def hits(self, rule):
        return dict(self.counts()["hits"]).get(rule, 0)

    def close(self):
        self.clear()
        self.stream.close()
        self.socket.close()
        self.process.stdin.close()
        try:
            self.process.wait(20)
        finally:
            # A mount whose server has ended no longer looks like a mount.
            if str(self.mount) in pathlib.Path("/proc/mounts").read_text():
                subprocess.run(["fusermount3", "-uz", self.mount], check=False)
