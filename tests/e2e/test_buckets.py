"""Buckets."""

import socket

from harness.sdk import fails, header


def test_life_of_a_bucket(s3):
    s3.create_bucket(Bucket="life-of-a-bucket")
    assert "life-of-a-bucket" in [b["Name"] for b in s3.list_buckets()["Buckets"]]
    s3.head_bucket(Bucket="life-of-a-bucket")
    assert "LocationConstraint" in s3.get_bucket_location(Bucket="life-of-a-bucket")
    s3.delete_bucket(Bucket="life-of-a-bucket")
    with fails("404", 404):
        s3.head_bucket(Bucket="life-of-a-bucket")
    assert "life-of-a-bucket" not in [b["Name"] for b in s3.list_buckets()["Buckets"]]


def test_a_bucket_that_exists(s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"kept")
    s3.create_bucket(Bucket=bucket)
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"kept"


def test_a_bucket_that_is_not_empty(s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    with fails("BucketNotEmpty", 409):
        s3.delete_bucket(Bucket=bucket)
    s3.delete_object(Bucket=bucket, Key="k")
    s3.delete_bucket(Bucket=bucket)


def test_no_such_bucket(s3):
    for call in (lambda: s3.list_objects_v2(Bucket="absent-bucket"), lambda: s3.list_objects(Bucket="absent-bucket"),
                 lambda: s3.put_object(Bucket="absent-bucket", Key="k", Body=b"x"),
                 lambda: s3.get_object(Bucket="absent-bucket", Key="k"),
                 lambda: s3.delete_object(Bucket="absent-bucket", Key="k"),
                 lambda: s3.delete_bucket(Bucket="absent-bucket"),
                 lambda: s3.get_bucket_location(Bucket="absent-bucket"),
                 lambda: s3.create_multipart_upload(Bucket="absent-bucket", Key="k")):
        with fails("NoSuchBucket", 404):
            call()


def test_invalid_bucket_names(shared):
    for name in ("ab", "Capital", "under_score", "-dash", "a" * 64):
        status, _, body = shared.request("PUT", f"/{name}")
        assert status == 400 and b"InvalidBucketName" in body, (name, status, body)


def test_any_region_is_served(shared):
    for region in ("eu-central-1", "auto", "garage"):
        client = shared.s3()
        client.meta.config.region_name = region
        client.list_buckets()


def test_location_constraint_is_accepted(s3):
    s3.create_bucket(Bucket="in-a-region", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    s3.head_bucket(Bucket="in-a-region")


def test_requests_have_ids(s3, bucket):
    assert header(s3.head_bucket(Bucket=bucket), "x-amz-request-id")


def test_virtual_host_style(shared, bucket, monkeypatch):
    """The bucket in the host name, where real SDKs put it."""
    resolve = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **more: resolve(
        "127.0.0.1" if str(host).endswith(".s3.localhost") else host, *rest, **more))
    client = shared.s3(s3={"addressing_style": "virtual"}, endpoint=f"http://s3.localhost:{shared.s3_port}")
    client.put_object(Bucket=bucket, Key="a/b c", Body=b"virtual")
    assert client.get_object(Bucket=bucket, Key="a/b c")["Body"].read() == b"virtual"
    assert [e["Key"] for e in client.list_objects_v2(Bucket=bucket)["Contents"]] == ["a/b c"]
    assert shared.s3().get_object(Bucket=bucket, Key="a/b c")["Body"].read() == b"virtual"
