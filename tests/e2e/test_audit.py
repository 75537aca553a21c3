"""The audit log: who did what, in a file."""

import json
import os
import subprocess

import pytest

from harness import sign
from harness.sdk import fails
from harness.server import binary, in_threads
from harness.wait import until


def lines(server, name="audit.log"):
    return [json.loads(line) for line in (server.data / name).read_text().splitlines()]


@pytest.fixture
def server(make_server):
    server = make_server(settings={"audit.file": "audit.log", "limits.trusted_proxies": "127.0.0.1"})
    server.s3().create_bucket(Bucket="media")
    return server


def test_each_request_has_a_line(server):
    made = subprocess.run([binary(), "user", "create", "ada", "--grant", "write:media/in/*", "--json",
                           "--data", str(server.data)], capture_output=True, text=True, check=True)
    key = json.loads(made.stdout)["key"]
    ada = server.s3(access=key["access_key"], secret=key["secret_key"])
    answer = ada.put_object(Bucket="media", Key="in/a b\n\u00fc", Body=b"12345")
    with fails("AccessDenied", 403):
        ada.get_object(Bucket="media", Key="secret")
    with fails("SignatureDoesNotMatch", 403):
        server.s3(access=key["access_key"], secret="wrong-secret").list_buckets()
    with fails("InvalidAccessKeyId", 403):
        server.s3(access="NOSUCHKEY", secret="wrong-secret").list_buckets()
    connection = server.connect()
    connection.request("GET", "/media/public", headers={"X-Forwarded-For": "192.0.2.7"})
    assert connection.getresponse().read()
    connection.request("GET", "/minio/health/live")
    connection.getresponse().read()
    connection.close()
    server.stop()
    found = [[line[name] for name in ("user", "access_key", "operation", "bucket", "key", "status")] for line in lines(server)]
    assert found == [
        ["root", sign.ACCESS, "CreateBucket", "media", "", 200],
        ["ada", key["access_key"], "PutObject", "media", "in/a b\n\u00fc", 200],
        ["ada", key["access_key"], "GetObject", "media", "secret", 403],
        [None, key["access_key"], "-", "", "", 403],
        [None, "NOSUCHKEY", "-", "", "", 403],
        [None, None, "GetObject", "media", "public", 403]]
    put, last = lines(server)[1], lines(server)[-1]
    assert put["request"] == answer["ResponseMetadata"]["RequestId"] and put["complete"] and put["bytes_in"] >= 5
    assert put["ms"] > 0 and put["time"].endswith("Z") and put["address"] == "127.0.0.1"
    assert last["address"] == "192.0.2.7" and last["bytes_out"] > 0
    text = (server.data / "audit.log").read_text()
    assert key["secret_key"] not in text and os.stat(server.data / "audit.log").st_mode & 0o777 == 0o600


def test_no_line_is_lost_by_a_rotation_or_a_stop(server):
    def puts(number):
        s3 = server.s3()
        for n in range(50):
            s3.put_object(Bucket="media", Key=f"{number}-{n}", Body=b"x")
            if number == 0 and n % 10 == 5:
                # The line after the last rotation makes the file again.
                until((server.data / "audit.log").exists)
                os.rename(server.data / "audit.log", server.data / f"audit.log.{n}")

    in_threads(4, puts)
    server.stop()
    files = [path.name for path in server.data.glob("audit.log*")]
    assert len(files) >= 5
    keys = [line["key"] for name in files for line in lines(server, name) if line["operation"] == "PutObject"]
    assert sorted(keys) == sorted(f"{number}-{n}" for number in range(4) for n in range(50))
    server.start()
    server.s3().list_buckets()
    server.stop()
    assert lines(server)[-1]["operation"] == "ListBuckets"


def test_a_full_disk_stops_no_request(make_server):
    server = make_server(settings={"audit.file": "/dev/full"})
    s3 = server.s3()
    s3.create_bucket(Bucket="media")
    for n in range(20):
        s3.put_object(Bucket="media", Key=f"k{n}", Body=b"x")
    bound = next(bound for bound in server.status()["bounds"] if bound["name"] == "audit")
    assert bound["limit"] == 10_000 and bound["granted"] == 0
    server.stop()
    assert "the audit log cannot be written" in server.whole_log()
    done = server.command("serve", "--data", str(server.data), "--set", "audit.file=/none/audit.log")
    assert done.returncode == 1 and "audit.file: /none/audit.log" in done.stderr
