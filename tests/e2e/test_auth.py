"""Signatures, and requests that are refused."""

import datetime
import urllib.error
import urllib.parse
import urllib.request

import boto3

from harness import sign
from harness.sdk import body, fails


def fetch(url, method="GET", data=None, headers=None):
    request = urllib.request.Request(url, data=data, method=method, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=15) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_presigned_get_and_put(s3, bucket):
    url = s3.generate_presigned_url("put_object", Params={"Bucket": bucket, "Key": "a b/ü"}, ExpiresIn=60)
    assert fetch(url, "PUT", b"presigned")[0] == 200
    url = s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "a b/ü"}, ExpiresIn=60)
    assert fetch(url) == (200, b"presigned")
    assert fetch(url, "PUT", b"x")[0] == 403
    url = s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "a b/ü",
                                                          "ResponseContentType": "x/y"}, ExpiresIn=60)
    assert fetch(url)[0] == 200
    status, text = fetch(url.replace("x%2Fy", "x%2Fz"))
    assert status == 403 and b"SignatureDoesNotMatch" in text


def test_a_presigned_put_allows_only_that_put(s3, bucket):
    """The holder of a URL to put one object must not read others, nor set headers that were not
    signed."""
    s3.put_object(Bucket=bucket, Key="secret", Body=b"secret")
    url = s3.generate_presigned_url("put_object", Params={"Bucket": bucket, "Key": "mine"}, ExpiresIn=60)
    for name, value in (("x-amz-copy-source", f"{bucket}/secret"), ("x-amz-tagging", "a=b"), ("x-amz-meta-a", "b"),
                        ("x-amz-acl", "public-read"), ("x-steadfast-durability", "async")):
        status, text = fetch(url, "PUT", b"mine", {name: value})
        assert status == 403 and b"AccessDenied" in text and b"not signed" in text, (name, status, text)
        with fails("404"):
            s3.head_object(Bucket=bucket, Key="mine")
    assert fetch(url, "PUT", b"mine", {"content-type": "text/plain"})[0] == 200
    got = s3.get_object(Bucket=bucket, Key="mine")
    assert body(got) == b"mine" and got["Metadata"] == {}
    # When signed, the headers take effect.
    url = s3.generate_presigned_url("put_object", Params={"Bucket": bucket, "Key": "mine", "Metadata": {"a": "b"}})
    assert fetch(url, "PUT", b"more")[0] == 403
    assert fetch(url, "PUT", b"more", {"x-amz-meta-a": "b"})[0] == 200
    assert s3.head_object(Bucket=bucket, Key="mine")["Metadata"] == {"a": "b"}


def test_headers_in_the_query_string_of_a_presigned_url(shared, s3, bucket):
    """The SDKs for JavaScript and Ruby move headers there."""
    path = f"/{bucket}/k"

    def put(query):
        return fetch(f"{shared.endpoint}{path}?{sign.presigned_query('PUT', shared.host, path, query)}", "PUT", b"data")

    assert put({"x-amz-meta-owner": "ann", "X-Amz-Tagging": "a=b%20c", "x-amz-acl": "private", "x-id": "PutObject",
                "x-amz-checksum-crc32": "AAAAAA==", "x-amz-sdk-checksum-algorithm": "CRC32"})[0] == 200
    got = s3.get_object(Bucket=bucket, Key="k")
    assert body(got) == b"data" and got["Metadata"] == {"owner": "ann"}
    assert s3.get_object_tagging(Bucket=bucket, Key="k")["TagSet"] == [{"Key": "a", "Value": "b c"}]
    for name, value, status, code in (("x-amz-storage-class", "GLACIER", 400, b"InvalidStorageClass"),
                                      ("x-amz-server-side-encryption", "AES256", 501, b"NotImplemented"),
                                      ("x-amz-object-lock-mode", "COMPLIANCE", 400, b"InvalidRequest"),
                                      ("x-amz-copy-source", f"{bucket}/absent", 404, b"NoSuchKey")):
        refused, text = put({name: value})
        assert refused == status and b"<Code>" + code + b"</Code>" in text, (name, refused, text)
    s3.put_object(Bucket=bucket, Key="a b", Body=b"copied")
    status, text = put({"x-amz-copy-source": f"{bucket}/a+b", "x-amz-metadata-directive": "REPLACE",
                        "x-amz-meta-owner": "bob"})
    assert status == 200 and b"CopyObjectResult" in text
    got = s3.get_object(Bucket=bucket, Key="k")
    assert body(got) == b"copied" and got["Metadata"] == {"owner": "bob"}


def test_presigned_url_expires(s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    past = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(minutes=10)
    url = signed_at(s3, past, bucket)
    status, text = fetch(url)
    assert status == 403 and b"AccessDenied" in text and b"xpired" in text, text


def signed_at(s3, when, bucket):
    """A presigned URL for 60 seconds from `when`."""
    endpoint = s3.meta.endpoint_url
    host = urllib.parse.urlparse(endpoint).netloc
    date = sign.amz_date(when)
    query = {"X-Amz-Algorithm": "AWS4-HMAC-SHA256", "X-Amz-Credential": f"{sign.ACCESS}/{sign.scope(date)}",
             "X-Amz-Date": date, "X-Amz-Expires": "60", "X-Amz-SignedHeaders": "host"}
    query["X-Amz-Signature"] = sign.signature("GET", f"/{bucket}/k", query, {"host": host}, sign.UNSIGNED, date)
    return f"{endpoint}/{bucket}/k?{sign.canonical_query(query)}"


def test_wrong_credentials(shared):
    with fails("InvalidAccessKeyId", 403):
        shared.s3(access="unknown").list_buckets()
    with fails("SignatureDoesNotMatch", 403):
        shared.s3(secret="wrong").list_buckets()


def test_no_credentials(shared, s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    for method, path in (("GET", "/"), ("GET", f"/{bucket}"), ("GET", f"/{bucket}/k"), ("PUT", f"/{bucket}/k"),
                         ("DELETE", f"/{bucket}/k"), ("HEAD", f"/{bucket}/k")):
        status, text = fetch(shared.endpoint + path, method, b"y" if method == "PUT" else None)
        assert status == 403, (method, path, status)
        assert method == "HEAD" or b"AccessDenied" in text
    assert body(s3.get_object(Bucket=bucket, Key="k")) == b"x"


def test_old_requests_are_refused(shared):
    """A recorded request must expire."""
    old = sign.amz_date(datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(hours=1))
    headers = sign.headers_for("GET", shared.host, "/", date=old)
    status, text = fetch(shared.endpoint + "/", headers={k: v for k, v in headers.items() if k != "host"})
    assert status == 403 and b"RequestTimeTooSkewed" in text, (status, text)


def test_tampered_headers_are_refused(shared, bucket):
    headers = sign.headers_for("PUT", shared.host, f"/{bucket}/k", headers={"x-amz-meta-a": "1"})
    headers["x-amz-meta-a"] = "2"
    connection = shared.connect()
    connection.request("PUT", f"/{bucket}/k", body=b"x", headers=headers)
    response = connection.getresponse()
    assert response.status == 403 and b"SignatureDoesNotMatch" in response.read()


def test_a_tampered_chunk_is_refused(shared, s3, bucket):
    data = [b"a" * 70_000, b"b" * 70_000]
    path, date = f"/{bucket}/k", sign.amz_date()
    headers = sign.headers_for("PUT", shared.host, path, headers={
        "content-encoding": "aws-chunked", "x-amz-decoded-content-length": "140000"},
        payload_hash="STREAMING-AWS4-HMAC-SHA256-PAYLOAD", date=date)
    whole = sign.chunked_body(data, headers["authorization"].rpartition("Signature=")[2], date)
    for sent, expected in ((whole.replace(b"bbb", b"bbX", 1), 403), (whole, 200)):
        connection = shared.connect()
        connection.request("PUT", path, body=sent, headers=headers)
        response = connection.getresponse()
        text = response.read()
        assert response.status == expected, text
        if expected != 200:
            assert b"SignatureDoesNotMatch" in text
            with fails("404"):
                s3.head_object(Bucket=bucket, Key="k")
        connection.close()
    assert body(s3.get_object(Bucket=bucket, Key="k")) == b"".join(data)


def test_an_error_is_xml_with_a_request_id(shared):
    status, headers, text = shared.request("GET", "/absent-bucket/k")
    assert status == 404 and headers["content-type"].startswith("application/xml")
    assert text.startswith(b"<?xml") and b"<Code>NoSuchBucket</Code>" in text and headers["x-amz-request-id"]


def test_unsupported_operations_are_refused(shared, bucket):
    """Unsupported S3 operations are refused as a whole, never half done."""
    for query in ({"replication": ""}, {"website": ""}):
        status, _, text = shared.request("PUT", f"/{bucket}", query=query)
        assert status == 501 and b"NotImplemented" in text, (query, status, text)
