"""Buckets whose origin is set, changed or removed between two starts."""

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


@pytest.fixture
def second():
    found = Origin()
    yield found
    found.close()


def other_setting(origin, second, how, content, **keys):
    """Stores the content under another origin or prefix; its setting."""
    if how == "prefix":
        origin.objects["new/k"] = content
        return origin.setting(**keys, origin=f"{origin.url}/vod/new")
    second.objects["k"] = content
    return second.setting(**keys)


@pytest.mark.parametrize("how", ["origin", "prefix"])
def test_left_over_segments_of_another_origin_are_not_used(make_edge, origin, second, how):
    """Same entity tag and size, as nginx makes tags of time and size, and other bytes."""
    old = origin.put("k", 16 * MIB, seed=1, etag='"5f-1000000"')
    new = Content(old.size, seed=2, etag=old.etag)
    keys = {"segment": "1 MiB", "fill": "wanted"}
    edge = make_edge(**keys)
    assert body(edge.s3().get_object(Bucket="media", Key="k", Range="bytes=0-3145727")) == old.read(0, 3 * MIB)
    wait.until(lambda: edge.status()["edge"]["buckets"][0]["fills"] == 0, 20, "the end of the fill")
    s3 = restart(edge, other_setting(origin, second, how, new, **keys))
    assert body(s3.get_object(Bucket="media", Key="k")) == new.read(0, new.size)
    wait.until(lambda: stored(s3) == ["k"], 20, "the stored object")
    assert body(s3.get_object(Bucket="media", Key="k")) == new.read(0, new.size)


@pytest.mark.parametrize("fresh", ["origin", "forever"])
@pytest.mark.parametrize("how", ["origin", "prefix"])
def test_a_stored_object_of_another_origin_is_fetched_again(make_edge, origin, second, how, fresh):
    lasting = {"etag": '"same"', "Cache_Control": "max-age=1, stale-while-revalidate=600"}
    old, new = origin.put("k", MIB, seed=1, **lasting), Content(MIB, seed=2, **lasting)
    edge = make_edge(fresh=fresh)
    setting = edge.settings["edge.buckets"]
    assert body(edge.s3().get_object(Bucket="media", Key="k")) == old.read(0, MIB)
    wait.until(lambda: stored(edge.s3()) == ["k"], 20, "the stored object")
    s3 = restart(edge, other_setting(origin, second, how, new, fresh=fresh))
    origin.fault = second.fault = lambda _: 503
    with pytest.raises(Exception, match="SlowDown"):
        s3.get_object(Bucket="media", Key="k")
    origin.fault = second.fault = lambda _: None
    for get in (s3.head_object, s3.get_object, s3.get_object):
        assert get(Bucket="media", Key="k")["ETag"] == '"same"'
    assert body(s3.get_object(Bucket="media", Key="k")) == new.read(0, MIB)
    wait.until(lambda: stored(s3) == ["k"], 20, "the stored object")
    # The first origin counts again.
    s3 = restart(edge, setting)
    assert body(s3.get_object(Bucket="media", Key="k")) == old.read(0, MIB)
