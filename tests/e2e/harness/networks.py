"""A network for each node, where root may create them: packets between two nodes can be dropped."""

import os
import shutil
import subprocess
import sys

# Connects to a port without a listener: refused at once if packets pass.
PROBE = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 1), timeout=2)
except ConnectionRefusedError:
    pass
"""


def run(*command):
    """Runs a command; raises with its error."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


def missing():
    """The reason why this machine cannot create them; None when it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ["ip", "iptables"]:
        if not shutil.which(tool):
            return f"no {tool} here"
    try:
        with Networks(["a", "b"], number=255) as networks:
            run(*networks.wrapper("a"), sys.executable, "-c", PROBE, networks.addresses["b"])
            networks.drop("a", "b")
    except OSError as error:
        return f"network namespaces do not work here: {error}"
    return None


class Networks:
    """A network namespace for each name, at one bridge. The tests are at the bridge too."""

    def __init__(self, names, number=None):
        number = os.getpid() % 250 if number is None else number
        self.prefix, self.bridge = f"sf{os.getpid()}", f"sfb{os.getpid()}"
        self.own = f"10.213.{number}.254"
        self.addresses = {name: f"10.213.{number}.{last}" for last, name in enumerate(names, 1)}

    def __enter__(self):
        try:
            run("ip", "link", "add", self.bridge, "type", "bridge")
            run("ip", "address", "add", f"{self.own}/24", "dev", self.bridge)
            run("ip", "link", "set", self.bridge, "up")
            for name, address in self.addresses.items():
                self.add(name, address)
        except OSError:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def add(self, name, address):
        namespace, outer = self.namespace(name), self.outer(address)
        run("ip", "netns", "add", namespace)
        run("ip", "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        run("ip", "link", "set", outer, "master", self.bridge, "up")
        run(*self.wrapper(name), "ip", "address", "add", f"{address}/24", "dev", "eth0")
        for device in ["lo", "eth0"]:
            run(*self.wrapper(name), "ip", "link", "set", device, "up")

    def namespace(self, name):
        return f"{self.prefix}-{name}"

    def outer(self, address):
        """The end of a link that is at the bridge."""
        return f"{self.prefix}v{address.rpartition('.')[2]}"

    def wrapper(self, name):
        """The words before a command that runs in the network of `name`."""
        return ["ip", "netns", "exec", self.namespace(name)]

    def drop(self, source, target):
        """Packets from `source` to `target` are lost from now on."""
        run(*self.wrapper(target), "iptables", "-A", "INPUT", "-s", self.addresses[source], "-j", "DROP")

    def heal(self):
        """No packets are lost from now on."""
        for name in self.addresses:
            run(*self.wrapper(name), "iptables", "-F", "INPUT")

    def close(self):
        """Removes everything, even after a failure."""
        for name, address in self.addresses.items():
            # The kernel deletes the links of a namespace later, and their names must be free now.
            subprocess.run(["ip", "link", "delete", self.outer(address)], capture_output=True, check=False)
            subprocess.run(["ip", "netns", "delete", self.namespace(name)], capture_output=True, check=False)
        subprocess.run(["ip", "link", "delete", self.bridge], capture_output=True, check=False)
