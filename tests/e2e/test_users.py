"""Users and their keys: the commands, and what clients with these keys can do."""

import json
import pathlib
import subprocess
import sys
import threading

import pytest
from test_tools import BIN, run

from harness import sign
from harness.sdk import body, fails, keys
from harness.server import binary

MIB = 1 << 20


def command(server, *args, stdin=None):
    """A command on users or keys; its result."""
    done = subprocess.run([binary(), *map(str, args), "--data", str(server.data), "--json"], capture_output=True,
                          text=True, timeout=60, check=False, input=stdin)
    assert done.returncode == 0, f"{args}: {done.stdout}\n{done.stderr}"
    return json.loads(done.stdout)


def refused(server, *args):
    done = server.command(*map(str, args), "--data", str(server.data))
    assert done.returncode == 1, done.stdout
    return done.stderr


def client(server, key):
    return server.s3(access=key["access_key"], secret=key["secret_key"])


@pytest.fixture
def server(make_server):
    server = make_server()
    server.s3().create_bucket(Bucket="media")
    return server


def test_a_key_that_only_uploads(server, rng, tmp_path):
    made = command(server, "user", "create", "uploader", "--grant", "write:media/incoming/*")
    s3, root = client(server, made["key"]), server.s3()
    large = tmp_path / "large"
    large.write_bytes(rng.randbytes(20 * MIB))
    s3.upload_file(str(large), "media", "incoming/large")
    s3.put_object(Bucket="media", Key="incoming/small", Body=b"small")
    assert body(root.get_object(Bucket="media", Key="incoming/large")) == large.read_bytes()
    root.put_object(Bucket="media", Key="secret", Body=b"secret")
    for call in (lambda: s3.get_object(Bucket="media", Key="incoming/small"),
                 lambda: s3.put_object(Bucket="media", Key="elsewhere", Body=b"x"),
                 lambda: s3.delete_object(Bucket="media", Key="incoming/small"),
                 lambda: s3.copy_object(Bucket="media", Key="incoming/copy", CopySource="media/secret"),
                 lambda: s3.list_objects_v2(Bucket="media"), lambda: s3.create_bucket(Bucket="other"),
                 lambda: s3.get_bucket_policy(Bucket="media"), s3.list_buckets):
        with fails("AccessDenied", 403):
            call()
    with fails("403"):
        s3.head_object(Bucket="media", Key="incoming/none")


def test_users_and_keys_survive_a_crash(server):
    ada = command(server, "user", "create", "ada", "--grant", "read-write:media")
    bob = command(server, "user", "create", "bob", "--grant", "read:media", "--no-key")
    assert bob["key"] is None
    bob = command(server, "key", "create", "bob", "--expires", "1h")
    stolen = command(server, "key", "create", "ada")
    client(server, stolen).put_object(Bucket="media", Key="k", Body=b"data")
    command(server, "key", "disable", stolen["access_key"])
    with fails("InvalidAccessKeyId", 403):
        client(server, stolen).get_object(Bucket="media", Key="k")
    server.kill()
    server.start()
    assert body(client(server, ada["key"]).get_object(Bucket="media", Key="k")) == b"data"
    assert body(client(server, bob).get_object(Bucket="media", Key="k")) == b"data"
    with fails("InvalidAccessKeyId", 403):
        client(server, stolen).get_object(Bucket="media", Key="k")
    states = {key["access_key"]: key["state"] for user in command(server, "key", "list") for key in user["keys"]}
    assert states == {ada["key"]["access_key"]: "active", bob["access_key"]: "active", stolen["access_key"]: "disabled"}
    assert command(server, "user", "show", "bob")["grants"] == ["read:media"]
    assert server.status()["store"]["users"] == 2 and server.metric("steadfast_store_users") == 2
    command(server, "user", "remove", "ada")
    server.kill()
    server.start()
    with fails("InvalidAccessKeyId", 403):
        client(server, ada["key"]).get_object(Bucket="media", Key="k")
    # The secrets are nowhere in clear. A running server replaces files of its index.
    assert server.stop() == 0
    files = [path for path in pathlib.Path(server.data).rglob("*") if path.is_file() and path.name != "credentials.json"]
    for secret in (ada["key"]["secret_key"], bob["secret_key"], stolen["secret_key"]):
        assert secret not in server.whole_log()
        assert not any(secret.encode() in path.read_bytes() for path in files if path.name != "pool")
        assert subprocess.run(["grep", "-c", "-a", "-F", secret, server.data / "pool"], check=False,
                              capture_output=True).returncode == 1


def test_a_rotation_refuses_no_request(server):
    key = command(server, "user", "create", "app", "--grant", "read-write:media")["key"]
    pairs, failures, stop = [key], [], threading.Event()

    def use():
        while not stop.is_set():
            try:
                client(server, pairs[-1]).put_object(Bucket="media", Key="k", Body=b"data")
            except Exception as error:  # noqa: BLE001 (any refusal is a failure)
                failures.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    for _ in range(3):
        pairs.append(command(server, "key", "rotate", pairs[-1]["access_key"], "--overlap", "1h"))
    stop.set()
    thread.join()
    assert not failures
    listed = command(server, "key", "list", "app")["keys"]
    assert len(listed) == 4 and sum(key["expires_ms"] is None for key in listed) == 1
    last = command(server, "key", "rotate", pairs[-1]["access_key"], "--overlap", "0s")
    with fails("InvalidAccessKeyId", 403):
        client(server, pairs[-1]).get_object(Bucket="media", Key="k")
    client(server, last).get_object(Bucket="media", Key="k")


def test_policies_of_users_and_buckets(server, tmp_path):
    document = tmp_path / "policy.json"
    document.write_text(json.dumps({"Version": "2012-10-17", "Statement": [
        {"Effect": "Allow", "Action": "s3:*", "Resource": "arn:aws:s3:::media/${aws:username}/*"},
        {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": "arn:aws:s3:::media",
         "Condition": {"StringLike": {"s3:prefix": "${aws:username}/*"}}}]}))
    ada = client(server, command(server, "user", "create", "ada", "--policy", document)["key"])
    bob = client(server, command(server, "user", "create", "bob", "--policy", document)["key"])
    ada.put_object(Bucket="media", Key="ada/k", Body=b"of ada")
    assert keys(ada, "media", Prefix="ada/") == ["ada/k"]
    with fails("AccessDenied", 403):
        bob.get_object(Bucket="media", Key="ada/k")
    root = server.s3()

    def bucket_policy(user):
        return json.dumps({"Version": "2012-10-17", "Statement": [
            {"Effect": "Allow", "Principal": {"AWS": f"arn:aws:iam::000000000000:user/{user}"},
             "Action": ["s3:GetObject"], "Resource": "arn:aws:s3:::media/ada/*"}]})

    root.put_bucket_policy(Bucket="media", Policy=bucket_policy("bob"))
    assert body(bob.get_object(Bucket="media", Key="ada/k")) == b"of ada"
    with fails("MalformedPolicy", 400):
        root.put_bucket_policy(Bucket="media", Policy=bucket_policy("eve"))
    command(server, "user", "permit", "ada", "--grant", "read:media")
    with fails("AccessDenied", 403):
        ada.put_object(Bucket="media", Key="ada/k", Body=b"x")
    assert body(ada.get_object(Bucket="media", Key="ada/k")) == b"of ada"


def test_wrong_commands(server, tmp_path):
    command(server, "user", "create", "ada")
    wrong = tmp_path / "wrong.json"
    wrong.write_text('{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:Fly", "Resource": "*"}]}')
    for args, expected in (
            (("user", "create", "ada"), "exists"), (("user", "create", "a/b"), "the name of a user"),
            (("user", "create", "bob", "--grant", "fly:media"), "no grant"),
            (("user", "create", "bob", "--policy", wrong), "invalid action"),
            (("user", "create", "bob", "--policy", tmp_path / "none"), "cannot be read"),
            (("user", "remove", "bob"), "no user"), (("key", "create", "bob"), "no user"),
            (("key", "rotate", "SFNONE"), "no user has the access key"),
            (("key", "disable", sign.ACCESS), "no user has the access key")):
        assert expected in refused(server, *args), args
    assert [user["name"] for user in command(server, "user", "list")] == ["ada"]
    # A pair from elsewhere; the one of root is taken.
    pair = ("--access-key", sign.ACCESS, "--secret-key-file", "-")
    done = subprocess.run([binary(), "key", "create", "ada", *pair, "--data", str(server.data)], capture_output=True,
                          text=True, timeout=60, check=False, input="secret-secret\n")
    assert done.returncode == 1 and "taken" in done.stderr
    made = command(server, "key", "create", "ada", "--access-key", "old-key", "--secret-key-file", "-", stdin="old-secret\n")
    assert (made["access_key"], made["secret_key"]) == ("old-key", "old-secret")


def test_declared_users_and_buckets(make_server, tmp_path):
    """A configuration file needs no container that prepares the server."""
    (tmp_path / "secret").write_text("declared-secret\n")
    (tmp_path / "media.json").write_text(json.dumps({"Version": "2012-10-17", "Statement": [
        {"Effect": "Allow", "Principal": {"AWS": ["arn:aws:iam::000000000000:user/app"]}, "Action": "s3:GetObject",
         "Resource": "arn:aws:s3:::media/*"}]}))
    config = tmp_path / "steadfast.toml"

    def write(grants):
        config.write_text(f"""
[[access.users]]
name = "app"
grants = {json.dumps(grants)}
access_key = "declared"
secret_key_file = "{tmp_path}/secret"

[[buckets]]
name = "media"
policy_file = "{tmp_path}/media.json"

[[buckets]]
name = "uploads"
""")

    write(["read-write:uploads"])
    server = make_server(args=("--config", str(config)))
    assert [bucket["Name"] for bucket in server.s3().list_buckets()["Buckets"]] == ["media", "uploads"]
    server.s3().put_object(Bucket="media", Key="k", Body=b"data")
    app = server.s3(access="declared", secret="declared-secret")
    app.put_object(Bucket="uploads", Key="k", Body=b"data")
    assert body(app.get_object(Bucket="media", Key="k")) == b"data"
    with fails("AccessDenied", 403):
        app.put_object(Bucket="media", Key="k", Body=b"x")
    # What exists stays, and a difference is reported.
    command(server, "user", "permit", "app", "--grant", "read:uploads")
    server.s3().delete_bucket_policy(Bucket="media")
    server.stop()
    server.start()
    app = server.s3(access="declared", secret="declared-secret")
    assert body(app.get_object(Bucket="uploads", Key="k")) == b"data"
    with fails("AccessDenied", 403):
        app.put_object(Bucket="uploads", Key="k", Body=b"x")
    with fails("NoSuchBucketPolicy", 404):
        server.s3().get_bucket_policy(Bucket="media")
    assert "may do something else than declared" in server.whole_log()
    assert "declared-secret" not in server.whole_log()


def test_the_seal_key(make_server, tmp_path):
    """Without its seal key a pool opens, and the keys of users do not work."""
    server = make_server()
    made = command(server, "user", "create", "ada", "--grant", "full")
    own = pathlib.Path(server.data) / "seal.key"
    assert own.stat().st_mode & 0o777 == 0o600
    text = own.read_text()
    server.stop()
    own.unlink()
    server.start()
    with fails("InvalidAccessKeyId", 403):
        client(server, made["key"]).list_buckets()
    assert "sealed with another seal key" in server.whole_log()
    assert command(server, "key", "list", "ada")["keys"][0]["state"] == "sealed with another key"
    rotated = command(server, "key", "rotate", made["key"]["access_key"], "--overlap", "0s")
    client(server, rotated).list_buckets()
    server.stop()
    given = tmp_path / "given"
    given.write_text(text)
    server.settings["access.seal_key_file"] = str(given)
    server.start()
    with fails("InvalidAccessKeyId", 403):
        client(server, rotated).list_buckets()
    server.s3().list_buckets()
    server.stop()
    given.write_text("no key")
    done = server.command("serve", "--data", str(server.data), "--set", f"access.seal_key_file={given}")
    assert done.returncode == 1 and "hexadecimal digits" in done.stderr and "no key" not in done.stderr


def test_command_line_tools(server, tmp_path):
    made = command(server, "user", "create", "app", "--grant", "read-write:media/app/*")
    key = made["key"]
    env = {"AWS_ACCESS_KEY_ID": key["access_key"], "AWS_SECRET_ACCESS_KEY": key["secret_key"],
           "AWS_DEFAULT_REGION": sign.REGION, "AWS_CONFIG_FILE": str(tmp_path / "none"),
           "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"), "AWS_PAGER": ""}
    (tmp_path / "photo.jpg").write_bytes(b"photo")
    aws = [sys.executable, BIN / "aws", "--endpoint-url", server.endpoint, "s3"]
    run(*aws, "cp", "--only-show-errors", tmp_path / "photo.jpg", "s3://media/app/photo.jpg", **env)
    assert run(*aws, "ls", "s3://media/app/", **env).split()[-1] == "photo.jpg"
    url = run(*aws, "presign", "s3://media/app/photo.jpg", **env).strip()
    assert run("curl", "-s", url) == "photo"
    command(server, "user", "disable", "app")
    assert "InvalidAccessKeyId" in run("curl", "-s", url)
    command(server, "user", "enable", "app")
    config = tmp_path / "s3cfg"
    config.write_text(f"""[default]
access_key = {key["access_key"]}
secret_key = {key["secret_key"]}
host_base = {server.host}
host_bucket = {server.host}
use_https = False
""")
    s3cmd = [sys.executable, BIN / "s3cmd", "-c", config, "--no-progress"]
    run(*s3cmd, "get", "s3://media/app/photo.jpg", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"photo"
    done = subprocess.run([*map(str, s3cmd), "put", str(config), "s3://media/other"], capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "AccessDenied" in done.stderr
