"""The process: TLS, stopping, commands, credentials, the admin port."""

import json
import os
import re
import signal
import stat
import subprocess
import threading

import pytest

from harness import load, sign, wait
from harness.raw import Raw
from harness.server import binary


def test_sigterm_finishes_accepted_requests(fuse_disk, make_server):
    server = make_server(disk=fuse_disk)
    server.s3().create_bucket(Bucket="stop")
    hold = fuse_disk.fault("fsync", "hold")
    answers = []
    thread = threading.Thread(target=lambda: answers.append(server.request("PUT", "/stop/k", b"accepted")))
    thread.start()
    wait.until(lambda: fuse_disk.counts()["held"] > 0, what="a flush that is held")
    server.terminate()
    wait.until(lambda: re.search(r"stop|shut", server.log()), what="the log of the stop")
    assert server.process.poll() is None and not answers
    fuse_disk.remove(hold)
    thread.join(30)
    assert answers and answers[0][0] == 200
    assert server.process.wait(30) == 0
    server.start()
    assert server.request("GET", "/stop/k")[2] == b"accepted"


def test_sigterm_finishes_a_body_in_transfer(make_server):
    server = make_server()
    server.s3().create_bucket(Bucket="stop")
    data = load.content(4, 3_000_000)
    raw = Raw(server)
    raw.request_head("PUT", "/stop/k", sign.headers_for("PUT", server.host, "/stop/k",
                                                         headers={"content-length": str(len(data))}))
    raw.send(data[:1_500_000])
    wait.until(lambda: server.metric("steadfast_s3_requests_in_flight") >= 1, what="the request")
    server.terminate()
    wait.until(lambda: re.search(r"stop|shut", server.log()), what="the log of the stop")
    raw.send(data[1_500_000:])
    assert raw.status() == 200
    raw.close()
    assert server.process.wait(30) == 0
    server.start()
    assert server.request("GET", "/stop/k")[2] == data


def test_idle_server_stops_at_once_and_starts_again(make_server):
    server = make_server()
    for _ in range(3):
        assert server.stop(10) == 0
        server.start()


def test_tls(make_server, certificate):
    certificate, key = certificate
    server = make_server(settings={"tls.certificate": certificate, "tls.key": key})
    server.tls = str(certificate)
    s3 = server.s3()
    s3.create_bucket(Bucket="tls")
    data = load.content(1, 3_000_000)
    s3.put_object(Bucket="tls", Key="k", Body=data)
    assert s3.get_object(Bucket="tls", Key="k")["Body"].read() == data
    # A client of plain HTTP gets an answer that explains it.
    status, _, text = server.request("GET", "/", timeout_s=30)
    assert status == 400 and b"https" in text
    assert s3.list_objects_v2(Bucket="tls")["KeyCount"] == 1


def test_credentials_are_made_once_and_kept_private(make_server):
    server = make_server(start=False)
    environment = server.environment
    server.environment = lambda: {k: v for k, v in environment().items() if not k.endswith(("ACCESS_KEY", "SECRET_KEY"))}
    server.start()
    kept = [path for path in server.data.iterdir() if path.is_file() and "credential" in path.name]
    assert len(kept) == 1, sorted(server.data.iterdir())
    assert stat.S_IMODE(kept[0].stat().st_mode) == 0o600
    text = kept[0].read_text()
    access = re.search(r"access_key\"?\s*[=:]\s*\"?([^\"\s,]+)", text)[1]
    secret = re.search(r"secret_key\"?\s*[=:]\s*\"?([^\"\s,]+)", text)[1]
    assert access in server.log()
    server.s3(access=access, secret=secret).list_buckets()
    server.stop()
    server.start()
    server.s3(access=access, secret=secret).list_buckets()
    assert kept[0].read_text() == text


def test_files_are_private_whatever_the_umask(make_server, tmp_path):
    folder = tmp_path / "made"
    # As systemd makes a state directory.
    (folder / "data").mkdir(parents=True, mode=0o755)
    before = os.umask(0)
    try:
        server = make_server("made/data", settings={"data.disks": f"{folder}/d0,{folder}/d1", "data.pool_size": "256 MiB"})
        s3 = server.s3()
        s3.create_bucket(Bucket="private")
        s3.put_object(Bucket="private", Key="secret name", Body=b"x" * 100_000)
        pool = ["--data", str(server.data)]
        for command in (["disk", "add", f"{folder}/d2", *pool],
                        ["block", "format", "--durable", f"{folder}/durable", "--fast", f"{folder}/fast", "--size", "64 MiB"],
                        ["format", "--data", f"{folder}/other", "--set", f"data.disks={folder}/d3"]):
            done = server.command(*command)
            assert done.returncode == 0, (command, done.stdout, done.stderr)
        # The index is written at a stop, and made again at a start.
        assert server.stop() == 0
        server.start()
        assert server.stop() == 0
    finally:
        os.umask(before)
    open_to_others = {}
    for path in folder.rglob("*"):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if mode & 0o077 and path not in (server.data, server.log_path):
            open_to_others[str(path)] = oct(mode)
    assert not open_to_others
    assert any(server.data.rglob("tables"))


def test_an_index_that_others_could_read_is_closed_to_them(make_server):
    server = make_server()
    assert server.stop() == 0
    indexes = [path for path in server.data.rglob("index*") if path.is_dir()]
    for path in indexes:
        path.chmod(0o755)
    server.start()
    assert indexes and all(stat.S_IMODE(path.stat().st_mode) == 0o700 for path in indexes), indexes


def test_metrics_and_status(shared):
    shared.s3().list_buckets()
    metrics = shared.metrics()
    assert all(name.startswith("steadfast_") for name in metrics), sorted(metrics)
    assert isinstance(shared.status(), dict)
    assert shared.admin("/health/live")[0] == 200
    assert shared.admin("/health/ready")[0] == 200
    assert shared.admin("/nothing/here")[0] == 404


def test_status_command(shared):
    done = shared.command("status", "--data", shared.data, "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["ready"] is True, done.stderr
    done = shared.command("status", "--admin", f"127.0.0.1:{shared.admin_port}", "--json")
    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout), dict)


@pytest.mark.parametrize("command", ["serve", "verify", "status", "probe", "simulate"])
def test_help_has_an_example(shared, command):
    done = shared.command(command, "--help")
    assert done.returncode == 0
    assert f"steadfast {command}" in done.stdout and "xample" in done.stdout, done.stdout


def test_a_hangup_does_not_end_the_server(make_server):
    server = make_server()
    os.kill(server.pid, signal.SIGHUP)
    wait.until(lambda: "SIGHUP is ignored" in server.log(), what="the line of the log")
    assert server.admin("/health/ready")[0] == 200
    assert server.stop() == 0


def test_a_deleted_working_directory_is_an_error(make_server, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    done = subprocess.run(["sh", "-c", f'rmdir {gone} && exec "$0" serve --data {tmp_path / "data"}', binary()], cwd=gone,
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "working directory" in done.stderr, done.stderr
    assert "panicked" not in done.stderr and not (tmp_path / "data").exists()


def test_services_of_kubernetes_with_the_same_name_do_not_stop_a_start(make_server):
    server = make_server(start=False)
    environment = server.environment
    services = {}
    for name in ("STEADFAST", "STEADFAST_S3", "CENTRIFUGO"):
        url = "tcp://10.0.0.1:9000"
        services |= {f"{name}_SERVICE_HOST": "10.0.0.1", f"{name}_SERVICE_PORT": "9000", f"{name}_SERVICE_PORT_HTTP": "9000",
                     f"{name}_PORT": url, f"{name}_PORT_9000_TCP": url, f"{name}_PORT_9000_TCP_PROTO": "tcp",
                     f"{name}_PORT_9000_TCP_PORT": "9000", f"{name}_PORT_9000_TCP_ADDR": "10.0.0.1"}
    server.environment = lambda: environment() | services
    server.start()
    assert server.stop() == 0
    server.environment = lambda: environment() | services | {"STEADFAST_S3_LISTN": "127.0.0.1:0"}
    server.start(wait_ready=False)
    assert server.process.wait(30) != 0 and "STEADFAST_S3_LISTEN" in server.log(), server.log()


def test_mistakes_in_the_configuration_are_named(make_server, tmp_path):
    config = tmp_path / "steadfast.toml"
    config.write_text('[s3]\nlisten = "127.0.0.1:0"\nlisen = "x"\n')
    server = make_server(start=False, args=["--config", str(config)])
    server.start(wait_ready=False)
    assert server.process.wait(30) != 0
    assert "lisen" in server.log() and "listen" in server.log() and ":3" in server.log(), server.log()


def test_probe(shared, tmp_path):
    done = shared.command("probe", str(tmp_path), "--json", timeout_s=170)
    assert done.returncode == 0, done.stdout + done.stderr
    assert isinstance(json.loads(done.stdout), dict)


def test_simulate_is_quick_and_repeatable(shared):
    first = shared.command("simulate", "--seed", "5", "--runs", "3")
    assert first.returncode == 0, first.stdout + first.stderr


def test_the_server_survives_closed_output(make_server, tmp_path):
    server = make_server(start=False)
    # Without credentials, the server creates some and prints them before its ready line.
    env = {name: value for name, value in server.environment().items() if not name.endswith("_KEY")}
    log_path = tmp_path / "errors"

    def with_closed_output(*command):
        read, write = os.pipe()
        os.close(read)
        try:
            with open(log_path, "wb") as errors:
                return subprocess.Popen([binary(), *command, "--data", str(server.data)], env=env, stdin=subprocess.DEVNULL,
                                        stdout=write, stderr=errors)
        finally:
            os.close(write)

    process = with_closed_output("serve", "--s3-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
    try:
        def ready():
            assert process.poll() is None, log_path.read_text()
            return server.command("status", "--data", str(server.data)).returncode == 0

        wait.until(ready, 60, "a server that answers")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert log_path.read_text().count("standard output cannot be written") == 2
    assert with_closed_output("disk", "list").wait(60) == 1
    assert log_path.read_text() == ""
