"""Access control lists and ownership controls, through SDKs and tools."""

import os
import shutil
import subprocess
import sys

import pytest
from test_auth import fetch
from test_tools import BIN, run
from test_users import client, command

from harness import sign
from harness.sdk import body, fails

EVERYONE = "http://acs.amazonaws.com/groups/global/AllUsers"


@pytest.fixture
def server(make_server):
    server = make_server()
    server.s3().create_bucket(Bucket="media")
    return server


def status(server, path):
    return fetch(f"{server.endpoint}{path}")[0]


def test_an_upload_that_everyone_may_read(server):
    """As Mastodon, WordPress and Django upload media."""
    s3 = server.s3()
    s3.put_object(Bucket="media", Key="public", Body=b"data", ACL="public-read")
    s3.put_object(Bucket="media", Key="private", Body=b"data")
    assert fetch(f"{server.endpoint}/media/public") == (200, b"data")
    assert status(server, "/media/private") == 403
    grants = s3.get_object_acl(Bucket="media", Key="public")["Grants"]
    assert {grant["Grantee"].get("URI"): grant["Permission"] for grant in grants} == {None: "FULL_CONTROL", EVERYONE: "READ"}
    s3.put_object_acl(Bucket="media", Key="private", ACL="public-read")
    s3.put_object_acl(Bucket="media", Key="public", ACL="private")
    server.kill()
    server.start()
    assert (status(server, "/media/public"), status(server, "/media/private")) == (403, 200)
    s3 = server.s3()
    s3.put_public_access_block(Bucket="media", PublicAccessBlockConfiguration={"IgnorePublicAcls": True, "BlockPublicAcls": True})
    assert status(server, "/media/private") == 403
    with fails("AccessDenied", 403):
        s3.put_object(Bucket="media", Key="public", Body=b"data", ACL="public-read")
    s3.put_object(Bucket="media", Key="public", Body=b"data", ACL="bucket-owner-full-control")


def test_a_list_names_a_user(server):
    s3 = server.s3()
    ada = client(server, command(server, "user", "create", "ada")["key"])
    bob = client(server, command(server, "user", "create", "bob")["key"])
    shown = command(server, "user", "show", "ada")
    s3.put_object(Bucket="media", Key="k", Body=b"data", GrantRead=f"id={shown['canonical_id']}")
    assert body(ada.get_object(Bucket="media", Key="k")) == b"data"
    for refused in (lambda: bob.get_object(Bucket="media", Key="k"), lambda: ada.put_object(Bucket="media", Key="k", Body=b"x"),
                    lambda: ada.get_object_acl(Bucket="media", Key="k")):
        with fails("AccessDenied", 403):
            refused()
    grantee = s3.get_object_acl(Bucket="media", Key="k")["Grants"][0]["Grantee"]
    assert (grantee["ID"], grantee["DisplayName"]) == (shown["canonical_id"], "ada")
    s3.put_bucket_acl(Bucket="media", ACL="public-read-write")
    bob.put_object(Bucket="media", Key="of-bob", Body=b"x")
    assert {entry["Key"] for entry in ada.list_objects_v2(Bucket="media")["Contents"]} == {"k", "of-bob"}


def test_ownership_controls_as_terraform_sets_them(server):
    """The requests of aws_s3_bucket_ownership_controls and aws_s3_bucket_acl, in their order."""
    s3 = server.s3()
    with fails("OwnershipControlsNotFoundError", 404):
        s3.get_bucket_ownership_controls(Bucket="media")
    for ownership in ("ObjectWriter", "BucketOwnerPreferred"):
        controls = {"Rules": [{"ObjectOwnership": ownership}]}
        s3.put_bucket_ownership_controls(Bucket="media", OwnershipControls=controls)
        assert s3.get_bucket_ownership_controls(Bucket="media")["OwnershipControls"] == controls
        s3.put_bucket_acl(Bucket="media", ACL="private")
        answered = s3.get_bucket_acl(Bucket="media")
        s3.put_bucket_acl(Bucket="media", AccessControlPolicy={name: answered[name] for name in ("Grants", "Owner")})
    owner = s3.list_buckets()["Owner"]["ID"]
    assert answered["Owner"]["ID"] == owner and len(owner) == 64
    s3.put_bucket_ownership_controls(Bucket="media", OwnershipControls={"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]})
    with fails("AccessControlListNotSupported", 400):
        s3.put_object(Bucket="media", Key="k", Body=b"x", ACL="public-read")
    s3.delete_bucket_ownership_controls(Bucket="media")
    s3.put_object(Bucket="media", Key="k", Body=b"x", ACL="public-read")
    assert status(server, "/media/k") == 200


def test_s3cmd_sets_lists(server, tmp_path):
    config = tmp_path / "s3cfg"
    config.write_text(f"[default]\naccess_key = {sign.ACCESS}\nsecret_key = {sign.SECRET}\nhost_base = {server.host}\n"
                      f"host_bucket = {server.host}\nuse_https = False\n")
    (tmp_path / "file").write_text("data")

    def s3cmd(*arguments):
        return run(sys.executable, BIN / "s3cmd", "-c", config, "--no-progress", *arguments)

    s3cmd("put", "--acl-public", tmp_path / "file", "s3://media/a")
    s3cmd("put", tmp_path / "file", "s3://media/b")
    assert (status(server, "/media/a"), status(server, "/media/b")) == (200, 403)
    s3cmd("setacl", "--acl-private", "s3://media/a")
    s3cmd("setacl", "--acl-public", "s3://media/b")
    assert (status(server, "/media/a"), status(server, "/media/b")) == (403, 200)
    ada = command(server, "user", "create", "ada")
    s3cmd("setacl", f"--acl-grant=read:{ada['user']['canonical_id']}", "s3://media/a")
    assert body(client(server, ada["key"]).get_object(Bucket="media", Key="a")) == b"data"
    assert "ada: READ" in s3cmd("info", "s3://media/a")
    s3cmd("setacl", "--acl-public", "s3://media")
    assert status(server, "/media") == 200


@pytest.mark.skipif(shutil.which("rclone") is None, reason="rclone is not installed")
def test_rclone_with_lists_and_a_limited_key(server, tmp_path):
    made = command(server, "user", "create", "sync", "--grant", "read-write:media", "--grant", "acl:media")["key"]
    source, back = tmp_path / "source", tmp_path / "back"
    (source / "sub").mkdir(parents=True)
    for name in ("a", "b c", "sub/é"):
        (source / name).write_text(name)

    def rclone(*arguments, key=made, acl="private"):
        options = f"provider=Other,endpoint='{server.endpoint}',access_key_id={key['access_key']}," \
                  f"secret_access_key={key['secret_key']},acl={acl},no_check_bucket=true"
        remote = [str(argument).replace("REMOTE", f":s3,{options}:media") for argument in arguments]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        return subprocess.run(["rclone", "--config", "/dev/null", *remote], capture_output=True, text=True, timeout=60,
                              check=False, env=environment)

    done = rclone("sync", source, "REMOTE/tree")
    assert done.returncode == 0, done.stderr
    done = rclone("sync", "REMOTE/tree", back)
    assert done.returncode == 0, done.stderr
    assert sorted(path.read_text() for path in back.rglob("*") if path.is_file()) == ["a", "b c", "sub/é"]
    assert rclone("check", source, "REMOTE/tree").returncode == 0
    assert status(server, "/media/tree/a") == 403
    done = rclone("copyto", source / "a", "REMOTE/public/a", acl="public-read")
    assert done.returncode == 0, done.stderr
    assert status(server, "/media/public/a") == 200
    other = command(server, "user", "create", "other", "--grant", "read:media/tree/*")["key"]
    assert rclone("copyto", source / "a", "REMOTE/tree/x", "--retries", "1", key=other).returncode != 0
