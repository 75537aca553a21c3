"""The space of edge buckets: bounded, evicted by last use, filled ahead of requests."""

import http.client
import json
import random

from harness import sign, wait
from harness.sdk import body
from harness.server import in_threads

MIB = 1 << 20


def edge_status(server):
    return server.status()["edge"]["buckets"][0]


def stored(s3):
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket="media")
    return {entry["Key"]: entry["Size"] for page in pages for entry in page.get("Contents", [])}


def test_what_is_used_stays_and_the_space_is_never_exceeded(make_edge, origin):
    space = 48 * MIB
    contents = {f"k{n}": origin.put(f"k{n}", [MIB // 3, 3 * MIB, 5 * MIB][n % 3], seed=n) for n in range(40)}
    edge = make_edge(fresh="forever", segment="1 MiB", space="48 MiB")
    s3 = edge.s3()
    pick, popular = random.Random(7), ["k1", "k2", "k4"]
    for n in range(200):
        key = popular[n % 3] if n % 2 else pick.choice(list(contents))
        assert body(s3.get_object(Bucket="media", Key=key)) == contents[key].read(0, contents[key].size)
        status = edge_status(edge)
        assert status["used_bytes"] <= space and sum(stored(s3).values()) <= space, status
    assert set(popular) <= set(stored(s3))
    wait.until(lambda: edge_status(edge)["fills"] == 0, 30, "no fills")
    # Eviction for later fills may still run.
    wait.until(lambda: edge_status(edge)["used_bytes"] == sum(stored(s3).values()), 30, "the same count")
    status = edge_status(edge)
    assert status["evictions"] > 20 and status["hits"] >= 100 - len(popular) and status["space_bytes"] == space
    metrics = edge.metrics()
    assert metrics['steadfast_edge_evictions_total{bucket="media"}'] == status["evictions"]
    assert metrics['steadfast_edge_served_bytes_total{bucket="media"}'] > status["evicted_bytes"]
    assert edge.metric("steadfast_edge_fill_seconds_count") == status["fills_stored"]
    # What is stored is counted again after a crash.
    edge.kill()
    edge.start()
    wait.until(lambda: edge_status(edge)["used_bytes"] == sum(stored(edge.s3()).values()), 30, "the count")


def test_a_small_pool_is_a_cache_of_what_fits(make_edge, origin):
    contents = [origin.put(f"k{n}", 9 * MIB, seed=n) for n in range(120)]
    edge = make_edge(fresh="forever", pool_size="256 MiB", segment="2 MiB")

    def read(worker):
        s3 = edge.s3()
        for n in range(worker, 120, 4):
            assert body(s3.get_object(Bucket="media", Key=f"k{n}")) == contents[n].read(0, 9 * MIB)

    in_threads(4, read)
    status = edge_status(edge)
    # Several times the pool went through it, and most of it was stored.
    assert status["fills_stored"] > 80 and status["evictions"] > 50, status
    assert status["used_bytes"] <= status["space_bytes"] <= 256 * MIB
    assert not [line for line in edge.whole_log().splitlines() if "ERROR" in line]


def test_objects_go_at_their_age(make_edge, origin):
    content = origin.put("k", MIB)
    edge = make_edge(fresh="forever", age="1 s")
    s3 = edge.s3()
    assert body(s3.get_object(Bucket="media", Key="k")) == content.read(0, MIB)
    wait.until(lambda: edge_status(edge)["fills_stored"] == 1, 30, "the object")
    wait.until(lambda: not stored(s3), 30, "its end")
    assert body(s3.get_object(Bucket="media", Key="k")) == content.read(0, MIB)


def test_fill_by_prefix_and_by_keys(make_server):
    far = make_server(name="far")
    s3 = far.s3()
    s3.create_bucket(Bucket="videos")
    data = bytes(range(256)) * 20_000
    names = [f"films/{n:04} ä&b" for n in range(30)]
    in_threads(4, lambda w: [s3.put_object(Bucket="videos", Key=f"vod/{name}", Body=data) for name in names[w::4]])
    s3.put_object(Bucket="videos", Key="vod/other", Body=b"other")
    s3.put_object(Bucket="videos", Key="private", Body=b"outside of the prefix")
    keys = {"bucket": "media", "origin": "s3://videos/vod", "endpoint": far.endpoint, "access_key": sign.ACCESS,
            "secret_key": sign.SECRET, "fill": "wanted", "segment": "1 MiB", "fresh": "forever"}
    text = ", ".join(f'{name} = "{value}"' for name, value in keys.items())
    near = make_server(name="near", settings={"edge.buckets": f"[{{ {text}, allow_private = true }}]"})

    def fill(*args):
        done = near.command("edge", "fill", "media", *args, "--json", "--data", str(near.data))
        assert done.stdout, done.stderr
        return json.loads(done.stdout), done.returncode

    done, code = fill("--prefix", "films/")
    assert (done["objects"], done["fetched"], done["fetched_bytes"], code) == (30, 30, 30 * len(data), 0)
    wait.until(lambda: stored(near.s3()) == dict.fromkeys(names, len(data)), 30, "the objects")
    done, code = fill("other", names[0], "missing")
    assert (done["objects"], done["fetched"], done["missing"], code) == (3, 1, 1, 0)
    far.kill()
    assert body(near.s3().get_object(Bucket="media", Key=names[7])) == data
    done, code = fill(names[0], "unknown")
    assert (done["failed"], code) == (1, 3)
    near.command("edge", "purge", "media", "other", "--data", str(near.data))
    done = near.command("edge", "fill", "media", "--prefix", "", "--data", str(near.data))
    assert done.returncode == 1 and "the origin's listing failed" in done.stderr
    shown = near.command("edge", "status", "--data", str(near.data)).stdout
    assert shown.startswith("media: ") and "1 hits of 1 GETs" in shown


def test_an_http_origin_is_filled_from_a_list_of_keys(make_edge, origin, tmp_path):
    names = [f"dir/{n}" for n in range(300)]
    for n, name in enumerate(names):
        origin.put(name, 1000 + n, seed=n)
    edge = make_edge(fresh="forever")
    refused = edge.command("edge", "fill", "media", "--prefix", "", "--data", str(edge.data))
    assert refused.returncode == 1 and "cannot be listed: give the keys" in refused.stderr
    (tmp_path / "keys").write_text("\n".join(names) + "\n")
    done = edge.command("edge", "fill", "media", "--keys-from", str(tmp_path / "keys"), "--data", str(edge.data))
    assert done.stdout.startswith("300 of 300 objects fetched"), done.stderr
    # The answer to a viewer does not wait for the store, and the command is a viewer.
    wait.until(lambda: len(stored(edge.s3())) == 300, 30, "the stored objects")
    assert "give keys" in edge.command("edge", "fill", "media", "--data", str(edge.data)).stderr


def test_a_damaged_object_is_fetched_again(make_edge, origin):
    sizes = {"small": 5_000, "large": 3 * MIB}
    contents = {key: origin.put(key, size) for key, size in sizes.items()}
    edge = make_edge(pool_size="128 MiB", fresh="forever")
    for key in sizes:
        assert edge.request("GET", f"/media/{key}")[0] == 200
    wait.until(lambda: stored(edge.s3()) == sizes, 30, "the objects")
    assert edge.stop() == 0
    image = (edge.data / "pool").read_bytes()
    with open(edge.data / "pool", "r+b") as pool:
        for key, content in contents.items():
            # In the middle, so the answer of the large object has begun.
            middle = sizes[key] // 2
            at = image.find(content.read(middle, middle + 64))
            assert at > 0
            pool.seek(at)
            pool.write(bytes(64))
    edge.start()
    before = origin.sent
    for key, content in contents.items():
        expected = content.read(0, sizes[key])

        def answer():
            """A damaged object is an error or a truncated answer until it is evicted."""
            try:
                status, _, got = edge.request("GET", f"/media/{key}")
            except http.client.IncompleteRead as broken:
                status, got = 0, broken.partial
            assert expected.startswith(got) if status in (0, 200) else status == 500
            return (status, got) == (200, expected)

        wait.until(answer, 30, "the object")
    assert origin.sent - before == sum(sizes.values())
    assert edge_status(edge)["evictions"] == 2
