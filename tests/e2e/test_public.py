"""Public buckets: objects are read without keys, and nothing else is possible."""

import http.client
import urllib.parse

import pytest

from harness import wait
from harness.sdk import fails

MIB = 1 << 20
PAGE = "https://player.example.com"


@pytest.fixture
def server(make_server, origin):
    return make_server(pool_size="1 GiB", settings={
        "s3.public_read": "open,absent", "s3.allowed_origins": PAGE, "s3.domain": "s3.localhost",
        "edge.buckets": origin.setting("media", public_read=True, fresh="forever")})


@pytest.fixture
def plain(server):
    """Sends a request without a signature: (status, headers, body)."""
    def send(method, target, headers=None, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", server.s3_port, timeout=30)
        try:
            connection.request(method, target, body=body, headers=headers or {})
            response = connection.getresponse()
            return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
        finally:
            connection.close()

    return send


def code(answer):
    status, headers, text = answer
    found = text.decode().partition("<Code>")[2].partition("</Code>")[0]
    return status, found or headers.get("x-minio-error-code")


def test_objects_of_a_public_bucket(server, plain):
    s3 = server.s3()
    for bucket in ("open", "closed"):
        s3.create_bucket(Bucket=bucket)
        s3.put_object(Bucket=bucket, Key="a b/ü.mp4", Body=b"0123456789", ContentType="video/mp4")
    path = "/open/" + urllib.parse.quote("a b/ü.mp4")
    status, headers, data = plain("GET", path)
    assert (status, data, headers["content-type"], headers["accept-ranges"]) == (200, b"0123456789", "video/mp4", "bytes")
    etag = headers["etag"]
    status, headers, data = plain("GET", path, {"Range": "bytes=-3"})
    assert (status, data, headers["content-range"]) == (206, b"789", "bytes 7-9/10")
    assert plain("GET", path, {"If-None-Match": etag})[0] == 304
    assert plain("GET", path, {"If-Match": '"other"'})[0] == 412
    status, headers, data = plain("HEAD", path)
    assert (status, headers["content-length"], headers["etag"], data) == (200, "10", etag, b"")
    assert plain("GET", path.removeprefix("/open"), {"Host": "open.s3.localhost"})[2] == b"0123456789"
    assert code(plain("GET", "/open/missing.mp4")) == (404, "NoSuchKey")
    assert code(plain("HEAD", "/open/missing.mp4")) == (404, "NoSuchKey")
    assert code(plain("GET", path.replace("open", "closed"))) == (403, "AccessDenied")
    for other in (path.replace("open", "absent"), path.replace("open", "none")):
        assert code(plain("GET", other)) == (404, "NoSuchBucket")
        assert code(plain("HEAD", other)) == (404, "NoSuchBucket")
    for query in ("1668123456", "download", "v=3", "x-id=GetObject"):
        assert plain("GET", f"{path}?{query}")[2] == b"0123456789"
    # The requests count as those with a signature do.
    requests = {name: value for name, value in server.metrics().items() if 'operation="GetObject"' in name}
    assert sum(requests.values()) > 0


def test_everything_else_needs_a_signature(server, plain):
    s3 = server.s3()
    s3.create_bucket(Bucket="open")
    s3.put_object(Bucket="open", Key="k", Body=b"data")
    for query in ("response-content-type=text/html", "response-content-disposition=attachment"):
        answer = plain("GET", f"/open/k?{query}")
        assert code(answer) == (400, "InvalidRequest") and b"anonymous" in answer[2]
    for method, target in (("GET", "/"), ("GET", "/open"), ("GET", "/open?list-type=2"), ("HEAD", "/open"),
                           ("GET", "/open?uploads"), ("GET", "/open/k?tagging"), ("GET", "/open/k?acl"),
                           ("GET", "/open/k?versionId=null"), ("GET", "/open/k?X-Amz-Expires=1"),
                           ("PUT", "/open/k"), ("PUT", "/open/new"), ("PUT", "/open/k?tagging"), ("DELETE", "/open/k"),
                           ("DELETE", "/open"), ("PUT", "/other"), ("POST", "/open/k?uploads"), ("POST", "/open?delete")):
        assert code(plain(method, target, body=b"x" if method in ("PUT", "POST") else None)) == (403, "AccessDenied"), (
            method, target)
    assert code(plain("PUT", "/open/copy", {"x-amz-copy-source": "/open/k"})) == (403, "AccessDenied")
    assert s3.get_object(Bucket="open", Key="k")["Body"].read() == b"data"
    assert [entry["Key"] for entry in s3.list_objects_v2(Bucket="open")["Contents"]] == ["k"]
    # A signature counts on a public bucket too.
    with fails("SignatureDoesNotMatch", 403):
        server.s3(secret="wrong").get_object(Bucket="open", Key="k")
    with fails("InvalidAccessKeyId", 403):
        server.s3(access="unknown").get_object(Bucket="open", Key="k")
    url = s3.generate_presigned_url("get_object", Params={"Bucket": "open", "Key": "k", "ResponseContentType": "x/y"})
    target = url.removeprefix(server.endpoint)
    status, headers, data = plain("GET", target)
    assert (status, headers["content-type"], data) == (200, "x/y", b"data")
    assert code(plain("GET", target.replace("x%2Fy", "x%2Fz"))) == (403, "SignatureDoesNotMatch")
    assert plain("GET", "/open/k", {"Authorization": "Bearer token"})[0] in (400, 403)


def test_a_public_bucket_with_an_origin(server, plain, origin):
    content = origin.put("live/one.m4s", 9 * MIB)
    origin.put("live/index.m3u8", 100, Content_Type="application/octet-stream")
    origin.put("live/notes.m3u8", 100, Content_Type="text/plain")
    status, headers, data = plain("GET", "/media/live/one.m4s", {"Range": f"bytes={9 * MIB - 5}-", "Origin": PAGE})
    assert (status, data) == (206, content.read(9 * MIB - 5, 9 * MIB))
    assert headers["content-type"] == "video/iso.segment"
    assert headers["access-control-allow-origin"] == PAGE
    assert {"*", "Content-Range", "ETag"} <= set(headers["access-control-expose-headers"].split(", "))
    assert plain("GET", "/media/live/one.m4s")[2] == content.read(0, content.size)
    assert plain("GET", "/media/live/one.m4s", {"If-None-Match": content.etag})[0] == 304
    assert plain("HEAD", "/media/live/index.m3u8")[1]["content-type"] == "application/vnd.apple.mpegurl"
    assert plain("GET", "/media/live/notes.m3u8")[1]["content-type"] == "text/plain"
    assert code(plain("GET", "/media/live/missing.m4s")) == (404, "NoSuchKey")
    s3 = server.s3()
    wait.until(lambda: "Contents" in s3.list_objects_v2(Bucket="media", Prefix="live/one"), 60, "the stored object")
    asked = len(origin.requests)
    assert plain("GET", "/media/live/one.m4s")[1]["content-type"] == "video/iso.segment"
    for method, target in (("GET", "/media"), ("PUT", "/media/live/one.m4s"), ("DELETE", "/media/live/one.m4s"),
                           ("GET", "/media/live/other.m4s?versionId=null"), ("GET", "/media/live/other.m4s?tagging")):
        assert code(plain(method, target)) == (403, "AccessDenied"), (method, target)
    assert code(plain("GET", "/media/live/other.m4s?response-expires=x")) == (400, "InvalidRequest")
    assert len(origin.requests) == asked, "what is refused does not reach the origin"
