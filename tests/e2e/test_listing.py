"""Listing: both versions, against a model."""

import pytest

from harness.sdk import fails
from harness.server import in_threads


def model(keys, prefix="", delimiter="", after=""):
    """The expected result of a whole listing: keys, and rolled-up prefixes."""
    found, rolled = [], []
    for key in sorted(keys, key=str.encode):
        if not key.startswith(prefix):
            continue
        cut = key.find(delimiter, len(prefix)) if delimiter else -1
        if cut >= 0:
            common = key[:cut + len(delimiter)]
            if common > after and common not in rolled:
                rolled.append(common)
        elif key > after:
            found.append(key)
    return found, rolled


def whole_v2(s3, bucket, **options):
    found, rolled, token, pages = [], [], {}, 0
    while True:
        page = s3.list_objects_v2(Bucket=bucket, **options, **token)
        pages += 1
        found += [e["Key"] for e in page.get("Contents", [])]
        rolled += [p["Prefix"] for p in page.get("CommonPrefixes", [])]
        count = len(page.get("Contents", [])) + len(page.get("CommonPrefixes", []))
        assert page["KeyCount"] == count <= options.get("MaxKeys", 1000)
        if not page["IsTruncated"]:
            assert "NextContinuationToken" not in page
            return found, rolled, pages
        token = {"ContinuationToken": page["NextContinuationToken"]}


def whole_v1(s3, bucket, **options):
    found, rolled, marker = [], [], {}
    while True:
        page = s3.list_objects(Bucket=bucket, **{**options, **marker})
        found += [e["Key"] for e in page.get("Contents", [])]
        rolled += [p["Prefix"] for p in page.get("CommonPrefixes", [])]
        if not page["IsTruncated"]:
            return found, rolled
        # S3 returns NextMarker only with a delimiter; without one, the last key is the marker.
        marker = {"Marker": page.get("NextMarker") or page["Contents"][-1]["Key"]}


KEYS = ([f"dir{d}/sub{s}/{n:03}" for d in range(3) for s in range(4) for n in range(7)] +
        [f"top{n}" for n in range(20)] + ["dir1", "dir1!", "dir1/", "a//b", "a//c", "a/b", "a b/c d", "ü/ä", "z|x|y", "z|x"])


# As long as the server: pytest-xdist may interleave this module with others.
@pytest.fixture(scope="session")
def listed(shared):
    s3 = shared.s3()
    s3.create_bucket(Bucket="listed")
    in_threads(8, lambda t: [shared.request("PUT", f"/listed/{key}", b"x" * (n % 5)) for n, key in enumerate(KEYS)
                             if n % 8 == t])
    return "listed"


@pytest.mark.parametrize("delimiter", ["", "/", "|", "sub", "//"])
@pytest.mark.parametrize("prefix", ["", "dir1", "dir1/", "dir1/sub2/", "a/", "absent", "a b/", "ü"])
def test_against_a_model(s3, listed, prefix, delimiter):
    expected = model(KEYS, prefix, delimiter)
    for size in (1000, 7, 1):
        if size == 1 and len(expected[0]) > 30:
            continue
        found, rolled, pages = whole_v2(s3, listed, Prefix=prefix, Delimiter=delimiter, MaxKeys=size)
        assert (found, rolled) == expected
        assert pages <= (len(found) + len(rolled)) // size + 1
        assert whole_v1(s3, listed, Prefix=prefix, Delimiter=delimiter, MaxKeys=size) == expected


def test_start_after_and_marker(s3, listed):
    for after in ("dir1", "dir1/sub", "dir2/sub3/006", "top5", "zzz", "absent"):
        expected = model(KEYS, after=after)
        found, rolled, _ = whole_v2(s3, listed, StartAfter=after, MaxKeys=13)
        assert (found, rolled) == expected
        assert whole_v1(s3, listed, Marker=after, MaxKeys=13) == expected
    found, rolled, _ = whole_v2(s3, listed, Prefix="dir", StartAfter="dir1/sub2/003", MaxKeys=10)
    assert found == model(KEYS, "dir", after="dir1/sub2/003")[0]


def test_entries_agree_with_head(s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"12345")
    head = s3.head_object(Bucket=bucket, Key="k")
    for page in (s3.list_objects_v2(Bucket=bucket), s3.list_objects(Bucket=bucket)):
        entry = page["Contents"][0]
        assert (entry["Size"], entry["ETag"]) == (5, head["ETag"])
        assert entry["LastModified"].replace(microsecond=0) == head["LastModified"]
        assert entry["StorageClass"] == "STANDARD"


def test_bounds_of_max_keys(s3, listed):
    assert s3.list_objects_v2(Bucket=listed, MaxKeys=0)["KeyCount"] == 0
    assert s3.list_objects_v2(Bucket=listed, MaxKeys=100_000)["MaxKeys"] <= 100_000
    with fails("InvalidArgument", 400):
        s3.list_objects_v2(Bucket=listed, MaxKeys=-1)
    with fails("InvalidArgument", 400):
        s3.list_objects_v2(Bucket=listed, ContinuationToken="no token of ours")


def test_more_than_a_page(shared, s3, bucket):
    count = 2_345
    connections = [shared.connect() for _ in range(8)]
    in_threads(8, lambda t: [shared.request("PUT", f"/{bucket}/{n:05}", b"", {"x-steadfast-durability": "async"},
                                            connection=connections[t]) for n in range(t, count, 8)])
    found, _, pages = whole_v2(s3, bucket)
    assert found == [f"{n:05}" for n in range(count)] and pages == 3


def test_url_encoding_is_used_only_on_request(shared, s3, bucket):
    s3.put_object(Bucket=bucket, Key="a b+ü", Body=b"")
    _, _, plain = shared.request("GET", f"/{bucket}", query={"list-type": "2"})
    assert "<Key>a b+ü</Key>" in plain.decode()
    _, _, encoded = shared.request("GET", f"/{bucket}", query={"list-type": "2", "encoding-type": "url"})
    assert b"<Key>a+b%2B%C3%BC</Key>" in encoded or b"<Key>a%20b%2B%C3%BC</Key>" in encoded, encoded
    assert b"<EncodingType>url</EncodingType>" in encoded


def test_a_listing_sees_every_acknowledged_write(shared, s3, bucket):
    for number in range(20):
        shared.request("PUT", f"/{bucket}/{number:02}", b"x")
        assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == number + 1
    for number in range(20):
        shared.request("DELETE", f"/{bucket}/{number:02}")
        assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 19 - number
