"""Unusual keys, through every operation."""

import urllib.request

import pytest

from harness.sdk import body, fails, keys

KEYS = ["plain", "with space", " leading", "trailing ", "a+b", "100%", "%41", "%2F", "a//b", "//", "/leading", "a/", "a/../b",
        "./x", "..", "ünïcödé", "日本語/キー", "😀", "q?a=b&c=d", "#hash", "semi;colon", "quote\"'`", "<&>", "back\\slash",
        "tab\tkey", "new\nline", "return\rkey", "both\r\nends", "a=b", "a,b", "[x]{y}|z", "~tilde", "*star*", "$dollar@at:colon!", "e\u0301", "\u00e9",
        "x" * 300]


@pytest.mark.parametrize("key", KEYS, ids=[ascii(key)[:40] for key in KEYS])
def test_a_key_through_every_operation(s3, bucket, key):
    s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
    assert body(s3.get_object(Bucket=bucket, Key=key)) == key.encode()
    s3.head_object(Bucket=bucket, Key=key)
    assert keys(s3, bucket) == [key]
    assert keys(s3, bucket, Prefix=key) == [key]
    assert [e["Key"] for e in s3.list_objects(Bucket=bucket)["Contents"]] == [key]
    s3.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": key})
    assert body(s3.get_object(Bucket=bucket, Key="copy")) == key.encode()
    s3.copy_object(Bucket=bucket, Key=key, CopySource={"Bucket": bucket, "Key": "copy"})
    url = s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": key})
    assert urllib.request.urlopen(url, timeout=10).read() == key.encode()
    upload = s3.create_multipart_upload(Bucket=bucket, Key=key)
    assert [u["Key"] for u in s3.list_multipart_uploads(Bucket=bucket)["Uploads"]] == [key]
    assert s3.list_parts(Bucket=bucket, Key=key, UploadId=upload["UploadId"])["Key"] == key
    s3.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload["UploadId"])
    deleted = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": key}, {"Key": "copy"}]})
    assert sorted(d["Key"] for d in deleted["Deleted"]) == sorted([key, "copy"])
    assert keys(s3, bucket) == []


def test_keys_are_listed_in_byte_order(s3, bucket):
    chosen = [key for key in KEYS if not set("\n\t\r") & set(key)]
    for key in chosen:
        s3.put_object(Bucket=bucket, Key=key, Body=b"")
    assert keys(s3, bucket) == sorted(chosen, key=str.encode)
    assert keys(s3, bucket, PaginationConfig={"PageSize": 3}) == sorted(chosen, key=str.encode)


def test_keys_that_xml_cannot_carry(s3, bucket):
    """They are put, listed and deleted; a key that no answer could name is refused beforehand."""
    for key in ("ok", "a\x10b", "\uffff"):
        s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
    for key in ("a\x10b", "\uffff"):
        with fails("MalformedXML", 400):
            s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "ok"}, {"Key": key}]})
        with fails("InvalidArgument", 400):
            s3.create_multipart_upload(Bucket=bucket, Key=key)
        s3.copy_object(Bucket=bucket, Key=key + "c", CopySource={"Bucket": bucket, "Key": key})
        assert body(s3.get_object(Bucket=bucket, Key=key + "c")) == key.encode()
    assert keys(s3, bucket) == ["a\x10b", "a\x10bc", "ok", "\uffff", "\uffffc"]
    for key in keys(s3, bucket):
        s3.delete_object(Bucket=bucket, Key=key)
    assert keys(s3, bucket) == []
