"""Buckets whose origin is set, changed or removed between two starts."""

import time

import pytest

from harness import wait
from harness.origin import Content, Origin
from harness.sdk import body

MIB = 1 << 20


def stored(s3, bucket="media"):
    return [entry["Key"] for entry in s3.list_objects_v2(Bucket=bucket).get("Contents", [])]


def restart(edge, setting):
    """Starts the server again with this `edge.buckets` setting."""
    assert edge.stop() == 0
    edge.settings["edge.buckets"] = setting
    edge.start()
    return edge.s3()


def copy_to_another_key(s3):
    s3.copy_object(Bucket="media", Key="mine", CopySource="media/k")
    return "media", "mine"


def copy_with_tags(s3):
    s3.copy_object(Bucket="media", Key="k", CopySource="media/k", TaggingDirective="REPLACE", Tagging="a=b")
    return "media", "k"


def set_tags(s3):
    s3.put_object_tagging(Bucket="media", Key="k", Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
    return "media", "k"


def copy_to_another_bucket(s3):
    s3.create_bucket(Bucket="archive")
    s3.copy_object(Bucket="archive", Key="mine", CopySource="media/k")
    return "archive", "mine"


def copy_a_part(s3):
    upload = {"Bucket": "media", "Key": "mine",
              "UploadId": s3.create_multipart_upload(Bucket="media", Key="mine")["UploadId"]}
    part = s3.upload_part_copy(PartNumber=1, CopySource="media/k", **upload)["CopyPartResult"]
    s3.complete_multipart_upload(MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}, **upload)
    return "media", "mine"


@pytest.mark.parametrize("etag", ['"v1"', 'W/"v1"', ""])
@pytest.mark.parametrize("write", [copy_to_another_key, copy_with_tags, set_tags, copy_to_another_bucket, copy_a_part])
def test_a_clients_copy_of_a_cached_object_stays(make_edge, origin, write, etag):
    """Edge bucket, then ordinary bucket where a client writes, then edge bucket again."""
    content = origin.put("k", 100_000, etag=etag, Cache_Control="max-age=1")
    edge = make_edge()
    setting = edge.settings["edge.buckets"]
    body(edge.s3().get_object(Bucket="media", Key="k"))
    wait.until(lambda: stored(edge.s3()) == ["k"], 20, "the stored object")
    s3 = restart(edge, None)
    bucket, key = write(s3)
    head = s3.head_object(Bucket=bucket, Key=key)
    assert not head["ETag"].startswith("W/")
    s3.get_object(Bucket=bucket, Key=key, IfMatch=head["ETag"])["Body"].close()
    origin.objects.clear()
    s3 = restart(edge, setting if bucket == "media" else origin.setting(bucket))
    for _ in range(2):
        assert body(s3.get_object(Bucket=bucket, Key=key)) == content.read(0, content.size)
        assert key in stored(s3, bucket)
