"""Widely used command-line tools: the AWS CLI and s3cmd, with real files."""

import os
import pathlib
import subprocess
import sys
import sysconfig

import pytest

from harness import sign

BIN = pathlib.Path(sys.executable).parent


def toolchain_docs():
    """The documentation of the Rust toolchain; None when it is not installed."""
    try:
        root = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
    docs = pathlib.Path(root) / "share" / "doc"
    return docs if docs.is_dir() else None


def real_files():
    """A directory of some hundred real files: a part of the toolchain's documentation, or of
    Python's library."""
    docs = toolchain_docs()
    if docs and (docs / "rust/html/nomicon").is_dir():
        return docs / "rust/html/nomicon"
    return python_package()


def python_package():
    """A directory with some hundred small files."""
    return pathlib.Path(sysconfig.get_path("stdlib")) / "email"


def run(*command, **env):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=1800, check=False,
                          stdin=subprocess.DEVNULL, env={**os.environ, **env})
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def aws(shared, tmp_path):
    env = {"AWS_ACCESS_KEY_ID": sign.ACCESS, "AWS_SECRET_ACCESS_KEY": sign.SECRET, "AWS_DEFAULT_REGION": sign.REGION,
           "AWS_CONFIG_FILE": str(tmp_path / "none"), "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"), "AWS_PAGER": ""}
    return lambda *command: run(sys.executable, BIN / "aws", "--endpoint-url", shared.endpoint, *command, **env)


@pytest.fixture
def s3cmd(shared, tmp_path):
    config = tmp_path / "s3cfg"
    config.write_text(f"""[default]
access_key = {sign.ACCESS}
secret_key = {sign.SECRET}
host_base = {shared.host}
host_bucket = {shared.host}
use_https = False
signature_v2 = False
bucket_location = us-east-1
""")
    return lambda *command: run(sys.executable, BIN / "s3cmd", "-c", config, "--no-progress", *command)


def same(one, other):
    run("diff", "-r", one, other)


def there_and_back(aws, bucket, tmp_path, source):
    aws("s3", "cp", "--recursive", "--only-show-errors", source, f"s3://{bucket}/doc")
    aws("s3", "cp", "--recursive", "--only-show-errors", f"s3://{bucket}/doc", tmp_path / "back")
    same(source, tmp_path / "back")
    count = sum(1 for path in source.rglob("*") if path.is_file())
    assert count > 20
    assert len(aws("s3", "ls", "--recursive", f"s3://{bucket}/").splitlines()) == count


def test_aws_cp_of_a_tree_and_back(aws, bucket, tmp_path):
    there_and_back(aws, bucket, tmp_path, real_files())


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_aws_cp_of_the_toolchain_documentation_and_back(aws, bucket, tmp_path):
    source = toolchain_docs()
    if not source:
        pytest.skip("the Rust toolchain has no documentation here")
    there_and_back(aws, bucket, tmp_path, source)


def test_aws_sync_ls_rm_mv(aws, bucket, tmp_path):
    tree = tmp_path / "tree"
    for name in ("a.txt", "sub/b b.txt", "sub/deep/ü+%.txt", "empty"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(name if name != "empty" else "")
    aws("s3", "sync", tree, f"s3://{bucket}/t")
    assert aws("s3", "sync", tree, f"s3://{bucket}/t") == "", "a second sync has nothing to do"
    listing = aws("s3", "ls", f"s3://{bucket}/t/")
    assert "PRE sub/" in listing and "a.txt" in listing
    (tree / "a.txt").write_text("changed, longer")
    (tree / "empty").unlink()
    aws("s3", "sync", "--delete", tree, f"s3://{bucket}/t")
    aws("s3", "sync", f"s3://{bucket}/t", tmp_path / "back")
    same(tree, tmp_path / "back")
    aws("s3", "mv", f"s3://{bucket}/t/a.txt", f"s3://{bucket}/moved to.txt")
    assert aws("s3", "cp", f"s3://{bucket}/moved to.txt", "-") == "changed, longer"
    aws("s3", "rm", "--recursive", f"s3://{bucket}/")
    assert "Contents" not in aws("s3api", "list-objects-v2", "--bucket", bucket)
    aws("s3", "rb", f"s3://{bucket}")


def test_aws_big_file_in_parts(aws, bucket, tmp_path, rng):
    (tmp_path / "big").write_bytes(rng.randbytes(60 << 20))
    aws("s3", "cp", "--only-show-errors", tmp_path / "big", f"s3://{bucket}/big")
    assert "-8" in aws("s3api", "head-object", "--bucket", bucket, "--key", "big"), "eight parts of 8 MiB"
    aws("s3", "cp", "--only-show-errors", f"s3://{bucket}/big", tmp_path / "back")
    same(tmp_path / "big", tmp_path / "back")
    aws("s3", "cp", "--only-show-errors", f"s3://{bucket}/big", f"s3://{bucket}/copy")
    aws("s3", "cp", "--only-show-errors", f"s3://{bucket}/copy", tmp_path / "again")
    same(tmp_path / "big", tmp_path / "again")


def test_s3cmd_put_get_ls_del(s3cmd, bucket, tmp_path, rng):
    (tmp_path / "a file").write_bytes(rng.randbytes(300_000))
    s3cmd("put", tmp_path / "a file", f"s3://{bucket}/x/a file")
    assert "x/a file" in s3cmd("ls", "-r", f"s3://{bucket}")
    s3cmd("get", f"s3://{bucket}/x/a file", tmp_path / "back")
    same(tmp_path / "a file", tmp_path / "back")
    s3cmd("cp", f"s3://{bucket}/x/a file", f"s3://{bucket}/y")
    assert "MD5 sum" in s3cmd("info", f"s3://{bucket}/y")
    s3cmd("del", f"s3://{bucket}/x/a file", f"s3://{bucket}/y")
    assert s3cmd("ls", "-r", f"s3://{bucket}").strip() == ""


def test_s3cmd_sync_and_big_file(s3cmd, bucket, tmp_path, rng):
    source = python_package()
    s3cmd("sync", "--exclude", "__pycache__/*", f"{source}/", f"s3://{bucket}/email/")
    s3cmd("sync", f"s3://{bucket}/email/", f"{tmp_path}/back/")
    run("diff", "-r", "-x", "__pycache__", source, tmp_path / "back")
    (tmp_path / "big").write_bytes(rng.randbytes(40 << 20))
    s3cmd("put", tmp_path / "big", f"s3://{bucket}/big")
    s3cmd("get", f"s3://{bucket}/big", tmp_path / "big back")
    same(tmp_path / "big", tmp_path / "big back")
    s3cmd("del", "--recursive", "--force", f"s3://{bucket}/")
    s3cmd("rb", f"s3://{bucket}")
