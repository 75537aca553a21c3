"""The real binary on a directory of its own."""

import http.client
import itertools
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import threading

import boto3
import botocore.config

from . import sign, wait

ROOT = pathlib.Path(__file__).resolve().parents[3]


def binary(name="steadfast"):
    """The path of a binary: from the environment (as the test command sets it), else of a local
    build."""
    if name == "steadfast" and "STEADFAST_BIN" in os.environ:
        return os.environ["STEADFAST_BIN"]
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    for profile in (os.environ.get("STEADFAST_PROFILE", "debug"), "release"):
        path = target / profile / name
        if path.exists():
            return str(path)
    raise FileNotFoundError(f"{name} is not built: run `cargo build --workspace` first")


# Each process of tests has ports of its own and takes them in turn: a port that it hands out has no
# listener yet, so no other process can see that it is taken.
FIRST_PORT, PORTS = 20_000 + os.getpid() % 60 * 200, 200
_taken = itertools.count()


def is_free(port):
    with socket.socket() as one:
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port(in_a_row=1):
    """A free port, the first of so many `in_a_row`. They are below the ports that the kernel gives
    to connections, so that they stay free while a server restarts."""
    while True:
        ports = [FIRST_PORT + next(_taken) % PORTS for _ in range(in_a_row)]
        if ports[-1] - ports[0] == in_a_row - 1 and all(map(is_free, ports)):
            return ports[0]


class Server:
    """A `steadfast serve` process. `start`, `kill` and `stop` may alternate."""

    def __init__(self, data, pool_size="1 GiB", extent_size="16 MiB", settings=None, wrapper=(), args=(), address="127.0.0.1"):
        self.data = pathlib.Path(data)
        # Many servers run at once, so the live port, on by default, is open only where a test sets
        # it.
        self.settings = {"data.pool_size": pool_size, "data.extent_size": extent_size, "live.listen": "", **(settings or {})}
        self.wrapper, self.args = list(wrapper), list(args)
        self.address = address
        # The address in the ready line: another one, if the server listens on all.
        self.announced = address
        # None: the default address, and none for a front.
        self.s3_listen = f"{address}:0"
        self.admin_listen = f"{address}:0"
        self.log_path = pathlib.Path(f"{self.data}.log")
        self.process = None
        self.starts = 0
        self.tls = None

    # -- process ------------------------------------------------------------------------------

    def environment(self):
        env = {k: v for k, v in os.environ.items() if not k.startswith("STEADFAST_")}
        env |= {"STEADFAST_ACCESS_KEY": sign.ACCESS, "STEADFAST_SECRET_KEY": sign.SECRET, "RUST_BACKTRACE": "1"}
        for name, value in self.settings.items():
            if value is not None:
                env["STEADFAST_" + name.replace(".", "_").upper()] = str(value)
        return env

    def start(self, deadline_s=60, wait_ready=True):
        s3 = ["--s3-listen", self.s3_listen] if self.s3_listen else []
        command = [*self.wrapper, binary(), "serve", "--data", str(self.data), *s3,
                   "--admin-listen", self.admin_listen, *self.args]
        self.data.parent.mkdir(parents=True, exist_ok=True)
        self.log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            env=self.environment(), start_new_session=True)
        self.starts += 1
        if wait_ready:
            self.wait_ready(deadline_s)
        return self

    def wait_ready(self, deadline_s=60):
        def ready():
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.log()}")
            for line in self.log().splitlines():
                line = re.sub(r"\x1b\[[0-9;]*m", "", line)
                ports = re.findall(re.escape(self.announced) + r":(\d+)", line)
                if re.search(r"\bready\b", line) and len(ports) >= 2:
                    return ports
            return None

        ports = wait.until(ready, deadline_s, "the ready line")
        self.s3_port, self.admin_port, *more = map(int, ports) if self.s3_listen else (None, *map(int, ports))
        self.live_port, self.grpc_port = (more + [None, None])[:2]

    def log(self):
        """The log of the current start."""
        with open(self.log_path, "rb") as log:
            log.seek(self.log_start)
            return log.read().decode(errors="replace")

    @property
    def pid(self):
        """The server's own process, even below a wrapper."""
        if not self.wrapper or self.wrapper[0] == "ip":
            # `ip netns exec` becomes the server.
            return self.process.pid
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return int(wait.until(lambda: children.read_text().split(), what="the server below its wrapper")[0])

    def kill(self):
        """Sends SIGKILL, to simulate a crash of the process."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)

    def terminate(self):
        os.kill(self.pid, signal.SIGTERM)

    def stop(self, deadline_s=60):
        """Sends SIGTERM; returns the exit status."""
        self.terminate()
        return self.process.wait(deadline_s)

    def close(self):
        if self.process and self.process.poll() is None:
            try:
                self.stop(20)
            except subprocess.TimeoutExpired:
                self.kill()
        if self.process:
            assert "panicked at" not in self.whole_log(), self.whole_log()[-20000:]

    def whole_log(self):
        return self.log_path.read_text(errors="replace")

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.close()

    # -- clients ------------------------------------------------------------------------------

    @property
    def endpoint(self):
        return f"{'https' if self.tls else 'http'}://{self.address}:{self.s3_port}"

    @property
    def host(self):
        return f"{self.address}:{self.s3_port}"

    def s3(self, attempts=1, access=sign.ACCESS, secret=sign.SECRET, timeout_s=60, endpoint=None, **options):
        """A boto3 client that does not hide errors behind retries unless `attempts` is above 1."""
        config = botocore.config.Config(
            retries={"total_max_attempts": attempts, "mode": "standard"}, read_timeout=timeout_s, connect_timeout=10,
            max_pool_connections=64, signature_version="s3v4",
            **{"s3": {"addressing_style": "path"}, **options})
        return boto3.client("s3", endpoint_url=endpoint or self.endpoint, aws_access_key_id=access,
                            aws_secret_access_key=secret, region_name=sign.REGION, config=config, verify=self.tls)

    def connect(self, timeout_s=30):
        return http.client.HTTPConnection(self.address, self.s3_port, timeout=timeout_s)

    def request(self, method, path, body=None, headers=None, query=None, connection=None, timeout_s=30):
        """A signed request; (status, headers, body)."""
        own = connection is None
        connection = connection or self.connect(timeout_s)
        try:
            signed = sign.headers_for(method, self.host, path, query, headers)
            target = sign.quote_path(path) + ("?" + sign.canonical_query(query) if query else "")
            connection.request(method, target, body=body, headers=signed)
            response = connection.getresponse()
            return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
        finally:
            if own:
                connection.close()

    # -- admin --------------------------------------------------------------------------------

    def admin(self, path, timeout_s=10):
        connection = http.client.HTTPConnection(self.address, self.admin_port, timeout=timeout_s)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def metrics(self):
        """All samples by `name{labels}`."""
        status, text = self.admin("/metrics")
        assert status == 200, text
        samples = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                samples[name] = float(value)
        return samples

    def metric(self, name):
        """The sum of a metric over its labels."""
        found = [v for k, v in self.metrics().items() if k.partition("{")[0] == name]
        assert found, f"no metric {name}; there are {sorted({k.partition('{')[0] for k in self.metrics()})}"
        return sum(found)

    def status(self):
        code, text = self.admin("/status")
        assert code == 200, text
        return json.loads(text)

    def memory_kib(self, field="VmHWM"):
        """Peak (or other) memory of the process."""
        text = pathlib.Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(rf"^{field}:\s+(\d+)", text, re.M)[1])

    # -- commands -----------------------------------------------------------------------------

    def command(self, *args, timeout_s=120):
        """Runs another command of the binary on this data directory."""
        return subprocess.run([binary(), *args], capture_output=True, text=True, timeout=timeout_s,
                              env=self.environment(), stdin=subprocess.DEVNULL, check=False)


def in_threads(count, work):
    """Runs `work(number)` in `count` threads; returns the results in order. Raises the first
    exception."""
    results, errors = [None] * count, []

    def run(number):
        try:
            results[number] = work(number)
        except BaseException as error:  # handed on to the caller
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
