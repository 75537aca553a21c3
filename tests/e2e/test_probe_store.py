"""`steadfast probe` of stores that are to hold an archive."""

import json
import os
import subprocess

from harness import sign
from harness.server import binary

CHECKS = {
    "create only what does not exist", "read what was written", "one entity tag in all answers", "read a range",
    "say that an object does not exist", "replace with If-Match", "refuse an old entity tag",
    "refuse to replace what does not exist", "one of many creates wins", "one of many replacements wins",
    "list in order", "delete",
}


def probe(url, *options, secret=sign.SECRET):
    env = {**os.environ, "AWS_ACCESS_KEY_ID": sign.ACCESS, "AWS_SECRET_ACCESS_KEY": secret}
    return subprocess.run([binary(), "probe", url, *options], capture_output=True, text=True, timeout=120, env=env,
                          check=False)


def good(done):
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["fit"], report
    assert {finding["what"] for finding in report["findings"] if finding["verdict"] == "good"} >= CHECKS, report


def test_a_bucket_of_this_server_is_fit(make_server):
    server = make_server()
    endpoint = f"http://{server.address}:{server.s3_port}"
    url = "s3://backup/chat/one"
    missing = probe(url, "--endpoint", endpoint)
    assert missing.returncode == 1 and "the bucket backup does not exist" in missing.stderr, missing.stderr
    server.s3().create_bucket(Bucket="backup")
    good(probe(url, "--endpoint", endpoint, "--json"))
    good(probe("s3://backup", "--endpoint", endpoint, "--json"))
    assert "Contents" not in server.s3().list_objects_v2(Bucket="backup"), "it removes what it wrote"
    shown = probe(url, "--endpoint", endpoint)
    assert shown.returncode == 0 and shown.stdout.startswith("s3://backup/chat/one at http://"), shown.stdout
    refused = probe(url, "--endpoint", endpoint, secret="not the secret")
    assert refused.returncode == 1 and "SignatureDoesNotMatch" in refused.stderr, refused.stderr
    assert "not the secret" not in refused.stderr + refused.stdout


def test_a_directory_is_fit(tmp_path):
    good(probe(f"file://{tmp_path}", "--json"))
    assert [entry.name for entry in tmp_path.iterdir()] == [".lock"]
    missing = probe(f"file://{tmp_path}/missing")
    assert missing.returncode == 1 and "create the directory" in missing.stderr, missing.stderr
    for url in ("file://relative", "s3:///x", "gs://bucket"):
        wrong = probe(url)
        assert wrong.returncode == 1 and "write " in wrong.stderr or "not the name" in wrong.stderr, wrong.stderr


def test_an_endpoint_that_is_not_there_is_named():
    done = probe("s3://backup", "--endpoint", "http://127.0.0.1:1")
    assert done.returncode == 1 and "Connection refused" in done.stderr and len(done.stderr) < 300, done.stderr
