"""Shorthands for the SDK."""

import contextlib

import botocore.exceptions
import pytest


@contextlib.contextmanager
def fails(code, status=None):
    """Expects the block to fail with this S3 error code (and HTTP status)."""
    with pytest.raises(botocore.exceptions.ClientError) as caught:
        yield caught
    response = caught.value.response
    assert response["Error"]["Code"] == code, response
    if status:
        assert response["ResponseMetadata"]["HTTPStatusCode"] == status, response


def header(response, name):
    """A header of a response, by lower-case name; None when absent."""
    return response["ResponseMetadata"]["HTTPHeaders"].get(name)


def body(response):
    return response["Body"].read()


def keys(s3, bucket, **options):
    """Every key of a bucket, page by page."""
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, **options)
    return [entry["Key"] for page in pages for entry in page.get("Contents", [])]
