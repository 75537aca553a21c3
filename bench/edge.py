"""`bench/run edge`: buckets with an origin against nginx and Varnish in front of the same origin."""

import bisect
import collections
import itertools
import random
import statistics

from caches import SEGMENT, Edge, Nginx, NginxSlice, Origin, Varnish, cold, fetch, find_peers, get, repeated, s3_keys
from common import fio, servers

MIB, GIB = 1 << 20, 1 << 30
# How long a peer that fetches from the beginning may take for a range at the end, seconds.
WAIT = 10
SLOW = 100_000_000


def middle(values):
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def turns(args, kinds, measure):
    """Measures each kind of cache in each round, in turns: rows by the cache's name."""
    rows = collections.defaultdict(list)
    for _ in range(args.rounds):
        for kind in kinds:
            rows[kind.name].append(measure(kind))
    return rows


def compare(report, what, unit, rows, field, reach):
    """A row against each peer, or one without a peer."""
    ours = middle(row[field] for row in rows["steadfast"])
    peers = [name for name in rows if name != "steadfast"]
    for n, name in enumerate(peers or ["-"]):
        other = middle(row[field] for row in rows[name]) if peers else None
        report.add(what if n == 0 else "  the same", unit, ours, other, name, reach if n == 0 else "-", None if n else dict(rows))


def crowd(report, args, scratch, origin, peers):
    """100 clients want one object that nothing has yet."""
    size = args.edge_mib * MIB
    job = (f"/{size}/crowd", size)

    def measure(kind):
        origin.set(bytes_s=4 * SLOW, latency_ms=20)
        direct = fetch(origin.address, [(*job, 0, 99)] * 5, "/vod")["first_p50_ms"]
        with cold(kind, scratch, origin) as cache:
            origin.set(bytes_s=4 * SLOW, latency_ms=20)
            row = get(report, cache, [job] * 100, clients=100, timeout=120)
            sent = origin.stats()["bytes"]
        return dict(row, amplification=sent / size, later_ms=row["first_p50_ms"] - direct)

    rows = turns(args, [Edge, *peers], measure)
    label = f"100 clients, one cold object of {args.edge_mib} MiB"
    compare(report, f"{label}: bytes of the origin", "of it", rows, "amplification", "<= 1.02")
    compare(report, "  p50 of the first byte above the origin's", "ms", rows, "later_ms", "<= 5 ms")
    compare(report, "  p50 of the last byte", "ms", rows, "last_p50_ms", "-")
    calm(report, args, scratch, origin, peers)
    report.add("  wrong bytes", "bytes", sum(row["wrong_bytes"] for row in rows["steadfast"]), None, "-", "0")


def calm(report, args, scratch, origin, peers):
    """The same crowd in front of an origin so slow that the processors have time."""
    size, limits = 8 * MIB, dict(bytes_s=5_000_000, latency_ms=20)

    def measure(kind):
        origin.set(**limits)
        direct = fetch(origin.address, [(f"/{size}/calm", size, 0, (64 << 10) - 1)] * 5, "/vod")["first_p50_ms"]
        with cold(kind, scratch, origin) as cache:
            origin.set(**limits)
            row = get(report, cache, [(f"/{size}/calm", size)] * 100, clients=100)
        return dict(row, later_ms=row["first_p50_ms"] - direct)

    rows = turns(args, [Edge, *peers], measure)
    compare(report, "  p50 of the first byte above it, origin at 5 MB/s", "ms", rows, "later_ms", "<= 5 ms")


def seek(report, args, scratch, origin, peers):
    """A range near the end of an object of 4 GiB that nothing has yet."""
    size, first = 4 * GIB, 4 * GIB - 3 * MIB

    def measure(kind):
        whole = kind in (Nginx, Varnish)
        with cold(kind, scratch, origin, **(dict(fill="wanted") if kind is Edge else {})) as cache:
            origin.set(bytes_s=SLOW)
            jobs = [(f"/{size}/seek{n}", size, first, first + MIB - 1) for n in range(1 if whole else 10)]
            if not whole:
                return get(report, cache, jobs)
            row = fetch(f"127.0.0.1:{cache.port}", jobs, timeout=WAIT)
            if row["errors"]:
                return dict(row, first_p50_ms=WAIT * 1000.0)
            return row

    rows = turns(args, [Edge, *peers], measure)
    for name, found in rows.items():
        if any(row["errors"] for row in found):
            report.note(f"{name} had no first byte of the range after {WAIT} s; the whole object takes {size / SLOW:.0f} s")
    limit = SEGMENT / SLOW * 1000
    ours = middle(row["first_p50_ms"] for row in rows["steadfast"])
    report.add("cold range at the end of 4 GiB: first byte", "ms", ours, limit, "one segment's time", f"<= {limit + 10:.0f} ms", dict(rows))
    compare(report, "  the same", "ms", rows, "first_p50_ms", "-")


def players(report, args, scratch, origin, peers):
    """50 players seek in an object of 4 GiB."""
    size, span, chance = 4 * GIB, 4 * MIB, random.Random(1)
    jobs = []
    for _ in range(100):
        first = chance.randrange(size - span)
        jobs.append((f"/{size}/players", size, first, first + span - 1))
    wanted = {segment for _, _, first, last in jobs for segment in range(first // SEGMENT, last // SEGMENT + 1)}

    def measure(kind):
        with cold(kind, scratch, origin, **(dict(fill="wanted") if kind is Edge else {})) as cache:
            origin.set(bytes_s=SLOW)
            row = get(report, cache, jobs, clients=50)
            sent = origin.quiet_stats()["bytes"]
        return dict(row, amplification=sent / (len(wanted) * SEGMENT))

    rows = turns(args, [Edge, *(peer for peer in peers if peer is NginxSlice)], measure)
    compare(report, "50 players seek in 4 GiB: bytes of the origin", "of wanted", rows, "amplification", "-")
    compare(report, "  p50 of the first byte", "ms", rows, "first_p50_ms", "-")
    compare(report, "  p99 of the first byte", "ms", rows, "first_p99_ms", "-")


def hits(report, args, scratch, origin, peers):
    """Stored objects that no cache in memory holds."""
    sets = {size: [(f"/{size}/hit{n}", size) for n in range(GIB // size)] for size in (MIB, 16 * MIB)}
    plain = {size: [(f"/p{size}/{n % 1000:03}/{n:08}", size) for n in range(GIB // size)] for size in sets}

    def measure(kind):
        rows = {}
        with cold(kind, scratch, origin, direct=True) as cache:
            origin.set()
            for size, jobs in sets.items():
                get(report, cache, jobs, clients=8)
                if kind is Edge:
                    cache.server.load("fill", bucket="plain", prefix=f"p{size}", size=size, objects=len(jobs), clients=8, unsigned=True)
            origin.quiet_stats()
            before = origin.stats()["gets"]
            for size, jobs in sets.items():
                rows[size] = load(report, args, cache, jobs)
                if kind is Edge:
                    cache.prefix = "/plain"
                    rows[size]["plain"] = load(report, args, cache, plain[size])
                    cache.prefix = Edge.prefix
            if origin.stats()["gets"] != before:
                report.note(f"{cache.name}: {origin.stats()['gets'] - before} hits were fetched again")
        return rows

    rows = turns(args, [Edge, *(peer for peer in peers if peer is not NginxSlice)], measure)
    for size in sets:
        disk = [fio(scratch, "randread", f"{size // MIB}m", 16, args.seconds) for _ in range(args.rounds)]
        (scratch / "fio.dat").unlink(missing_ok=True)
        found = {name: [row[size] for row in each] for name, each in rows.items()}
        label = f"hits of {size // MIB} MiB, 16 clients"
        limit = middle(row["mib_per_s"] for row in disk if row)
        report.add(f"{label}, from the disk", "MiB/s", middle(row["mib_per_s"] for row in found["steadfast"]), limit, "fio direct read", ">= 0.9")
        compare(report, "  the same", "MiB/s", found, "mib_per_s", ">= nginx")
        compare(report, "  read from the disk", "of it", found, "from_disk", "-")
        ours = middle(row["cpu_s"] for row in found["steadfast"])
        report.add("  server CPU", "s/GiB", ours, middle(row["plain"]["cpu_s"] for row in found["steadfast"]), "an ordinary bucket", "<= 1.1")


def load(report, args, cache, jobs):
    """GETs each object once, without the page cache where that can be dropped, and repeats that.
    Reports the CPU time for each GiB too, and the share that was read from the disk."""
    rows = []
    cpu, disk = (cache.cpu() if isinstance(cache, Edge) else 0), cache.disk_bytes()
    while sum(row["seconds"] for row in rows) < args.seconds:
        if isinstance(cache, Nginx):
            cache.drop_pages()
        rows.append(get(report, cache, jobs, clients=16, unchecked=True))
    read = sum(row["bytes"] for row in rows)
    spent = cache.cpu() - cpu if isinstance(cache, Edge) else None
    return dict(mib_per_s=read / MIB / sum(row["seconds"] for row in rows), cpu_s=spent and spent / (read / GIB),
                from_disk=(cache.disk_bytes() - disk) / read)


def trace(space, requests):
    """A Zipf trace over objects of ten times the space."""
    chance, objects, total = random.Random(7), [], 0
    while total < 10 * space:
        size = int(64 * 1024 * 64 ** chance.random())
        objects.append((f"/{size}/zipf{len(objects)}", size))
        total += size
    sums = list(itertools.accumulate(1 / (rank + 1) ** 0.95 for rank in range(len(objects))))
    return [objects[bisect.bisect_left(sums, chance.random() * sums[-1])] for _ in range(requests)]


def exact_lru(jobs, space):
    """The hits of a cache of that space that evicts what was used longest ago."""
    stored, total, found = collections.OrderedDict(), 0, 0
    for path, size in jobs:
        if path in stored:
            stored.move_to_end(path)
            found += 1
            continue
        while total + size > space:
            total -= stored.popitem(last=False)[1]
        stored[path] = size
        total += size
    return found / len(jobs)


def evictions(report, args, scratch, origin, peers):
    """A Zipf trace over ten times the space."""
    space = 256 * MIB
    jobs = trace(space, args.edge_requests)

    def measure(kind):
        with cold(kind, scratch, origin, space=space) as cache:
            origin.set()
            used = [0]
            with repeated(lambda: used.append(cache.used()), 0.05):
                row = get(report, cache, jobs)
            return dict(row, hit_ratio=1 - origin.stats()["gets"] / len(jobs), used=max(used) / space)

    rows = turns(args, [Edge, *(peer for peer in peers if peer is not NginxSlice)], measure)
    ours = middle(row["hit_ratio"] for row in rows["steadfast"])
    lru = exact_lru(jobs, space)
    report.add("hit ratio, Zipf over 10 times the space", "hits", ours, lru, "exact LRU", f">= {lru - 0.02:.3f}", dict(rows))
    compare(report, "  the same", "hits", rows, "hit_ratio", "-")
    compare(report, "  largest use", "of space", rows, "used", "<= 1")


def slow_clients(report, args, scratch, origin, peers):
    """200 slow clients read an object each that nothing has yet."""
    size, budget, clients = 12 * MIB, 64, 200
    options = dict(clients=clients, bytes_s=1_000_000)
    rows, plain = [], []
    for _ in range(args.rounds):
        with cold(Edge, scratch, origin, direct=True, memory=f"{budget} MiB") as cache:
            origin.set()
            idle = cache.memory()
            row = get(report, cache, [(f"/{size}/slow{n}", size) for n in range(clients)], **options)
            rows.append(dict(row, idle=idle, peak=cache.memory("VmHWM")))
        with cold(Edge, scratch, origin, direct=True) as cache:
            cache.server.load("fill", bucket="plain", prefix="slow", size=size, objects=clients, clients=4, unsigned=True)
            cache.forget_peak()
            cache.prefix, begin = "/plain", cache.memory()
            row = get(report, cache, [(f"/slow/{n:03}/{n:08}", size) for n in range(clients)], unchecked=True, **options)
            plain.append(dict(row, growth=cache.memory("VmHWM") - begin))
    idle, peak = middle(row["idle"] for row in rows), middle(row["peak"] for row in rows)
    report.add("peak memory, 200 slow clients, 64 MiB budget", "MiB", peak, idle + budget + 64, "idle + 64 + 64 MiB", "<= 1", rows)
    report.add("  growth", "MiB", peak - idle, middle(row["growth"] for row in plain), "an ordinary bucket", "-", plain)
    report.add("  p99 of the first byte", "ms", middle(row["first_p99_ms"] for row in rows), None, "-", "-")


def lifetimes(report, args, scratch, origin, peers):
    """Objects with a lifetime of one second under load."""
    keys, size, seconds = 20, 64 << 10, 5
    jobs = [(f"/{size}/short{n}", size) for n in range(keys)]

    def measure(kind):
        with cold(kind, scratch, origin) as cache:
            origin.set(max_age=1)
            get(report, cache, jobs)
            origin.set(max_age=1)
            row = get(report, cache, jobs, clients=16, seconds=seconds)
            stats = origin.stats()
        return dict(row, conditional=stats["conditional"] / keys / seconds, full=stats["gets"] - stats["conditional"])

    rows = turns(args, [Edge, *(peer for peer in peers if peer is not NginxSlice)], measure)
    compare(report, "max-age=1, 16 clients: conditional requests", "/key/s", rows, "conditional", "~ 1")
    compare(report, "  fetched whole again", "GETs", rows, "full", "0")
    compare(report, "  p99 of the first byte", "ms", rows, "first_p99_ms", "-")


def s3_origin(report, args, scratch, origin, peers):
    """Objects of another Steadfast, fetched by its S3 port."""
    size, count = 16 * MIB, 16
    jobs = [(f"/{n % 1000:03}/{n:08}", size) for n in range(count)]
    rows, direct = [], []
    with servers(scratch, ["steadfast"]) as (far,):
        far.load("fill", size=size, objects=count, clients=4, bucket="far", prefix="o", unsigned=True)
        keys = dict(origin="s3://far/o", endpoint=f"http://127.0.0.1:{far.port}", **s3_keys())
        for _ in range(args.rounds):
            direct.append(far.load("get", size=size, objects=count, clients=4, bucket="far", prefix="o", seconds=args.seconds))
            with cold(Edge, scratch, None, **keys) as cache:
                row = get(report, cache, jobs, clients=4, unchecked=True)
                rows.append(dict(row, amplification=cache.metric("origin_bytes_total") / (size * count)))
    report.add("cold GET of 16 MiB from an S3 origin", "MiB/s", middle(row["mib_per_s"] for row in rows),
               middle(row["mib_per_s"] for row in direct), "GET from it directly", "-", rows)
    report.add("  bytes of the origin", "of them", middle(row["amplification"] for row in rows), None, "-", "<= 1.02")


def bench_edge(report, args, scratch, names):
    """Buckets with an origin against nginx and Varnish in front of the same origin."""
    peers = list(find_peers(report))
    with Origin() as origin:
        for part in (crowd, seek, players, hits, evictions, slow_clients, lifetimes, s3_origin):
            try:
                part(report, args, scratch, origin, peers)
            except RuntimeError as e:
                report.note(f"edge, {part.__name__}: {e}")
