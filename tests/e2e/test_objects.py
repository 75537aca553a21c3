"""Objects: put, get, head, delete, copy, conditions, ranges, metadata."""

import base64
import datetime
import hashlib

import pytest

from harness.sdk import body, fails, header
from harness.server import in_threads

SIZES = [0, 1, 511, 512, 4095, 4096, 4097, 65_536, 65_537, 1_048_575, 1_048_576, 1_048_577, 3_500_001, 12_000_000]


@pytest.mark.parametrize("size", SIZES)
def test_reads_return_what_was_written(s3, bucket, rng, size):
    data = rng.randbytes(size)
    put = s3.put_object(Bucket=bucket, Key="k", Body=data)
    assert put["ETag"] == f'"{hashlib.md5(data).hexdigest()}"'
    assert header(put, "x-steadfast-durable") == "true"
    got = s3.get_object(Bucket=bucket, Key="k")
    assert got["ContentLength"] == size and got["ETag"] == put["ETag"]
    assert body(got) == data
    head = s3.head_object(Bucket=bucket, Key="k")
    assert head["ContentLength"] == size and head["ETag"] == put["ETag"]
    age = datetime.datetime.now(datetime.timezone.utc) - head["LastModified"]
    assert abs(age.total_seconds()) < 30


def test_a_write_replaces(s3, bucket):
    for data in (b"first", b"second, longer", b"3"):
        s3.put_object(Bucket=bucket, Key="k", Body=data)
        assert body(s3.get_object(Bucket=bucket, Key="k")) == data
    s3.delete_object(Bucket=bucket, Key="k")
    with fails("NoSuchKey", 404):
        s3.get_object(Bucket=bucket, Key="k")
    with fails("404", 404):
        s3.head_object(Bucket=bucket, Key="k")


def test_deleting_an_absent_object_succeeds(s3, bucket):
    answer = s3.delete_object(Bucket=bucket, Key="never")
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 204


def test_system_headers_and_metadata_come_back(s3, bucket):
    expires = datetime.datetime(2030, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)
    s3.put_object(Bucket=bucket, Key="k", Body=b"x", ContentType="text/x-test; charset=utf-8", CacheControl="max-age=60",
                  ContentDisposition='attachment; filename="a b.txt"', ContentEncoding="gzip", ContentLanguage="de",
                  Expires=expires, Metadata={"one": "1", "mixed-case": "Value With Spaces"})
    for got in (s3.get_object(Bucket=bucket, Key="k"), s3.head_object(Bucket=bucket, Key="k")):
        assert got["ContentType"] == "text/x-test; charset=utf-8"
        assert got["CacheControl"] == "max-age=60"
        assert got["ContentDisposition"] == 'attachment; filename="a b.txt"'
        assert got["ContentEncoding"] == "gzip"
        assert got["ContentLanguage"] == "de"
        assert got["ExpiresString"] == "Wed, 02 Jan 2030 03:04:05 GMT"
        assert got["Metadata"] == {"one": "1", "mixed-case": "Value With Spaces"}


def test_default_content_type(s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    assert s3.head_object(Bucket=bucket, Key="k")["ContentType"] == "binary/octet-stream"


def test_response_headers_can_be_overridden(s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    got = s3.get_object(Bucket=bucket, Key="k", ResponseContentType="a/b", ResponseContentDisposition="inline",
                        ResponseCacheControl="no-store", ResponseContentLanguage="fr", ResponseContentEncoding="br")
    assert (got["ContentType"], got["ContentDisposition"], got["CacheControl"], got["ContentLanguage"],
            got["ContentEncoding"]) == ("a/b", "inline", "no-store", "fr", "br")


@pytest.mark.parametrize("size", [10, 100_000, 3_000_000])
def test_ranges(s3, bucket, rng, size):
    data = rng.randbytes(size)
    s3.put_object(Bucket=bucket, Key="k", Body=data)
    for first, last in [(0, 0), (0, 4), (3, 7), (size - 1, size - 1), (5, size + 100), (0, size - 1)]:
        got = s3.get_object(Bucket=bucket, Key="k", Range=f"bytes={first}-{last}")
        assert got["ResponseMetadata"]["HTTPStatusCode"] == 206
        assert got["ContentRange"] == f"bytes {first}-{min(last, size - 1)}/{size}"
        assert body(got) == data[first:last + 1]
    assert body(s3.get_object(Bucket=bucket, Key="k", Range="bytes=4-")) == data[4:]
    assert body(s3.get_object(Bucket=bucket, Key="k", Range="bytes=-3")) == data[-3:]
    assert body(s3.get_object(Bucket=bucket, Key="k", Range=f"bytes=-{size + 10}")) == data
    for _ in range(20):
        first = rng.randrange(size)
        last = rng.randrange(first, size)
        assert body(s3.get_object(Bucket=bucket, Key="k", Range=f"bytes={first}-{last}")) == data[first:last + 1]


def test_ranges_outside(s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"0123456789")
    with fails("InvalidRange", 416):
        s3.get_object(Bucket=bucket, Key="k", Range="bytes=10-")
    with fails("InvalidRange", 416):
        s3.get_object(Bucket=bucket, Key="k", Range="bytes=-0")


def test_if_range(shared, s3, bucket):
    etag = s3.put_object(Bucket=bucket, Key="k", Body=b"0123456789")["ETag"]
    modified = header(s3.head_object(Bucket=bucket, Key="k"), "last-modified")
    url = s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "k"})
    for if_range, applies in [(etag, True), (modified, True), ('"other"', False), (f"W/{etag}", False),
                              ("Tue, 01 Jan 2030 00:00:00 GMT", False)]:
        connection = shared.connect()
        connection.request("GET", url[url.index("/", 8):], headers={"Range": "bytes=2-4", "If-Range": if_range})
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == ((206, b"234") if applies else (200, b"0123456789")), if_range
        connection.close()


def test_conditional_reads(s3, bucket):
    etag = s3.put_object(Bucket=bucket, Key="k", Body=b"x")["ETag"]
    modified = s3.head_object(Bucket=bucket, Key="k")["LastModified"]
    earlier, later = modified - datetime.timedelta(hours=1), modified + datetime.timedelta(seconds=1)
    for call in (s3.get_object, s3.head_object):
        call(Bucket=bucket, Key="k", IfMatch=etag)
        call(Bucket=bucket, Key="k", IfNoneMatch='"other"')
        call(Bucket=bucket, Key="k", IfModifiedSince=earlier)
        call(Bucket=bucket, Key="k", IfUnmodifiedSince=modified)
        precondition = "PreconditionFailed" if call == s3.get_object else "412"
        with fails(precondition, 412):
            call(Bucket=bucket, Key="k", IfMatch='"other"')
        with fails("304", 304):
            call(Bucket=bucket, Key="k", IfNoneMatch=etag)
        with fails("304", 304):
            call(Bucket=bucket, Key="k", IfModifiedSince=modified)
        with fails(precondition, 412):
            call(Bucket=bucket, Key="k", IfUnmodifiedSince=earlier)
        # RFC 9110: a matching entity tag takes precedence over the date.
        call(Bucket=bucket, Key="k", IfMatch=etag, IfUnmodifiedSince=earlier)
        call(Bucket=bucket, Key="k", IfNoneMatch='"other"', IfModifiedSince=later)


def test_conditional_writes(s3, bucket):
    etag = s3.put_object(Bucket=bucket, Key="k", Body=b"1", IfNoneMatch="*")["ETag"]
    with fails("PreconditionFailed", 412):
        s3.put_object(Bucket=bucket, Key="k", Body=b"2", IfNoneMatch="*")
    with fails("PreconditionFailed", 412):
        s3.put_object(Bucket=bucket, Key="k", Body=b"2", IfMatch='"other"')
    assert body(s3.get_object(Bucket=bucket, Key="k")) == b"1"
    s3.put_object(Bucket=bucket, Key="k", Body=b"2", IfMatch=etag)
    assert body(s3.get_object(Bucket=bucket, Key="k")) == b"2"
    with fails("NoSuchKey", 404):
        s3.put_object(Bucket=bucket, Key="absent", Body=b"2", IfMatch=etag)


def test_one_of_many_concurrent_creates_wins(shared, bucket):
    """If-None-Match decides against pending writes too."""
    for round_number in range(5):
        def put(number):
            return shared.request("PUT", f"/{bucket}/k{round_number}", b"%d" % number, {"If-None-Match": "*"})[0]
        statuses = in_threads(16, put)
        assert sorted(set(statuses)) in ([200, 412], [200, 409], [200, 409, 412]), statuses
        assert statuses.count(200) == 1
        winner = statuses.index(200)
        assert shared.request("GET", f"/{bucket}/k{round_number}")[2] == b"%d" % winner


def test_copy(s3, bucket, rng):
    for size in (0, 100, 2_500_000):
        data = rng.randbytes(size)
        s3.put_object(Bucket=bucket, Key="from/a b", Body=data, ContentType="a/b", Metadata={"k": "v"})
        copied = s3.copy_object(Bucket=bucket, Key="to/ü", CopySource={"Bucket": bucket, "Key": "from/a b"})
        assert copied["CopyObjectResult"]["ETag"] == f'"{hashlib.md5(data).hexdigest()}"'
        got = s3.get_object(Bucket=bucket, Key="to/ü")
        assert body(got) == data and got["ContentType"] == "a/b" and got["Metadata"] == {"k": "v"}
        # The copy is an object of its own.
        s3.delete_object(Bucket=bucket, Key="from/a b")
        assert body(s3.get_object(Bucket=bucket, Key="to/ü")) == data


def test_a_plus_in_the_source_of_a_copy_is_a_blank(s3, shared, bucket):
    """The SDK for Ruby encodes blanks this way."""
    for key in ("a b", "a+b"):
        s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
    for source, key in ((f"{bucket}/a+b", "a b"), (f"/{bucket}/a%20b", "a b"), (f"/{bucket}/a%2Bb", "a+b")):
        assert shared.request("PUT", f"/{bucket}/c", None, {"x-amz-copy-source": source})[0] == 200
        assert body(s3.get_object(Bucket=bucket, Key="c")) == key.encode()


def test_copy_to_another_bucket_and_over_itself(s3, bucket):
    s3.create_bucket(Bucket=bucket + "-b")
    s3.put_object(Bucket=bucket, Key="k", Body=b"data", Metadata={"old": "1"})
    s3.copy_object(Bucket=bucket + "-b", Key="k2", CopySource=f"{bucket}/k")
    assert body(s3.get_object(Bucket=bucket + "-b", Key="k2")) == b"data"
    s3.copy_object(Bucket=bucket, Key="k", CopySource=f"{bucket}/k", MetadataDirective="REPLACE", ContentType="x/y",
                   Metadata={"new": "2"})
    got = s3.get_object(Bucket=bucket, Key="k")
    assert body(got) == b"data" and got["Metadata"] == {"new": "2"} and got["ContentType"] == "x/y"
    with fails("InvalidRequest", 400):
        s3.copy_object(Bucket=bucket, Key="k", CopySource=f"{bucket}/k")


def test_copy_conditions_and_errors(s3, bucket):
    etag = s3.put_object(Bucket=bucket, Key="k", Body=b"data")["ETag"]
    with fails("NoSuchKey", 404):
        s3.copy_object(Bucket=bucket, Key="c", CopySource=f"{bucket}/absent")
    with fails("NoSuchBucket", 404):
        s3.copy_object(Bucket=bucket, Key="c", CopySource="absent-bucket/k")
    with fails("PreconditionFailed", 412):
        s3.copy_object(Bucket=bucket, Key="c", CopySource=f"{bucket}/k", CopySourceIfMatch='"other"')
    with fails("PreconditionFailed", 412):
        s3.copy_object(Bucket=bucket, Key="c", CopySource=f"{bucket}/k", CopySourceIfNoneMatch=etag)
    s3.copy_object(Bucket=bucket, Key="c", CopySource=f"{bucket}/k", CopySourceIfMatch=etag)


def test_delete_objects(s3, bucket):
    for number in range(30):
        s3.put_object(Bucket=bucket, Key=f"k/{number} ü&<>", Body=b"x")
    answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": f"k/{n} ü&<>"} for n in range(25)] +
                                                      [{"Key": "absent"}]})
    assert len(answer["Deleted"]) == 26 and not answer.get("Errors")
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 5
    quiet = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "k/29 ü&<>"}], "Quiet": True})
    assert "Deleted" not in quiet


def test_durability_by_request(s3, shared, bucket):
    status, headers, _ = shared.request("PUT", f"/{bucket}/async", b"data", {"x-steadfast-durability": "async"})
    assert status == 200 and headers["x-steadfast-durable"] == "false"
    assert shared.request("GET", f"/{bucket}/async")[2] == b"data"
    status, headers, _ = shared.request("PUT", f"/{bucket}/sync", b"data", {"x-steadfast-durability": "sync"})
    assert status == 200 and headers["x-steadfast-durable"] == "true"
    status, _, text = shared.request("PUT", f"/{bucket}/x", b"data", {"x-steadfast-durability": "perhaps"})
    assert status == 400, text
    status, headers, _ = shared.request("DELETE", f"/{bucket}/async", None, {"x-steadfast-durability": "async"})
    assert status == 204 and headers["x-steadfast-durable"] == "false"


def test_keys_too_long(s3, bucket):
    s3.put_object(Bucket=bucket, Key="k" * 1024, Body=b"x")
    assert body(s3.get_object(Bucket=bucket, Key="k" * 1024)) == b"x"
    with fails("KeyTooLongError", 400):
        s3.put_object(Bucket=bucket, Key="k" * 1025, Body=b"x")


def test_content_md5(s3, shared, bucket):
    good = base64.b64encode(hashlib.md5(b"data").digest()).decode()
    bad = base64.b64encode(hashlib.md5(b"other").digest()).decode()
    assert shared.request("PUT", f"/{bucket}/k", b"data", {"content-md5": good})[0] == 200
    status, _, text = shared.request("PUT", f"/{bucket}/bad", b"data", {"content-md5": bad})
    assert status == 400 and b"<Code>BadDigest</Code>" in text
    status, _, text = shared.request("PUT", f"/{bucket}/bad", b"data", {"content-md5": "no digest"})
    assert status == 400 and b"<Code>InvalidDigest</Code>" in text
    with fails("404"):
        s3.head_object(Bucket=bucket, Key="bad")


def test_tags(s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"x", Tagging="one=1&two=a%20b")
    tags = lambda: {t["Key"]: t["Value"] for t in s3.get_object_tagging(Bucket=bucket, Key="k")["TagSet"]}  # noqa: E731
    assert tags() == {"one": "1", "two": "a b"}
    assert s3.get_object(Bucket=bucket, Key="k")["TagCount"] == 2
    etag = s3.head_object(Bucket=bucket, Key="k")["ETag"]
    s3.put_object_tagging(Bucket=bucket, Key="k", Tagging={"TagSet": [{"Key": "three", "Value": "ü"}]})
    assert tags() == {"three": "ü"}
    s3.copy_object(Bucket=bucket, Key="c", CopySource=f"{bucket}/k")
    assert s3.get_object_tagging(Bucket=bucket, Key="c")["TagSet"] == [{"Key": "three", "Value": "ü"}]
    s3.delete_object_tagging(Bucket=bucket, Key="k")
    assert tags() == {}
    got = s3.get_object(Bucket=bucket, Key="k")
    assert body(got) == b"x" and got["ETag"] == etag
    with fails("NoSuchKey", 404):
        s3.get_object_tagging(Bucket=bucket, Key="absent")


def test_tags_of_a_bucket(make_server):
    server = make_server()
    s3 = server.s3()
    s3.create_bucket(Bucket="photos")
    with fails("NoSuchTagSet", 404):
        s3.get_bucket_tagging(Bucket="photos")
    pairs = [{"Key": f"k{number:02}", "Value": "ü"} for number in range(50)]
    s3.put_bucket_tagging(Bucket="photos", Tagging={"TagSet": pairs})
    with fails("BadRequest", 400):
        s3.put_bucket_tagging(Bucket="photos", Tagging={"TagSet": [*pairs, {"Key": "more", "Value": ""}]})
    server.kill()
    server.start()
    s3 = server.s3()
    assert s3.get_bucket_tagging(Bucket="photos")["TagSet"] == pairs
    s3.delete_bucket_tagging(Bucket="photos")
    with fails("NoSuchTagSet", 404):
        s3.get_bucket_tagging(Bucket="photos")
    s3.create_bucket(Bucket="tagged", CreateBucketConfiguration={"Tags": pairs[:2]})
    assert s3.get_bucket_tagging(Bucket="tagged")["TagSet"] == pairs[:2]
    with fails("NoSuchBucket", 404):
        s3.put_bucket_tagging(Bucket="absent", Tagging={"TagSet": pairs})


@pytest.mark.parametrize("written,meant", [("<![CDATA[b + c]]>", "b + c"), ("a<![CDATA[b]]>c", "abc"),
                                           ("a<!-- x -->b<?y z?>c", "abc"), ("&#43;&#x41;", "+A")])
def test_text_of_tags(s3, shared, bucket, written, meant):
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    text = f"<Tagging><TagSet><Tag><Key>k</Key><Value>{written}</Value></Tag></TagSet></Tagging>".encode()
    assert shared.request("PUT", f"/{bucket}/k", text, query={"tagging": ""})[0] == 200
    assert s3.get_object_tagging(Bucket=bucket, Key="k")["TagSet"] == [{"Key": "k", "Value": meant}]


def test_attributes_of_an_object(s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"12345", ChecksumAlgorithm="SHA256")
    got = s3.get_object_attributes(Bucket=bucket, Key="k", ObjectAttributes=["ETag", "ObjectSize", "Checksum"])
    assert got["ObjectSize"] == 5 and got["ETag"].strip('"') == hashlib.md5(b"12345").hexdigest()
    assert got["Checksum"]["ChecksumSHA256"] == base64.b64encode(hashlib.sha256(b"12345").digest()).decode()


def test_cheap_entity_tags(make_server):
    """For clients that need no MD5: the tag does not look like one, and everything else is
    unchanged."""
    server = make_server(settings={"s3.etag": "fast"})
    s3 = server.s3()
    s3.create_bucket(Bucket="fast")
    etag = s3.put_object(Bucket="fast", Key="k", Body=b"x")["ETag"]
    assert len(etag.strip('"')) != 32
    assert s3.head_object(Bucket="fast", Key="k")["ETag"] == etag
    assert s3.put_object(Bucket="fast", Key="k", Body=b"y")["ETag"] != etag
    with fails("PreconditionFailed", 412):
        s3.put_object(Bucket="fast", Key="k", Body=b"z", IfMatch=etag)
    upload = s3.create_multipart_upload(Bucket="fast", Key="parts")["UploadId"]
    parts = [{"PartNumber": n, "ETag": s3.upload_part(Bucket="fast", Key="parts", UploadId=upload, PartNumber=n,
                                                      Body=b"p" * (5 << 20))["ETag"]} for n in (1, 2)]
    s3.complete_multipart_upload(Bucket="fast", Key="parts", UploadId=upload, MultipartUpload={"Parts": parts})
    assert body(s3.get_object(Bucket="fast", Key="parts")) == b"p" * (10 << 20)
