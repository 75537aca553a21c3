"""Checksums of every algorithm: given and made by the SDK, verified on upload, returned on
download."""

import base64
import hashlib
import zlib

import awscrt.checksums
import pytest

from harness import sign
from harness.sdk import body, fails

DATA = b"The quick brown fox jumps over the lazy dog. " * 3000


def digest(algorithm, data):
    """The checksum in S3's format."""
    raw = {
        "CRC32": lambda: zlib.crc32(data).to_bytes(4, "big"),
        "CRC32C": lambda: awscrt.checksums.crc32c(data).to_bytes(4, "big"),
        "CRC64NVME": lambda: awscrt.checksums.crc64nvme(data).to_bytes(8, "big"),
        "SHA1": lambda: hashlib.sha1(data).digest(),
        "SHA256": lambda: hashlib.sha256(data).digest(),
    }[algorithm]()
    return base64.b64encode(raw).decode()


ALGORITHMS = ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_made_by_the_sdk(s3, bucket, algorithm):
    """The SDK makes the checksum, and verifies it on download."""
    put = s3.put_object(Bucket=bucket, Key="k", Body=DATA, ChecksumAlgorithm=algorithm)
    assert put[f"Checksum{algorithm}"] == digest(algorithm, DATA)
    got = s3.get_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert got[f"Checksum{algorithm}"] == digest(algorithm, DATA) and body(got) == DATA
    head = s3.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert head[f"Checksum{algorithm}"] == digest(algorithm, DATA)
    assert head.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT"
    entry = s3.list_objects_v2(Bucket=bucket)["Contents"][0]
    assert entry["ChecksumAlgorithm"] == [algorithm]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_given_in_a_header(s3, bucket, algorithm):
    s3.put_object(Bucket=bucket, Key="k", Body=DATA, **{f"Checksum{algorithm}": digest(algorithm, DATA)})
    assert s3.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")[f"Checksum{algorithm}"] == digest(algorithm, DATA)
    with fails("BadDigest", 400):
        s3.put_object(Bucket=bucket, Key="bad", Body=DATA, **{f"Checksum{algorithm}": digest(algorithm, b"other")})
    with fails("404"):
        s3.head_object(Bucket=bucket, Key="bad")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("signed", [True, False], ids=["signed", "unsigned"])
def test_given_in_a_trailer(shared, s3, bucket, algorithm, signed):
    name = f"x-amz-checksum-{algorithm.lower()}"
    chunks = [DATA[:70_000], DATA[70_000:]]

    def put(key, trailer):
        path, date = f"/{bucket}/{key}", sign.amz_date()
        kind = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER" if signed else "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
        headers = sign.headers_for("PUT", shared.host, path, headers={
            "content-encoding": "aws-chunked", "x-amz-trailer": name, "x-amz-decoded-content-length": str(len(DATA)),
        }, payload_hash=kind, date=date)
        seed = headers["authorization"].rpartition("Signature=")[2]
        data = (sign.chunked_body(chunks, seed, date, trailer) if signed else
                sign.unsigned_chunked_body(chunks, trailer))
        connection = shared.connect()
        connection.request("PUT", path, body=data, headers=headers)
        response = connection.getresponse()
        text = response.read()
        connection.close()
        return response.status, text

    status, text = put("good", (name, digest(algorithm, DATA)))
    assert status == 200, text
    got = s3.get_object(Bucket=bucket, Key="good", ChecksumMode="ENABLED")
    assert got[f"Checksum{algorithm}"] == digest(algorithm, DATA) and body(got) == DATA
    assert "ContentEncoding" not in got
    status, text = put("bad", (name, digest(algorithm, b"other")))
    assert status == 400 and b"<Code>BadDigest</Code>" in text, (status, text)
    with fails("404"):
        s3.head_object(Bucket=bucket, Key="bad")


def test_payload_hash_is_verified(shared, bucket):
    """x-amz-content-sha256 of the body, as in signed uploads over plain HTTP."""
    for claimed, expected in ((b"data", 200), (b"tampered", 400)):
        path = f"/{bucket}/k"
        headers = sign.headers_for("PUT", shared.host, path, payload_hash=hashlib.sha256(claimed).hexdigest())
        connection = shared.connect()
        connection.request("PUT", path, body=b"data", headers=headers)
        response = connection.getresponse()
        text = response.read()
        assert response.status == expected, text
        connection.close()
    assert b"XAmzContentSHA256Mismatch" in text


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_copy_gets_the_requested_checksum(s3, bucket, algorithm):
    other = "CRC32" if algorithm != "CRC32" else "SHA256"
    s3.put_object(Bucket=bucket, Key="k", Body=DATA, ChecksumAlgorithm=other)
    for key in ("copy", "k"):
        s3.copy_object(Bucket=bucket, Key=key, CopySource=f"{bucket}/k", ChecksumAlgorithm=algorithm)
        got = s3.get_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
        assert body(got) == DATA
        assert got[f"Checksum{algorithm}"] == digest(algorithm, DATA) and f"Checksum{other}" not in got


def test_a_copy_keeps_the_checksum_of_its_source(s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=DATA, ChecksumAlgorithm="SHA256")
    s3.copy_object(Bucket=bucket, Key="c", CopySource=f"{bucket}/k")
    assert s3.head_object(Bucket=bucket, Key="c", ChecksumMode="ENABLED")["ChecksumSHA256"] == digest("SHA256", DATA)


# -- uploads in parts -----------------------------------------------------------------------

PARTS = [DATA * 40, DATA * 41, b"the end"]  # over 5 MiB but for the last


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_composite_and_whole_checksums_of_parts(s3, bucket, algorithm):
    whole_too = algorithm.startswith("CRC")
    composite_too = algorithm != "CRC64NVME"
    for kind in (["FULL_OBJECT"] if whole_too else []) + (["COMPOSITE"] if composite_too else []):
        upload = s3.create_multipart_upload(Bucket=bucket, Key=kind, ChecksumAlgorithm=algorithm, ChecksumType=kind)
        parts = []
        for number, data in enumerate(PARTS, 1):
            part = s3.upload_part(Bucket=bucket, Key=kind, UploadId=upload["UploadId"], PartNumber=number, Body=data,
                                  ChecksumAlgorithm=algorithm)
            assert part[f"Checksum{algorithm}"] == digest(algorithm, data)
            parts.append({"PartNumber": number, "ETag": part["ETag"], f"Checksum{algorithm}": part[f"Checksum{algorithm}"]})
        done = s3.complete_multipart_upload(Bucket=bucket, Key=kind, UploadId=upload["UploadId"],
                                            MultipartUpload={"Parts": parts})
        if kind == "FULL_OBJECT":
            expected = digest(algorithm, b"".join(PARTS))
        else:
            inner = b"".join(base64.b64decode(digest(algorithm, data)) for data in PARTS)
            expected = f"{digest(algorithm, inner)}-{len(PARTS)}"
        assert done[f"Checksum{algorithm}"] == expected
        head = s3.head_object(Bucket=bucket, Key=kind, ChecksumMode="ENABLED")
        assert head[f"Checksum{algorithm}"] == expected and head["ChecksumType"] == kind
        assert body(s3.get_object(Bucket=bucket, Key=kind, ChecksumMode="ENABLED")) == b"".join(PARTS)


def test_a_part_with_a_wrong_checksum(s3, bucket):
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k", ChecksumAlgorithm="CRC32")
    with fails("BadDigest", 400):
        s3.upload_part(Bucket=bucket, Key="k", UploadId=upload["UploadId"], PartNumber=1, Body=DATA,
                       ChecksumCRC32=digest("CRC32", b"other"))
    assert "Parts" not in s3.list_parts(Bucket=bucket, Key="k", UploadId=upload["UploadId"])


def test_a_whole_checksum_that_does_not_match(s3, bucket):
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k", ChecksumAlgorithm="CRC32C", ChecksumType="FULL_OBJECT")
    part = s3.upload_part(Bucket=bucket, Key="k", UploadId=upload["UploadId"], PartNumber=1, Body=DATA,
                          ChecksumAlgorithm="CRC32C")
    with fails("BadDigest", 400):
        s3.complete_multipart_upload(Bucket=bucket, Key="k", UploadId=upload["UploadId"], ChecksumType="FULL_OBJECT",
                                     ChecksumCRC32C=digest("CRC32C", b"other"),
                                     MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]})
    with fails("404"):
        s3.head_object(Bucket=bucket, Key="k")
