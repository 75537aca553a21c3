"""The caches that `bench/run edge` compares, and the origin in front of which each of them runs."""

import contextlib
import json
import os
import shutil
import subprocess
import threading
import time
import urllib.request
from pathlib import Path

from common import KEY, OUT, SECRET, TARGET, Server, free_port, wait_for

TOOL = str(TARGET / "steadfast-bench")
SEGMENT = 8 << 20
TICKS = os.sysconf("SC_CLK_TCK")


class Origin:
    """`steadfast-bench origin`: objects `/vod/<size>/<name>` at a limited rate."""

    def __enter__(self):
        self.process = subprocess.Popen([TOOL, "origin"], stdout=subprocess.PIPE, text=True)
        self.address = json.loads(self.process.stdout.readline())["listen"]
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def _get(self, path):
        with urllib.request.urlopen(f"http://{self.address}{path}", timeout=10) as answer:
            return json.load(answer)

    def set(self, bytes_s=0, latency_ms=0, max_age=86400):
        """Changes its settings and sets its counters to zero."""
        self._get(f"/set?bytes_s={bytes_s}&latency_ms={latency_ms}&max_age={max_age}")

    def stats(self):
        return self._get("/stats")

    def quiet_stats(self, seconds=5):
        """The counters once nothing more is fetched."""
        end, before = time.monotonic() + seconds, self.stats()
        while time.monotonic() < end:
            time.sleep(0.3)
            after = self.stats()
            if after == before:
                break
            before = after
        return before


class Cache:
    """A cache on a fresh directory. `space` bounds its stored bytes; with `direct`, hits come from
    the disk, where the cache can do that."""

    prefix, stored = "", ""

    def __init__(self, directory, origin, space=6 << 30, direct=False):
        self.dir, self.origin, self.space, self.direct = directory, origin, space, direct
        self.port = free_port()

    def start(self):
        log = open(OUT / f"{self.name.split()[0].lower()}.log", "a")
        self.process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_for(self.port, self.process)

    def processes(self):
        """Its processes: the first one and its children."""
        found = {str(self.process.pid)}
        for path in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
            with contextlib.suppress(OSError):
                parent = (path / "stat").read_text().rsplit(")", 1)[1].split()[1]
                found |= {path.name} if parent in found else set()
        return found

    def disk_bytes(self):
        """Bytes that its processes have read from the disk."""
        texts = [Path("/proc", pid, "io").read_text() for pid in self.processes()]
        return sum(int(text.split("\nread_bytes: ")[1].split()[0]) for text in texts)

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def files(self):
        for folder, _, names in os.walk(self.dir / self.stored):
            yield from (os.path.join(folder, name) for name in names)

    def used(self):
        """Bytes on the disk."""
        total = 0
        for name in self.files():
            with contextlib.suppress(OSError):
                total += os.stat(name).st_blocks * 512
        return total

    def drop_pages(self):
        """Takes its files out of the page cache."""
        for name in self.files():
            with contextlib.suppress(OSError), open(name, "rb") as file:
                os.fdatasync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Edge(Cache):
    """A bucket with an origin. `keys` are further settings of the bucket, `memory` is
    `edge.memory`."""

    name, prefix = "steadfast", "/media"

    def __init__(self, directory, server, space=None, direct=False, memory="256 MiB", **keys):
        super().__init__(directory, server, space, direct)
        bucket = dict(bucket="media", origin=f"http://{server.address}/vod" if server else "", allow_private=True,
                      public_read=True, fill="whole")
        if space:
            bucket["space"] = f"{space} B"
        bucket.update(keys)
        lines = ["[edge]", f'memory = "{memory}"', "[s3]", 'public_read = ["plain"]', *(["[store]", 'cache = "0 B"'] if direct else []),
                 "[[edge.buckets]]", *(f"{name} = {json.dumps(value)}" for name, value in bucket.items())]
        config = directory / "steadfast.toml"
        config.write_text("\n".join(lines) + "\n")
        self.server = Server("steadfast", directory / "data", ["--config", str(config)])

    def start(self):
        self.server.start()
        self.port, self.process = self.server.port, self.server.process

    def stop(self):
        self.server.stop()

    def metric(self, name):
        """The sum of a metric of the edge over its labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.server.admin_port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.split("{")[0].split(" ")[0] == f"steadfast_edge_{name}")

    def used(self):
        return self.metric("used_bytes")

    def cpu(self):
        """CPU seconds so far, user and system."""
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory(self, field="VmRSS"):
        with open(f"/proc/{self.process.pid}/status") as file:
            return next(int(line.split()[1]) / 1024 for line in file if line.startswith(field))

    def forget_peak(self):
        """The peak of the memory (`VmHWM`) begins anew."""
        with open(f"/proc/{self.process.pid}/clear_refs", "w") as file:
            file.write("5")


class Nginx(Cache):
    """`proxy_cache` with a lock. It has no direct I/O for stored answers, so with `direct` the pages
    of its files must be dropped."""

    name, stored = "nginx", "cache"
    cached = "proxy_cache_valid 200 1d;"

    def command(self):
        threads = "aio threads;" if self.direct else ""
        user = "user root;" if os.geteuid() == 0 else ""
        text = f"""{user} daemon off; worker_processes 2; pid {self.dir}/pid; error_log {OUT}/nginx.log;
events {{ worker_connections 4096; }}
http {{
  access_log off; sendfile on; {threads} tcp_nodelay on; keepalive_requests 1000000;
  {" ".join(f"{kind}_temp_path {self.dir}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))}
  proxy_cache_path {self.dir}/cache levels=1:2 keys_zone=edge:16m inactive=1d max_size={self.space} use_temp_path=off;
  upstream origin {{ server {self.origin.address}; keepalive 32; }}
  server {{
    listen 127.0.0.1:{self.port} backlog=1024;
    location / {{
      rewrite ^(.*)$ /vod$1 break;
      proxy_pass http://origin; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_cache edge; proxy_cache_lock on; proxy_cache_lock_timeout 120s; proxy_cache_lock_age 120s;
      proxy_cache_revalidate on; {self.cached}
    }}
  }}
}}
"""
        (self.dir / "nginx.conf").write_text(text)
        return ["nginx", "-c", str(self.dir / "nginx.conf"), "-p", str(self.dir)]


class NginxSlice(Nginx):
    """nginx that fetches slices of the same size as our segments."""

    name = "nginx slice"
    cached = ("slice 8m; proxy_cache_key $uri$slice_range; proxy_set_header Range $slice_range; "
              "proxy_cache_valid 200 206 1d;")


class Varnish(Cache):
    """Varnish with a file as its storage."""

    name, stored = "Varnish", "data"

    def command(self):
        host, port = self.origin.address.split(":")
        (self.dir / self.stored).mkdir()
        (self.dir / "edge.vcl").write_text(f"""vcl 4.1;
backend origin {{ .host = "{host}"; .port = "{port}"; }}
sub vcl_recv {{ set req.url = "/vod" + req.url; }}
""")
        return ["varnishd", "-F", "-n", str(self.dir / "work"), "-a", f"127.0.0.1:{self.port}", "-T", "none", "-j", "none",
                "-f", str(self.dir / "edge.vcl"), "-s", f"file,{self.dir / self.stored / 'file'},{self.space}"]


def find_peers(report):
    """The peers that are installed."""
    os.environ["PATH"] += ":/usr/sbin"
    if shutil.which("nginx"):
        version = subprocess.run(["nginx", "-V"], capture_output=True, text=True).stderr
        yield Nginx
        if "http_slice_module" in version:
            yield NginxSlice
        else:
            report.note("nginx has no slice module: no comparison with it")
    else:
        report.note("nginx is not installed: no comparison with it")
    if shutil.which("varnishd"):
        yield Varnish
    else:
        report.note("Varnish is not installed: no comparison with it")


@contextlib.contextmanager
def cold(kind, scratch, server, **options):
    """A cache of this kind that has nothing but one small object, which ends its start."""
    directory = scratch / "edge"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    cache = kind(directory, server, **options)
    try:
        cache.start()
        if server:
            fetch(f"127.0.0.1:{cache.port}", [("/1000/first", 1000)] * 2, cache.prefix)
        time.sleep(0.3)
        yield cache
    finally:
        cache.stop()
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def repeated(action, seconds):
    """Repeats an action in a thread."""
    done = threading.Event()

    def loop():
        while not done.wait(seconds):
            action()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def fetch(address, jobs, prefix="", **options):
    """Sends GETs for `(path, size)` or `(path, size, first, last)`."""
    command = [TOOL, "fetch", "--endpoint", address, "--prefix", prefix]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    done = subprocess.run(command, input="".join(" ".join(map(str, job)) + "\n" for job in jobs), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"fetch: {done.stderr.strip()}")
    return json.loads(done.stdout)


def get(report, cache, jobs, **options):
    """Sends GETs to a cache; errors and wrong bytes are noted."""
    row = fetch(f"127.0.0.1:{cache.port}", jobs, cache.prefix, **options)
    if row["errors"] or row["wrong_bytes"]:
        report.note(f"{cache.name}: {row['errors']} errors, {row['wrong_bytes']} wrong bytes; the first error: {row['first_error']}")
    return row


def s3_keys():
    """The keys of an edge bucket for the credentials of the benchmark."""
    return dict(access_key=KEY, secret_key=SECRET)
