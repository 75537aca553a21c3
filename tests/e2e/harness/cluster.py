"""Servers that are the nodes of one cluster."""

import json

from . import wait
from .live import CONFIG
from .server import free_port


class Nodes:
    """Servers that are nodes of one cluster, by name. `networks`: each has a network of its own. `standbys`: homes with
    a second address."""

    def __init__(self, make_server, names="ab", homes="ab", networks=None, standbys=()):
        self.make_server, self.networks = make_server, networks
        self.homes = ",".join(homes)
        self.ports = {name: free_port() for name in names}
        self.standby_ports = {name: free_port() for name in standbys}
        self.servers = {}

    def address(self, name):
        return self.networks.addresses[name] if self.networks else "127.0.0.1"

    def nodes(self):
        """The setting, as text."""
        if not self.standby_ports:
            return ",".join(f"{node}={self.address(node)}:{port}" for node, port in self.ports.items())
        tables = []
        for node, port in self.ports.items():
            own, other = self.address(node), self.standby_ports.get(node)
            standby = f', standby = "{own}:{other}"' if other else ""
            tables.append(f'{{ name = "{node}", address = "{own}:{port}"{standby} }}')
        return f"[{', '.join(tables)}]"

    def settings(self, name, port=None, **settings):
        """The settings of a process of a node; `settings` without `cluster.`."""
        own = {"name": name, "nodes": self.nodes(), "homes": self.homes, "secret": "0123456789abcdef" * 2,
               "listen": f"{self.address(name)}:{port or self.ports[name]}", **settings}
        return {f"cluster.{key}": value for key, value in own.items()} | {"live.listen": f"{self.address(name)}:0"}

    def make(self, name, start=True, args=(), **settings):
        """A node; `settings` without `cluster.`."""
        own = self.settings(name, **settings)
        options = {"address": self.address(name), "wrapper": self.networks.wrapper(name)} if self.networks else {}
        self.servers[name] = self.make_server(name=name, start=start, settings=own, args=args, **options)
        return self.servers[name]

    def make_live(self, directory, config=None, **settings):
        """All nodes, each with a live port, once they are connected; `settings` without `cluster.`."""
        file = directory / "live.json"
        file.write_text(json.dumps(config or CONFIG))
        for name in self.ports:
            self.make(name, args=["--live-listen", f"{self.address(name)}:0", "--live-config", str(file)], **settings)
        self.connected()
        return [self.servers[name] for name in self.ports]

    def links(self, name):
        """The states of the links of a node, by the name of the other node."""
        nodes = self.servers[name].status()["cluster"]["nodes"]
        assert [node["name"] for node in nodes if node["link"] is None] == [name]
        return {node["name"]: node["link"] for node in nodes if node["link"]}

    def link(self, name):
        """The state of the first other node's link, as `name` shows it."""
        return next(iter(self.links(name).values()))

    def is_up(self, *names):
        links = [link for name in names for link in self.links(name).values()]
        return all(link["state"] == "up" and link["round_trip_us"] is not None for link in links)

    def connected(self, *names):
        wait.until(lambda: self.is_up(*(names or self.ports)), what="the links")
