"""Uploads in parts."""

import hashlib

import pytest

from harness.sdk import body, fails

MIB = 1 << 20


def etag_of(parts):
    inner = b"".join(hashlib.md5(part).digest() for part in parts)
    return f'"{hashlib.md5(inner).hexdigest()}-{len(parts)}"'


def upload_parts(s3, bucket, key, parts, **options):
    """Uploads and completes; returns the answer of the completion."""
    upload = s3.create_multipart_upload(Bucket=bucket, Key=key, **options)["UploadId"]
    chosen = []
    for number, data in parts.items():
        answer = s3.upload_part(Bucket=bucket, Key=key, UploadId=upload, PartNumber=number, Body=data)
        chosen.append({"PartNumber": number, "ETag": answer["ETag"]})
    return s3.complete_multipart_upload(Bucket=bucket, Key=key, UploadId=upload,
                                        MultipartUpload={"Parts": sorted(chosen, key=lambda p: p["PartNumber"])})


def test_parts_become_an_object(s3, bucket, rng):
    parts = {1: rng.randbytes(5 * MIB), 2: rng.randbytes(6 * MIB + 123), 7: rng.randbytes(77)}
    whole = b"".join(parts.values())
    done = upload_parts(s3, bucket, "k", parts, ContentType="a/b", Metadata={"m": "1"})
    assert done["ETag"] == etag_of(list(parts.values()))
    got = s3.get_object(Bucket=bucket, Key="k")
    assert body(got) == whole and got["ETag"] == done["ETag"]
    assert got["ContentType"] == "a/b" and got["Metadata"] == {"m": "1"}
    for first in (0, 5 * MIB - 3, 11 * MIB, len(whole) - 5):
        assert body(s3.get_object(Bucket=bucket, Key="k", Range=f"bytes={first}-{first + 9}")) == whole[first:first + 10]


def test_parts_can_be_read_one_by_one(s3, bucket, rng):
    parts = {1: rng.randbytes(5 * MIB), 2: rng.randbytes(5 * MIB), 3: rng.randbytes(10)}
    upload_parts(s3, bucket, "k", parts)
    for number, data in enumerate(parts.values(), 1):
        got = s3.get_object(Bucket=bucket, Key="k", PartNumber=number)
        assert body(got) == data and got["PartsCount"] == 3
        assert got["ResponseMetadata"]["HTTPStatusCode"] == 206
        assert s3.head_object(Bucket=bucket, Key="k", PartNumber=number)["ContentLength"] == len(data)
    with fails("InvalidPartNumber", 416):
        s3.get_object(Bucket=bucket, Key="k", PartNumber=4)


def test_nothing_is_seen_before_the_completion(s3, bucket, rng):
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    part = s3.upload_part(Bucket=bucket, Key="k", UploadId=upload, PartNumber=1, Body=rng.randbytes(100))
    with fails("NoSuchKey"):
        s3.get_object(Bucket=bucket, Key="k")
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 0
    s3.complete_multipart_upload(Bucket=bucket, Key="k", UploadId=upload,
                                 MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]})
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 1
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=bucket)


def test_parts_are_replaced_and_left_out(s3, bucket, rng):
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    def put(number, data):
        return s3.upload_part(Bucket=bucket, Key="k", UploadId=upload, PartNumber=number, Body=data)["ETag"]
    old = put(1, b"old")
    new = put(1, b"new")
    put(2, b"left out")
    with fails("InvalidPart", 400):
        s3.complete_multipart_upload(Bucket=bucket, Key="k", UploadId=upload,
                                     MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": old}]})
    s3.complete_multipart_upload(Bucket=bucket, Key="k", UploadId=upload,
                                 MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": new}]})
    assert body(s3.get_object(Bucket=bucket, Key="k")) == b"new"


def test_abort(s3, bucket, rng):
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    s3.upload_part(Bucket=bucket, Key="k", UploadId=upload, PartNumber=1, Body=rng.randbytes(3 * MIB))
    s3.abort_multipart_upload(Bucket=bucket, Key="k", UploadId=upload)
    for call in (lambda: s3.list_parts(Bucket=bucket, Key="k", UploadId=upload),
                 lambda: s3.upload_part(Bucket=bucket, Key="k", UploadId=upload, PartNumber=1, Body=b"x"),
                 lambda: s3.abort_multipart_upload(Bucket=bucket, Key="k", UploadId=upload),
                 lambda: s3.complete_multipart_upload(Bucket=bucket, Key="k", UploadId=upload, MultipartUpload={
                     "Parts": [{"PartNumber": 1, "ETag": '"0"'}]})):
        with fails("NoSuchUpload", 404):
            call()
    s3.delete_bucket(Bucket=bucket)


def test_errors_of_completion(s3, bucket, rng):
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    parts = [{"PartNumber": n, "ETag": s3.upload_part(Bucket=bucket, Key="k", UploadId=upload, PartNumber=n,
                                                      Body=rng.randbytes(1000))["ETag"]} for n in (1, 2)]
    def complete(chosen):
        return s3.complete_multipart_upload(Bucket=bucket, Key="k", UploadId=upload,
                                                               MultipartUpload={"Parts": chosen})
    with fails("EntityTooSmall", 400):
        complete(parts)
    with fails("InvalidPartOrder", 400):
        complete(parts[::-1])
    with fails("InvalidPart", 400):
        complete([parts[0], {"PartNumber": 3, "ETag": parts[1]["ETag"]}])
    # The upload is unchanged after all these.
    complete(parts[:1])


def test_part_numbers(s3, bucket):
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    for number in (0, 10_001):
        with fails("InvalidArgument", 400):
            s3.upload_part(Bucket=bucket, Key="k", UploadId=upload, PartNumber=number, Body=b"x")
    s3.upload_part(Bucket=bucket, Key="k", UploadId=upload, PartNumber=10_000, Body=b"x")


def test_copy_of_parts(s3, bucket, rng):
    source = rng.randbytes(12 * MIB)
    s3.put_object(Bucket=bucket, Key="src ü", Body=source)
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    ranges = [(0, 5 * MIB - 1), (7 * MIB, 12 * MIB - 1)]
    parts = []
    for number, (first, last) in enumerate(ranges, 1):
        answer = s3.upload_part_copy(Bucket=bucket, Key="k", UploadId=upload, PartNumber=number,
                                     CopySource={"Bucket": bucket, "Key": "src ü"}, CopySourceRange=f"bytes={first}-{last}")
        parts.append({"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]})
    s3.put_object(Bucket=bucket, Key="small", Body=b"tail")
    answer = s3.upload_part_copy(Bucket=bucket, Key="k", UploadId=upload, PartNumber=3, CopySource=f"{bucket}/small")
    parts.append({"PartNumber": 3, "ETag": answer["CopyPartResult"]["ETag"]})
    s3.complete_multipart_upload(Bucket=bucket, Key="k", UploadId=upload, MultipartUpload={"Parts": parts})
    s3.delete_object(Bucket=bucket, Key="src ü")
    expected = source[:5 * MIB] + source[7 * MIB:] + b"tail"
    assert body(s3.get_object(Bucket=bucket, Key="k")) == expected


def test_list_parts_by_pages(s3, bucket):
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    sizes = {}
    for number in range(1, 24, 2):
        sizes[number] = number * 10
        s3.upload_part(Bucket=bucket, Key="k", UploadId=upload, PartNumber=number, Body=b"x" * sizes[number])
    found = {}
    for page in s3.get_paginator("list_parts").paginate(Bucket=bucket, Key="k", UploadId=upload,
                                                        PaginationConfig={"PageSize": 5}):
        assert len(page["Parts"]) <= 5
        found |= {part["PartNumber"]: part["Size"] for part in page["Parts"]}
    assert found == sizes


def test_list_uploads_by_pages(s3, bucket):
    uploads = set()
    for key in ("a", "b/1", "b/2", "b/2", "c/d/e", "z"):
        uploads.add((key, s3.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]))
    found = []
    for page in s3.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, PaginationConfig={"PageSize": 2}):
        found += [(u["Key"], u["UploadId"]) for u in page.get("Uploads", [])]
    assert len(found) == 6 and set(found) == uploads
    assert [key for key, _ in found] == sorted(key for key, _ in found)
    rolled = s3.list_multipart_uploads(Bucket=bucket, Delimiter="/")
    assert [u["Key"] for u in rolled["Uploads"]] == ["a", "z"]
    assert [p["Prefix"] for p in rolled["CommonPrefixes"]] == ["b/", "c/"]
    assert len(s3.list_multipart_uploads(Bucket=bucket, Prefix="b/")["Uploads"]) == 3


def test_conditional_completion(s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"there")
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    part = s3.upload_part(Bucket=bucket, Key="k", UploadId=upload, PartNumber=1, Body=b"new")
    chosen = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    with fails("PreconditionFailed", 412):
        s3.complete_multipart_upload(Bucket=bucket, Key="k", UploadId=upload, MultipartUpload=chosen, IfNoneMatch="*")
    assert body(s3.get_object(Bucket=bucket, Key="k")) == b"there"


def test_the_transfer_manager(s3, bucket, rng, tmp_path):
    """As applications upload: many parts at a time."""
    data = rng.randbytes(40 * MIB + 17)
    (tmp_path / "big").write_bytes(data)
    s3.upload_file(str(tmp_path / "big"), bucket, "big")
    s3.download_file(bucket, "big", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == data


@pytest.mark.slow
def test_thousands_of_parts_are_listed(s3, shared, bucket):
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    connection = shared.connect()
    for number in range(1, 3001):
        status, _, text = shared.request("PUT", f"/{bucket}/k", b"x", {"x-steadfast-durability": "async"},
                                         {"partNumber": str(number), "uploadId": upload}, connection)
        assert status == 200, text
    numbers = [p["PartNumber"] for page in s3.get_paginator("list_parts").paginate(Bucket=bucket, Key="k", UploadId=upload)
               for p in page["Parts"]]
    assert numbers == list(range(1, 3001))
