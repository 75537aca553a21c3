"""Set-up scripts for MinIO: users, access keys and policies through its administration."""

import json
import urllib.parse

import pytest
from minio import MinioAdmin
from minio.credentials import StaticProvider
from minio.error import MinioAdminException
from test_users import client, command, refused

from harness import sign
from harness.sdk import body, fails, keys


def admin(server, key=None):
    """A client of the administration; without a key: that of the root identity."""
    access, secret = (key["access_key"], key["secret_key"]) if key else (sign.ACCESS, sign.SECRET)
    address = urllib.parse.urlparse(server.endpoint).netloc
    return MinioAdmin(address, StaticProvider(access, secret), secure=False)


def policy(*actions, resource="arn:aws:s3:::media/*"):
    return {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": list(actions), "Resource": [resource]}]}


def wrong(status, code):
    return pytest.raises(MinioAdminException, match=rf"{status}.*{code}|{code}.*{status}")


@pytest.fixture
def server(make_server):
    server = make_server()
    server.s3().create_bucket(Bucket="media")
    server.s3().put_object(Bucket="media", Key="k", Body=b"data")
    return server


def app(secret="app-secret-key"):
    return {"access_key": "app", "secret_key": secret}


def test_a_script_makes_a_user_with_a_policy(server, tmp_path):
    minio = admin(server)
    file = tmp_path / "policy.json"
    file.write_text(json.dumps(policy("s3:GetObject", "s3:PutObject")), encoding="utf-8")
    for _ in range(2):
        minio.user_add("app", "app-secret-key")
        minio.policy_add("media", str(file))
        minio.policy_set("media", user="app")
    s3 = client(server, app())
    assert body(s3.get_object(Bucket="media", Key="k")) == b"data"
    s3.put_object(Bucket="media", Key="new", Body=b"data")
    for call in (lambda: s3.delete_object(Bucket="media", Key="k"), lambda: s3.list_objects_v2(Bucket="media")):
        with fails("AccessDenied", 403):
            call()
    assert json.loads(minio.user_info("app")) == {"policyName": "media", "status": "enabled"}
    assert json.loads(minio.user_list()) == {"app": {"policyName": "media", "status": "enabled"}}
    assert json.loads(minio.policy_info("media")) == policy("s3:GetObject", "s3:PutObject")
    # A change of the policy counts for its users at once, and after a crash.
    file.write_text(json.dumps(policy("s3:GetObject")), encoding="utf-8")
    minio.policy_add("media", str(file))
    server.kill()
    server.start()
    minio = admin(server)
    s3 = client(server, app())
    assert body(s3.get_object(Bucket="media", Key="k")) == b"data"
    with fails("AccessDenied", 403):
        s3.put_object(Bucket="media", Key="new", Body=b"data")
    with wrong(400, "XMinioIAMPolicyInUse"):
        minio.policy_remove("media")
    minio.attach_policy(["readwrite"], user="app")
    assert keys(s3, "media") == ["k", "new"]
    minio.detach_policy(["readwrite", "media"], user="app")
    minio.policy_remove("media")
    assert sorted(json.loads(minio.policy_list())) == ["readonly", "readwrite", "writeonly"]
    with fails("AccessDenied", 403):
        s3.get_object(Bucket="media", Key="k")
    minio.user_disable("app")
    with fails("InvalidAccessKeyId", 403):
        s3.get_object(Bucket="media", Key="k")
    minio.user_enable("app")
    minio.user_add("app", "another-secret")
    with fails("SignatureDoesNotMatch", 403):
        s3.get_object(Bucket="media", Key="k")
    minio.user_remove("app")
    assert json.loads(minio.user_list()) == {}


def test_access_keys(server, tmp_path):
    minio = admin(server)
    file = tmp_path / "policy.json"
    file.write_text(json.dumps(policy("s3:GetObject")), encoding="utf-8")
    minio.user_add("app", "app-secret-key")
    minio.attach_policy(["readonly"], user="app")
    minio.add_service_account(access_key="root-key", secret_key="root-secret")
    minio.add_service_account(access_key="few", secret_key="few-secret", policy_file=str(file))
    few, root_key = ({"access_key": name, "secret_key": secret} for name, secret in (("few", "few-secret"), ("root-key", "root-secret")))
    client(server, root_key).put_object(Bucket="media", Key="new", Body=b"data")
    assert body(client(server, few).get_object(Bucket="media", Key="new")) == b"data"
    with fails("AccessDenied", 403):
        client(server, few).put_object(Bucket="media", Key="new", Body=b"data")
    made = json.loads(minio.add_service_account())["credentials"]
    generated = {"access_key": made["accessKey"], "secret_key": made["secretKey"]}
    client(server, generated).put_object(Bucket="media", Key="new", Body=b"data")
    minio.user_remove(made["accessKey"])
    further = command(server, "key", "create", "app")
    listed = json.loads(minio.list_service_account("app"))["accounts"]
    assert [key["accessKey"] for key in listed] == [further["access_key"]]
    minio.update_service_account(further["access_key"], secret_key="changed-secret")
    assert body(client(server, {**further, "secret_key": "changed-secret"}).get_object(Bucket="media", Key="k")) == b"data"
    shown = json.loads(minio.get_service_account(further["access_key"]))
    assert (shown["parentUser"], shown["accountStatus"]) == ("app", "on")
    minio.delete_service_account(further["access_key"])
    with wrong(404, "XMinioInvalidIAMCredentials"):
        minio.delete_service_account("few")
    minio.user_remove("few")
    with fails("InvalidAccessKeyId", 403):
        client(server, few).get_object(Bucket="media", Key="k")
    assert [user["name"] for user in command(server, "user", "list")] == ["app", "root-key"]


def test_only_root_administers(server):
    made = command(server, "user", "create", "ada", "--grant", "full")["key"]
    for call in (lambda minio: minio.user_add("bob", "bob-secret"), lambda minio: minio.user_list(), lambda minio: minio.info()):
        with wrong(403, "AccessDenied"):
            call(admin(server, made))
        with wrong(403, "SignatureDoesNotMatch"):
            call(admin(server, {"access_key": sign.ACCESS, "secret_key": "wrong-secret"}))
    with wrong(501, "NotImplemented"):
        admin(server).group_add("g", "ada")
    assert [user["name"] for user in command(server, "user", "list")] == ["ada"]
    info = json.loads(admin(server).info())
    assert (info["mode"], info["buckets"]["count"], info["objects"]["count"]) == ("online", 1, 1)
    assert [drive["state"] for drive in info["servers"][0]["drives"]] == ["ok"]


def test_named_policies_by_command(server, tmp_path):
    file = tmp_path / "policy.json"
    file.write_text(json.dumps(policy("s3:GetObject")), encoding="utf-8")
    assert command(server, "policy", "set", "media", file)["policy"] == policy("s3:GetObject")
    ada = client(server, command(server, "user", "create", "ada", "--attach", "media")["key"])
    assert body(ada.get_object(Bucket="media", Key="k")) == b"data"
    assert [entry["name"] for entry in command(server, "policy", "list")] == ["media", "readonly", "readwrite", "writeonly"]
    assert "detach it first" in refused(server, "policy", "remove", "media")
    assert "no policy" in refused(server, "user", "permit", "ada", "--attach", "none")
    command(server, "user", "permit", "ada", "--attach", "writeonly")
    with fails("AccessDenied", 403):
        ada.get_object(Bucket="media", Key="k")
    ada.put_object(Bucket="media", Key="k", Body=b"new")
    command(server, "policy", "remove", "media")
    assert "no policy" in refused(server, "policy", "show", "media")
