"""Buckets with an origin: fetched once, whole or absent, never two versions mixed."""

import hashlib
import threading
import time

import botocore.exceptions
import pytest

from harness import sign, wait
from harness.sdk import body, fails, header
from harness.server import in_threads

MIB = 1 << 20


def stored(s3, key="k", bucket="media"):
    return key in [entry["Key"] for entry in s3.list_objects_v2(Bucket=bucket).get("Contents", [])]


def wait_stored(s3, key="k"):
    wait.until(lambda: stored(s3, key), 60, "the stored object")


def answers(s3, key="k"):
    """Whether a GET succeeds."""
    try:
        return body(s3.get_object(Bucket="media", Key=key)) is not None
    except botocore.exceptions.ClientError:
        return False


def digest_of(s3, key="k", **arguments):
    digest = hashlib.sha256()
    for piece in s3.get_object(Bucket="media", Key=key, **arguments)["Body"].iter_chunks(1 << 18):
        digest.update(piece)
    return digest.hexdigest()


def test_many_clients_fetch_an_object_once(make_edge, origin):
    content = origin.put("dir/a b.mp4", 100 * MIB, Content_Type="video/mp4", Cache_Control="max-age=60")
    edge = make_edge(fresh="forever")
    clients = [edge.s3() for _ in range(40)]
    digests = in_threads(40, lambda n: digest_of(clients[n], "dir/a b.mp4"))
    assert set(digests) == {content.digest()}
    assert origin.sent <= 1.02 * content.size
    assert len({path for _, path, _ in origin.requests}) == 1
    s3 = clients[0]
    wait_stored(s3, "dir/a b.mp4")
    before = len(origin.requests)
    got = s3.get_object(Bucket="media", Key="dir/a b.mp4", Range="bytes=5-9")
    assert body(got) == content.read(5, 10)
    assert (got["ETag"], got["ContentType"], got["CacheControl"]) == (content.etag, "video/mp4", "max-age=60")
    assert len(origin.requests) == before
    # It survives a restart, and its clients' keys never reached the origin.
    assert edge.stop() == 0
    edge.start()
    assert digest_of(edge.s3(), "dir/a b.mp4") == content.digest()
    assert len(origin.requests) == before
    assert not any("Authorization" in headers for _, _, headers in origin.requests)


def test_a_client_cannot_fill_the_log_through_an_origin_that_refuses(make_edge, origin):
    edge = make_edge(public_read=True)
    origin.fault = lambda request: 403
    connection = edge.connect()
    began = len(edge.log())
    for number in range(300):
        connection.request("GET", f"/media/{'k' * 900}{number}")
        response = connection.getresponse()
        response.read()
        assert response.status == 502
    lines = [line for line in edge.log()[began:].splitlines() if "the origin refused a request" in line]
    assert 1 <= len(lines) <= 4 and all(len(line) < 400 for line in lines), lines
    # The same key is not asked for again within a second.
    asked = len(origin.requests)
    for _ in range(50):
        connection.request("GET", "/media/one")
        response = connection.getresponse()
        response.read()
        assert response.status == 502
    assert len(origin.requests) - asked <= 10
    connection.close()


def test_a_seek_does_not_wait_for_the_rest(make_edge, origin):
    content = origin.put("k", 1 << 30)
    origin.bytes_s = 100e6
    s3 = make_edge(fill="wanted").s3()
    began = time.monotonic()
    got = s3.get_object(Bucket="media", Key="k", Range=f"bytes={content.size - 100}-")
    assert body(got) == content.read(content.size - 100, content.size)
    assert time.monotonic() - began < 3
    assert got["ContentRange"] == f"bytes {content.size - 100}-{content.size - 1}/{content.size}"
    assert body(s3.get_object(Bucket="media", Key="k", Range="bytes=-7")) == content.read(content.size - 7, content.size)
    assert origin.sent < 60 * MIB
    with fails("InvalidRange", 416):
        s3.get_object(Bucket="media", Key="k", Range=f"bytes={content.size}-")


def test_conditions_and_heads_are_decided_by_the_headers_of_the_origin(make_edge, origin):
    content = origin.put("k", 20 * MIB, Last_Modified="Tue, 14 Nov 2023 22:13:20 GMT")
    s3 = make_edge(fill="wanted").s3()
    head = s3.head_object(Bucket="media", Key="k")
    assert (head["ContentLength"], head["ETag"]) == (content.size, content.etag)
    assert header(head, "last-modified") == "Tue, 14 Nov 2023 22:13:20 GMT"
    assert origin.sent == 0
    with fails("304", 304):
        s3.get_object(Bucket="media", Key="k", IfNoneMatch=content.etag)
    with fails("PreconditionFailed", 412):
        s3.get_object(Bucket="media", Key="k", IfMatch='"other"')
    with fails("NoSuchKey", 404):
        s3.get_object(Bucket="media", Key="missing")
    with fails("404", 404):
        s3.head_object(Bucket="media", Key="missing")


def test_an_edge_bucket_is_read_only(make_edge, origin):
    origin.put("k", 10)
    edge = make_edge()
    s3 = edge.s3()
    s3.create_bucket(Bucket="own")
    for call in (lambda: s3.put_object(Bucket="media", Key="k", Body=b"x"),
                 lambda: s3.delete_object(Bucket="media", Key="k"),
                 lambda: s3.create_multipart_upload(Bucket="media", Key="k"),
                 lambda: s3.delete_bucket(Bucket="media"),
                 lambda: s3.copy_object(Bucket="own", Key="k", CopySource="media/k")):
        with fails("MethodNotAllowed", 405):
            call()
    assert len(body(s3.get_object(Bucket="media", Key="k"))) == 10
    s3.put_object(Bucket="own", Key="k", Body=b"x")


def test_versions_are_never_mixed(make_edge, origin):
    size, versions = 3 * MIB + 5, 8
    edge = make_edge(segment="1 MiB", fill="wanted")
    contents = {f'"v{n}"': origin.put(f"k{n}", size, seed=n) for n in range(versions)}
    # All objects change now and then, so that a part of the fills meets a change.
    origin.find = lambda key: origin.objects[f"k{len(origin.requests) // 40 % versions}"]

    def read(thread):
        outcomes, s3 = [], edge.s3()
        for n in range(25):
            try:
                got = s3.get_object(Bucket="media", Key=f"{thread % 4}-{n}")
                outcomes.append(body(got) == contents[got["ETag"]].read(0, size))
            except Exception as error:  # Cut off, or refused: never wrong.
                outcomes.append(type(error).__name__)
        return outcomes

    outcomes = sum(in_threads(8, read), [])
    assert False not in outcomes
    assert outcomes.count(True) > 0, outcomes
    assert len({headers.get("if-match") for _, _, headers in origin.requests}) > 2


@pytest.mark.parametrize("fault", ["truncate", "redirect", 403, 500, 503])
def test_nothing_of_a_bad_origin_is_stored(make_edge, origin, fault):
    content = origin.put("k", 2 * MIB)
    origin.fault = lambda request: fault
    s3 = make_edge(segment="1 MiB").s3()
    with pytest.raises(Exception):
        body(s3.get_object(Bucket="media", Key="k"))
    assert not stored(s3)
    assert all(path == "/vod/k" for _, path, _ in origin.requests)
    origin.fault = lambda request: None
    # The failure is remembered for a second.
    wait.until(lambda: answers(s3), what="an answer")
    assert digest_of(s3) == content.digest()
    wait_stored(s3)


def test_hostile_headers_and_bodies(make_edge, origin):
    origin.put("k", 100)
    s3 = make_edge(segment="64 KiB").s3()

    def answer_of(lines, pieces=()):
        def answer(request):
            request.wfile.write("\r\n".join(["HTTP/1.1 200 OK", *lines, "", ""]).encode())
            for piece in pieces:
                request.wfile.write(piece)
            request.close_connection = True

        return answer

    endless = (b"10000\r\n" + bytes(65536) + b"\r\n" for _ in range(100_000))
    for number, (lines, pieces) in enumerate([
        ([f"X-{n}: {'x' * 1000}" for n in range(90)] + ["Content-Length: 1"], [b"x"]),
        ([f"X-{n}: {'x' * 1000}" for n in range(5000)], []),
        (["Content-Length: 100", "Content-Length: 99"], [bytes(100)]),
        (["Content-Length: 100"], [bytes(50)]),
        (["Transfer-Encoding: chunked"], [b"zz\r\n"]),
        (["Content-Length: 99999999999999999999999"], []),
    ]):
        origin.fault = lambda request, lines=lines, pieces=pieces: answer_of(lines, pieces)
        with pytest.raises(Exception):
            # A key of its own: a failure is remembered for a second.
            body(s3.get_object(Bucket="media", Key=f"k{number}"))
        assert not stored(s3, f"k{number}")
    # A body without an end is passed through: it fills no memory and no disk.
    origin.fault = lambda request: answer_of(["Transfer-Encoding: chunked"], endless)
    stream = s3.get_object(Bucket="media", Key="k")["Body"]
    assert len(stream.read(10 * MIB)) == 10 * MIB
    stream.close()
    assert not stored(s3)
    # One that ends when the connection closes may be cut, so it is passed through, too.
    origin.fault = lambda request: answer_of([], [b"hello"])
    assert body(s3.get_object(Bucket="media", Key="k")) == b"hello"
    assert not stored(s3)


def test_a_large_object_is_passed_through(make_edge, origin):
    content = origin.put("k", 5 * MIB)
    s3 = make_edge(segment="1 MiB", object_max="4 MiB").s3()
    assert digest_of(s3) == content.digest()
    got = s3.get_object(Bucket="media", Key="k", Range="bytes=3000000-3000009")
    assert (body(got), got["ResponseMetadata"]["HTTPStatusCode"]) == (content.read(3_000_000, 3_000_010), 206)
    assert s3.head_object(Bucket="media", Key="k")["ContentLength"] == content.size
    assert not stored(s3)


def test_a_hanging_origin_is_a_timeout(make_edge, origin):
    origin.put("k", 10)
    origin.fault = lambda request: "hang"
    s3 = make_edge(timeout="300ms").s3()
    with fails("GatewayTimeout", 504):
        s3.get_object(Bucket="media", Key="k")


def test_private_origins_must_be_allowed(make_server, origin):
    server = make_server(start=False, settings={"edge.buckets": origin.setting(allow_private=False)})
    with pytest.raises(AssertionError, match="private"):
        server.start()


def status_of(got):
    return header(got, "cache-status")


def test_a_stale_object_is_asked_about_once_a_lifetime(make_edge, origin):
    content = origin.put("k", 3 * MIB, Cache_Control="max-age=1")
    s3 = make_edge(segment="1 MiB").s3()
    assert digest_of(s3) == content.digest()
    wait_stored(s3)
    time.sleep(1.1)
    asked, sent, began, lifetimes = len(origin.requests), origin.sent, time.monotonic(), 3
    statuses = []
    while time.monotonic() - began < lifetimes:
        got = s3.get_object(Bucket="media", Key="k", Range="bytes=0-9")
        assert body(got) == content.read(0, 10)
        statuses.append(status_of(got))
        if statuses[-1] == "Steadfast; hit":
            assert int(header(got, "age")) <= 1
    assert set(statuses) == {"Steadfast; hit", "Steadfast; fwd=stale; fwd-status=304"}
    assert len(origin.requests) - asked <= lifetimes + 1
    assert origin.sent == sent
    # The new version comes whole, and a client's condition is decided by it.
    new = origin.put("k", 2 * MIB, seed=1, Cache_Control="max-age=1000")
    time.sleep(1.1)
    with fails("PreconditionFailed", 412):
        s3.get_object(Bucket="media", Key="k", IfMatch=content.etag)
    wait.until(lambda: status_of(s3.head_object(Bucket="media", Key="k")) == "Steadfast; hit", 30, "the new version")
    assert digest_of(s3) == new.digest()


def test_missing_objects_and_a_dead_origin(make_edge, origin):
    content = origin.put("k", MIB, Cache_Control="max-age=0")
    edge = make_edge(stale_if_error="1 h", negative="1 h")
    s3 = edge.s3()
    assert digest_of(s3) == content.digest()
    wait_stored(s3)
    with fails("NoSuchKey", 404):
        s3.get_object(Bucket="media", Key="missing")
    asked = len(origin.requests)
    for _ in range(20):
        with fails("NoSuchKey", 404):
            s3.get_object(Bucket="media", Key="missing")
    assert len(origin.requests) == asked
    origin.fault = lambda request: 500
    got = s3.get_object(Bucket="media", Key="k")
    assert (hashlib.sha256(body(got)).hexdigest(), status_of(got)) == (content.digest(), "Steadfast; hit; detail=stale")
    # Also after a restart, when the age is known from the wall clock only.
    edge.kill()
    edge.start()
    assert digest_of(edge.s3()) == content.digest()


def test_private_answers_are_passed_through(make_edge, origin):
    content = origin.put("k", MIB, Cache_Control="private")
    s3 = make_edge().s3()
    for _ in range(3):
        got = s3.get_object(Bucket="media", Key="k")
        assert hashlib.sha256(body(got)).hexdigest() == content.digest()
        assert status_of(got) == "Steadfast; fwd=uri-miss; detail=passed-through"
    assert not stored(s3)


def test_a_purge_is_durable(make_edge, origin):
    edge = make_edge(fresh="forever")
    s3 = edge.s3()
    for n in range(5):
        origin.put(f"dir/{n}", MIB)
        digest_of(s3, f"dir/{n}")
    origin.put("k", MIB)
    digest_of(s3)
    wait.until(lambda: s3.list_objects_v2(Bucket="media")["KeyCount"] == 6, 30, "six stored objects")
    new = origin.put("k", MIB, seed=1)
    assert edge.command("edge", "purge", "media", "k", "--data", str(edge.data)).stdout == "1 objects are removed\n"
    edge.kill()
    edge.start()
    assert digest_of(edge.s3()) == new.digest()
    done = edge.command("edge", "purge", "media", "dir/", "--prefix", "--json", "--data", str(edge.data))
    assert '"purged": 5' in done.stdout
    refused = edge.command("edge", "purge", "other", "k", "--data", str(edge.data))
    assert refused.returncode == 1 and "has no origin" in refused.stderr


def test_an_s3_origin_with_signed_requests(make_server):
    far = make_server(name="far")
    data = bytes(range(256)) * 80_000
    far.s3().create_bucket(Bucket="videos")
    put = far.s3().put_object(Bucket="videos", Key="vod/a+b ä.mp4", Body=data, ContentType="video/mp4", Metadata={"a": "b"})
    keys = {"bucket": "media", "origin": "s3://videos/vod", "endpoint": far.endpoint, "access_key": sign.ACCESS,
            "secret_key": sign.SECRET}
    text = ", ".join(f'{name} = "{value}"' for name, value in keys.items())
    near = make_server(name="near", settings={"edge.buckets": f"[{{ {text}, allow_private = true }}]"})
    s3 = near.s3()
    got = s3.get_object(Bucket="media", Key="a+b ä.mp4")
    assert body(got) == data
    assert (got["ETag"], got["ContentType"], got["Metadata"]) == (put["ETag"], "video/mp4", {"a": "b"})
    wait_stored(s3, "a+b ä.mp4")
    far.kill()
    assert body(s3.get_object(Bucket="media", Key="a+b ä.mp4")) == data
    with fails("BadGateway", 502):
        s3.get_object(Bucket="media", Key="other")
    assert sign.SECRET not in near.whole_log()


@pytest.mark.timeout(3600)
def test_kill_9_in_fills_leaves_objects_whole_or_absent(make_edge, origin, request):
    rounds = request.config.getoption("--rounds") // 5 or 1
    size, segment = 16 * MIB + 3, MIB
    edge = make_edge(segment="1 MiB", pool_size="4 GiB")

    def used():
        return edge.status()["edge"]["buckets"][0]["used_bytes"]

    sent_before, stored_before = 0, 0
    for n in range(rounds):
        content = origin.put(f"k{n % 16}", size, seed=n)
        edge.command("edge", "purge", "media", f"k{n % 16}", "--data", str(edge.data))
        objects = used()
        origin.bytes_s = 40e6 * (1 + n % 5)
        before = origin.sent
        reader = threading.Thread(target=lambda: pytest.raises(Exception, digest_of, edge.s3(), f"k{n % 16}"), daemon=True)
        reader.start()
        wait.until(lambda: origin.sent - before >= size * (n % 10 + 0.5) / 11, 60, "a part of the object")
        edge.kill()
        reader.join()
        edge.start()
        # Segments are counted before objects.
        wait.until(lambda: used() >= objects, 30, "the count")
        stored, killed = used() - objects, origin.sent
        sent_before, stored_before = sent_before + killed - before, stored_before + stored
        origin.bytes_s = None
        s3 = edge.s3()
        assert digest_of(s3, f"k{n % 16}") == content.digest()
        wait_stored(s3, f"k{n % 16}")
        assert origin.sent - killed <= size - stored + segment
        assert digest_of(s3, f"k{n % 16}") == content.digest()
    # What was still in sockets and in memory was lost.
    assert rounds < 10 or stored_before > sent_before / 2


def test_a_head_without_a_length_leaves_the_stored_object(make_edge, origin):
    def head(request):
        request.wfile.write(b'HTTP/1.1 200 OK\r\nETag: "new"\r\nTransfer-Encoding: chunked\r\n\r\n')

    content = origin.put("k", 100, Cache_Control="max-age=1")
    s3 = make_edge().s3()
    body(s3.get_object(Bucket="media", Key="k"))
    wait_stored(s3)
    time.sleep(1.1)
    origin.fault = lambda request: head if request.command == "HEAD" else None
    for arguments in ({}, {"Range": "bytes=1-2"}, {"PartNumber": 1}):
        got = s3.head_object(Bucket="media", Key="k", **arguments)
        assert (got["ETag"], header(got, "content-length")) == ('"new"', None)
    assert stored(s3)
    got = s3.get_object(Bucket="media", Key="k")
    assert body(got) == content.read(0, 100)
    assert header(got, "cache-status") == "Steadfast; fwd=stale; fwd-status=304"


def test_versions_without_tags_and_times_have_different_tags(make_edge, origin):
    tags = set()
    s3 = make_edge().s3()
    for seed in range(2):
        content = origin.put("live.m3u8", 200, seed=seed, etag="", Cache_Control="max-age=1")
        got = s3.get_object(Bucket="media", Key="live.m3u8", **({"IfNoneMatch": tags.copy().pop()} if tags else {}))
        assert body(got) == content.read(0, 200)
        tags.add(got["ETag"])
        time.sleep(1.1)
    assert len(tags) == 2


def test_a_tag_of_the_origin_with_characters_of_xml(make_edge, origin):
    """The tag is any text of the origin; listings stay well-formed."""
    for number, tag in enumerate(['"a&b<c>"', 'W/"<![CDATA["', '"&amp;"']):
        origin.put(f"k{number}", 10, etag=tag)
    edge = make_edge(fresh="forever")
    s3 = edge.s3()
    for number in range(3):
        body(s3.get_object(Bucket="media", Key=f"k{number}"))
    wait.until(lambda: s3.list_objects_v2(Bucket="media")["KeyCount"] == 3, 30, "three stored objects")
    tags = [entry["ETag"] for entry in s3.list_objects_v2(Bucket="media")["Contents"]]
    assert tags == ['"a&b<c>"', '"<![CDATA["', '"&amp;"'], tags
