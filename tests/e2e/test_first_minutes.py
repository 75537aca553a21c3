"""What clients of S3 and MinIO do in their first minutes, with their own defaults."""

import http.client
import json
import ssl
import sys
import urllib.parse

import boto3
import botocore.config
import pytest

from harness import sign
from harness.sdk import body, fails
from test_auth import fetch
from test_tools import BIN, run

NOT_CONFIGURED = {
    "get_bucket_policy": "NoSuchBucketPolicy", "get_bucket_policy_status": "NoSuchBucketPolicy",
    "get_bucket_cors": "NoSuchCORSConfiguration", "get_bucket_lifecycle_configuration": "NoSuchLifecycleConfiguration",
    "get_bucket_tagging": "NoSuchTagSet", "get_bucket_website": "NoSuchWebsiteConfiguration",
    "get_bucket_encryption": "ServerSideEncryptionConfigurationNotFoundError",
    "get_bucket_replication": "ReplicationConfigurationNotFoundError",
    "get_object_lock_configuration": "ObjectLockConfigurationNotFoundError",
    "get_public_access_block": "NoSuchPublicAccessBlockConfiguration",
    "get_bucket_ownership_controls": "OwnershipControlsNotFoundError",
}


def boto3_defaults(server, region="us-east-1", **options):
    """A client with nothing configured but the address and the keys."""
    return boto3.client("s3", endpoint_url=server.endpoint, region_name=region, verify=server.tls,
                        aws_access_key_id=sign.ACCESS, aws_secret_access_key=sign.SECRET, **options)


@pytest.fixture
def secure(make_server, certificate):
    """A server over TLS."""
    file, key = certificate
    server = make_server(settings={"tls.certificate": file, "tls.key": key})
    server.tls = str(file)
    return server


def send(server, url, method="GET", data=None, headers=None):
    """A request without the Content-Type that urllib adds to a body: (status, body)."""
    address = urllib.parse.urlsplit(url)
    if server.tls:
        context = ssl.create_default_context(cafile=server.tls)
        connection = http.client.HTTPSConnection(address.netloc, context=context, timeout=15)
    else:
        connection = http.client.HTTPConnection(address.netloc, timeout=15)
    try:
        connection.request(method, f"{address.path}?{address.query}", data, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def presigns(server, bucket):
    """Writes and reads objects by the URLs that boto3 presigns by default."""
    client = boto3_defaults(server)
    client.create_bucket(Bucket=bucket)
    plain = {"Bucket": bucket, "Key": "a b/\u00fc+1"}
    url = client.generate_presigned_url("put_object", Params=plain)
    assert "AWSAccessKeyId" in url
    assert send(server, url, "PUT", b"data")[0] == 200
    assert send(server, client.generate_presigned_url("get_object", Params=plain)) == (200, b"data")
    assert send(server, url)[0] == 403, "a PUT is no GET"
    described = {**plain, "Metadata": {"owner": "ann b"}, "ContentType": "text/plain", "Tagging": "a=b"}
    url = client.generate_presigned_url("put_object", Params=described)
    for headers in {}, {"Content-Type": "text/plain"}:
        assert send(server, url, "PUT", b"new", headers)[0] == 200
    assert send(server, url, "PUT", b"new", {"Content-Type": "text/html"})[0] == 403
    head = client.head_object(**plain)
    assert (head["Metadata"], head["ContentType"]) == ({"owner": "ann b"}, "text/plain")
    assert send(server, f"{url}&x-amz-copy-source={bucket}%2Fk", "PUT", b"")[0] == 403


def test_boto3_presigns_by_default(shared):
    presigns(shared, "presigned-by-default")


def test_boto3_presigns_by_default_over_tls(secure):
    presigns(secure, "presigned-over-tls")


def test_regions_over_tls(secure):
    for region in "US", "EU":
        client = boto3_defaults(secure, region)
        client.create_bucket(Bucket=f"in-{region.lower()}")
        client.put_object(Bucket=f"in-{region.lower()}", Key="k", Body=b"data")
        assert body(client.get_object(Bucket=f"in-{region.lower()}", Key="k")) == b"data"


def test_a_thousand_puts_over_one_tls_connection(secure):
    """boto3 sends the body in chunks with a trailer over TLS; each must leave the connection open."""
    client = boto3_defaults(secure, config=botocore.config.Config(max_pool_connections=1))
    client.create_bucket(Bucket="small")
    for number in range(1000):
        client.put_object(Bucket="small", Key=str(number), Body=b"x")
    assert len(client.list_objects_v2(Bucket="small")["Contents"]) == 1000
    pool = client._endpoint.http_session._manager.connection_from_url(secure.endpoint)
    assert (pool.num_requests, pool.num_connections) == (1002, 1)


def test_boto3_with_signature_version_2_in_the_header(shared):
    """botocore signs the path of a bucket with a slash that it does not send."""
    client = boto3_defaults(shared, config=botocore.config.Config(signature_version="s3", s3={"addressing_style": "path"}))
    client.create_bucket(Bucket="in-the-header")
    client.head_bucket(Bucket="in-the-header")
    client.put_object(Bucket="in-the-header", Key="a b", Body=b"data")
    assert [entry["Key"] for entry in client.list_objects(Bucket="in-the-header", Prefix="a")["Contents"]] == ["a b"]
    assert [entry["Key"] for entry in client.list_objects_v2(Bucket="in-the-header")["Contents"]] == ["a b"]
    client.get_bucket_location(Bucket="in-the-header")
    client.delete_objects(Bucket="in-the-header", Delete={"Objects": [{"Key": "a b"}]})
    client.delete_bucket(Bucket="in-the-header")


def test_signature_version_2_can_be_turned_off(make_server):
    server = make_server(settings={"s3.signature_v2": "false"})
    url = boto3_defaults(server).generate_presigned_url("get_object", Params={"Bucket": "b", "Key": "k"})
    status, text = fetch(url)
    assert status == 400 and b"s3v4" in text, (status, text)


@pytest.fixture
def s3cmd(shared, tmp_path):
    """s3cmd with its own defaults, but for the address and what a test sets."""

    def command(*arguments, **settings):
        config = tmp_path / "s3cfg"
        lines = {"access_key": sign.ACCESS, "secret_key": sign.SECRET, "host_base": shared.host,
                 "host_bucket": shared.host, "use_https": "False", **settings}
        config.write_text("[default]\n" + "".join(f"{name} = {value}\n" for name, value in lines.items()))
        return run(sys.executable, BIN / "s3cmd", "-c", config, "--no-progress", *arguments)

    return command


@pytest.mark.parametrize("region", [None, "US", "EU", "us_east_1", "local.host"])
def test_s3cmd_in_its_regions(s3cmd, tmp_path, region):
    settings = {} if region is None else {"bucket_location": region}
    bucket = f"s3cmd-{(region or 'default').lower().replace('_', '-')}"
    (tmp_path / "file").write_text("data")
    s3cmd("mb", f"s3://{bucket}", **settings)
    s3cmd("put", tmp_path / "file", f"s3://{bucket}/a b", **settings)
    assert "a b" in s3cmd("ls", f"s3://{bucket}", **settings)
    assert bucket in s3cmd("info", f"s3://{bucket}", **settings)


def test_s3cmd_with_signature_version_2(s3cmd, tmp_path):
    (tmp_path / "file").write_text("data")
    s3cmd("mb", "s3://s3cmd-v2", signature_v2="True")
    s3cmd("put", tmp_path / "file", "s3://s3cmd-v2/a b", signature_v2="True")
    url = s3cmd("signurl", "s3://s3cmd-v2/a b", "+60").strip()
    assert fetch(url) == (200, b"data")


def test_reads_of_what_no_bucket_has(s3, bucket):
    for operation, code in NOT_CONFIGURED.items():
        with fails(code, 404) as found:
            getattr(s3, operation)(Bucket=bucket)
        error = found.value.response["Error"]
        assert error["Message"] and error["BucketName"] == bucket, operation
    assert s3.get_bucket_request_payment(Bucket=bucket)["Payer"] == "BucketOwner"
    assert "LoggingEnabled" not in s3.get_bucket_logging(Bucket=bucket)
    assert "Status" not in s3.get_bucket_accelerate_configuration(Bucket=bucket)
    assert not s3.list_bucket_metrics_configurations(Bucket=bucket)["IsTruncated"]
    s3.delete_bucket_policy(Bucket=bucket)
    with fails("MalformedPolicy", 400):
        s3.put_bucket_policy(Bucket=bucket, Policy="{}")
    with fails("NotImplemented", 501) as found:
        s3.put_bucket_cors(Bucket=bucket, CORSConfiguration={"CORSRules": [
            {"AllowedMethods": ["GET"], "AllowedOrigins": ["*"]}]})
    assert "s3.allowed_origins" in found.value.response["Error"]["Message"]
    with fails("InvalidBucketName", 400) as found:
        s3.list_objects_v2(Bucket="Bad_Name")
    assert found.value.response["Error"]["BucketName"] == "Bad_Name"


def test_the_idiom_that_empties_a_bucket(s3, bucket):
    """`object_versions.delete()` lists versions and deletes each by its identifier."""
    for number in range(30):
        s3.put_object(Bucket=bucket, Key=f"a/{number} \u00fc", Body=b"x")
    pages = s3.get_paginator("list_object_versions").paginate(Bucket=bucket, PaginationConfig={"PageSize": 7})
    found = [version for page in pages for version in page["Versions"]]
    assert len({version["Key"] for version in found}) == len(found) == 30
    assert {version["VersionId"] for version in found} == {"null"} and all(version["IsLatest"] for version in found)
    resource = boto3.resource("s3", endpoint_url=s3.meta.endpoint_url, aws_access_key_id=sign.ACCESS,
                              aws_secret_access_key=sign.SECRET, region_name="us-east-1")
    resource.Bucket(bucket).object_versions.delete()
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 0


def test_a_completion_whose_answer_was_lost(s3, bucket):
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    tag = s3.upload_part(Bucket=bucket, Key="k", UploadId=upload, PartNumber=1, Body=b"part")["ETag"]
    complete = {"Bucket": bucket, "Key": "k", "UploadId": upload,
                "MultipartUpload": {"Parts": [{"PartNumber": 1, "ETag": tag}]}}
    first, second = s3.complete_multipart_upload(**complete), s3.complete_multipart_upload(**complete)
    assert all(first[name] == second[name] for name in ("ETag", "Location", "Key"))
    s3.put_object(Bucket=bucket, Key="k", Body=b"new")
    with fails("NoSuchUpload", 404):
        s3.complete_multipart_upload(**complete)
    assert body(s3.get_object(Bucket=bucket, Key="k")) == b"new"


def test_aws_cli_lists_versions_and_reads_configurations(shared, bucket, tmp_path, s3):
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    env = {"AWS_ACCESS_KEY_ID": sign.ACCESS, "AWS_SECRET_ACCESS_KEY": sign.SECRET, "AWS_DEFAULT_REGION": "EU",
           "AWS_CONFIG_FILE": str(tmp_path / "none"), "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
           "AWS_PAGER": ""}
    cli = [sys.executable, BIN / "aws", "--endpoint-url", shared.endpoint]
    listed = json.loads(run(*cli, "s3api", "list-object-versions", "--bucket", bucket, **env))
    assert [version["VersionId"] for version in listed["Versions"]] == ["null"]
    url = run(*cli, "s3", "presign", f"s3://{bucket}/k", **env).strip()
    assert fetch(url) == (200, b"x")
