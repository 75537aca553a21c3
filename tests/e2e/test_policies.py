"""Bucket policies: what clients without keys can do, through the clients that people use."""

import json
import subprocess
import sys

import boto3
import botocore
import botocore.config
import pytest
from test_tools import BIN, aws, run, s3cmd  # noqa: F401 (fixtures)

from harness import sign
from harness.sdk import body, fails, keys

MIB = 1 << 20


def allow(actions, resources, **more):
    return {"Effect": "Allow", "Principal": {"AWS": ["*"]}, "Action": [f"s3:{action}" for action in actions],
            "Resource": [f"arn:aws:s3:::{name}" for name in resources], **more}


def policy(*statements):
    return json.dumps({"Version": "2012-10-17", "Statement": statements})


def anonymous(server):
    """A boto3 client without keys."""
    config = botocore.config.Config(signature_version=botocore.UNSIGNED, s3={"addressing_style": "path"},
                                    retries={"total_max_attempts": 1, "mode": "standard"})
    return boto3.client("s3", endpoint_url=server.endpoint, region_name=sign.REGION, config=config)


@pytest.fixture
def guest(shared):
    return anonymous(shared)


def test_a_bucket_for_downloads(s3, bucket, guest):
    s3.put_object(Bucket=bucket, Key="photos/a b.jpg", Body=b"photo")
    s3.put_object(Bucket=bucket, Key="private/a", Body=b"secret")
    with fails("NoSuchBucketPolicy", 404):
        s3.get_bucket_policy(Bucket=bucket)
    text = policy(allow(["GetObject"], [f"{bucket}/photos/*"]),
                  allow(["ListBucket"], [bucket], Condition={"StringLike": {"s3:prefix": "photos/*"}}))
    s3.put_bucket_policy(Bucket=bucket, Policy=text)
    assert s3.get_bucket_policy(Bucket=bucket)["Policy"] == text
    assert s3.get_bucket_policy_status(Bucket=bucket)["PolicyStatus"]["IsPublic"]
    assert body(guest.get_object(Bucket=bucket, Key="photos/a b.jpg")) == b"photo"
    assert body(guest.get_object(Bucket=bucket, Key="photos/a b.jpg", Range="bytes=1-2")) == b"ho"
    assert keys(guest, bucket, Prefix="photos/") == ["photos/a b.jpg"]
    for refused in (lambda: guest.get_object(Bucket=bucket, Key="private/a"),
                    lambda: guest.get_object(Bucket=bucket, Key="photos/none"),
                    lambda: guest.list_objects_v2(Bucket=bucket),
                    lambda: guest.list_objects_v2(Bucket=bucket, Prefix="private/"),
                    lambda: guest.put_object(Bucket=bucket, Key="photos/new", Body=b"x"),
                    lambda: guest.delete_object(Bucket=bucket, Key="photos/a b.jpg"),
                    lambda: guest.copy_object(Bucket=bucket, Key="photos/new", CopySource=f"{bucket}/private/a"),
                    lambda: guest.get_bucket_policy(Bucket=bucket),
                    lambda: guest.delete_bucket_policy(Bucket=bucket),
                    lambda: guest.put_bucket_policy(Bucket=bucket, Policy=text), guest.list_buckets):
        with fails("AccessDenied", 403):
            refused()
    s3.delete_bucket_policy(Bucket=bucket)
    with fails("AccessDenied", 403):
        guest.get_object(Bucket=bucket, Key="photos/a b.jpg")


def test_a_bucket_for_uploads(s3, bucket, guest, tmp_path, rng):
    s3.put_bucket_policy(Bucket=bucket, Policy=policy(
        allow(["PutObject", "AbortMultipartUpload", "ListMultipartUploadParts"], [f"{bucket}/in/*"])))
    large = tmp_path / "large"
    large.write_bytes(rng.randbytes(20 * MIB))
    guest.upload_file(str(large), bucket, "in/large")
    guest.put_object(Bucket=bucket, Key="in/small", Body=b"small", ContentType="text/plain")
    assert body(s3.get_object(Bucket=bucket, Key="in/large")) == large.read_bytes()
    assert s3.get_object(Bucket=bucket, Key="in/small")["ContentType"] == "text/plain"
    with fails("AccessDenied", 403):
        guest.get_object(Bucket=bucket, Key="in/small")
    with fails("AccessDenied", 403):
        guest.put_object(Bucket=bucket, Key="elsewhere", Body=b"x")
    with fails("AccessDenied", 403):
        guest.create_multipart_upload(Bucket=bucket, Key="elsewhere")


def test_a_policy_survives_a_crash_and_counts_at_once(make_server):
    server = make_server()
    s3, guest = server.s3(), anonymous(server)
    s3.create_bucket(Bucket="media")
    s3.put_object(Bucket="media", Key="k", Body=b"data")
    s3.put_bucket_policy(Bucket="media", Policy=policy(allow(["GetObject"], ["media/*"])))
    s3.put_public_access_block(Bucket="media", PublicAccessBlockConfiguration={"BlockPublicPolicy": True})
    server.kill()
    server.start()
    s3, guest = server.s3(), anonymous(server)
    assert body(guest.get_object(Bucket="media", Key="k")) == b"data"
    with fails("AccessDenied", 403):
        s3.put_bucket_policy(Bucket="media", Policy=policy(allow(["PutObject"], ["media/*"])))
    s3.put_public_access_block(Bucket="media", PublicAccessBlockConfiguration={"RestrictPublicBuckets": True})
    with fails("AccessDenied", 403):
        guest.get_object(Bucket="media", Key="k")
    s3.delete_public_access_block(Bucket="media")
    assert body(guest.get_object(Bucket="media", Key="k")) == b"data"


def test_only_clients_of_a_network(make_server):
    """The address of a client behind a trusted proxy is the one that the proxy names."""
    server = make_server(settings={"limits.trusted_proxies": "127.0.0.1"})
    s3 = server.s3()
    s3.create_bucket(Bucket="media")
    s3.put_object(Bucket="media", Key="k", Body=b"data")
    condition = {"IpAddress": {"aws:SourceIp": "192.0.2.0/24"}, "Bool": {"aws:SecureTransport": "true"}}
    s3.put_bucket_policy(Bucket="media", Policy=policy(allow(["GetObject"], ["media/*"], Condition=condition)))
    assert not s3.get_bucket_policy_status(Bucket="media")["PolicyStatus"]["IsPublic"]

    def status(address, proto="https"):
        connection = server.connect()
        connection.request("GET", "/media/k", headers={"X-Forwarded-For": address, "X-Forwarded-Proto": proto})
        response = connection.getresponse()
        response.read()
        connection.close()
        return response.status

    assert [status("192.0.2.9"), status("192.0.2.9", "http"), status("198.51.100.9"),
            status("192.0.2.9, 198.51.100.9")] == [200, 403, 403, 403]


def test_command_line_tools(s3, bucket, shared, aws, s3cmd, tmp_path):  # noqa: F811
    document = tmp_path / "policy.json"
    document.write_text(policy(allow(["GetObject"], [f"{bucket}/*"]), allow(["ListBucket"], [bucket])))
    s3.put_object(Bucket=bucket, Key="k", Body=b"data")
    unsigned = [sys.executable, BIN / "aws", "--endpoint-url", shared.endpoint, "--no-sign-request", "s3"]
    aws("s3api", "put-bucket-policy", "--bucket", bucket, "--policy", f"file://{document}")
    assert json.loads(aws("s3api", "get-bucket-policy-status", "--bucket", bucket))["PolicyStatus"]["IsPublic"] is True
    run(*unsigned, "cp", "--only-show-errors", f"s3://{bucket}/k", tmp_path / "copy", AWS_DEFAULT_REGION=sign.REGION)
    assert (tmp_path / "copy").read_bytes() == b"data"
    assert run(*unsigned, "ls", f"s3://{bucket}/", AWS_DEFAULT_REGION=sign.REGION).split()[-1] == "k"
    curl = ["curl", "-s", "-o", tmp_path / "out", "-w", "%{http_code}", f"{shared.endpoint}/{bucket}/k"]
    assert run(*curl) == "200"
    refused = subprocess.run([*map(str, unsigned), "rm", f"s3://{bucket}/k"], capture_output=True, text=True, check=False)
    assert refused.returncode != 0 and "AccessDenied" in refused.stderr
    s3cmd("delpolicy", f"s3://{bucket}")
    assert run(*curl) == "403"
    s3cmd("setpolicy", document, f"s3://{bucket}")
    assert run(*curl) == "200" and '"Action"' in s3cmd("info", f"s3://{bucket}")
