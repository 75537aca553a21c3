"""Crashes of the process under load, and the data that must survive them."""

import random
import shutil

import pytest

from harness import load, wait


def make_writers(target, count=6, **options):
    target.s3().create_bucket(Bucket="crash")
    return [load.Writer(number, "crash", **options) for number in range(count)]


def crash_rounds(target, writers, rounds):
    rng = random.Random(7)
    for round_number in range(rounds):
        before = sum(writer.count for writer in writers)
        threads = load.start(writers, target)
        # Crash after a number of acknowledgements, so that every round has done work on any
        # machine.
        enough = before + rng.randrange(20, 400)
        wait.until(lambda: sum(writer.count for writer in writers) >= enough, 120, "acknowledged writes")
        target.kill()
        load.stop(writers, threads)
        target.start()
        load.check(target, writers, every_key=round_number % 10 == 9)
        load.check_listing(target, writers)
    assert load.check(target, writers, every_key=True) > 0


@pytest.mark.timeout(3600)
def test_kill_9_under_load_loses_nothing(make_server, request):
    rounds = request.config.getoption("--rounds")
    server = make_server(pool_size="2 GiB", extent_size="8 MiB")
    writers = make_writers(server)
    crash_rounds(server, writers, rounds)
    assert server.stop() == 0
    verified = server.command("verify", "--data", str(server.data))
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_kill_9_with_uploads_in_parts(make_server):
    """An upload in parts continues after a crash with the acknowledged parts."""
    server = make_server()
    s3 = server.s3()
    s3.create_bucket(Bucket="crash")
    upload = s3.create_multipart_upload(Bucket="crash", Key="k", Metadata={"m": "1"})["UploadId"]
    parts, data = [], []
    for number in range(1, 4):
        data.append(load.content(number, 5 << 20))
        answer = s3.upload_part(Bucket="crash", Key="k", UploadId=upload, PartNumber=number, Body=data[-1])
        parts.append({"PartNumber": number, "ETag": answer["ETag"]})
        server.kill()
        s3 = server.start().s3()
    assert [p["ETag"] for p in s3.list_parts(Bucket="crash", Key="k", UploadId=upload)["Parts"]] == [
        p["ETag"] for p in parts]
    s3.complete_multipart_upload(Bucket="crash", Key="k", UploadId=upload, MultipartUpload={"Parts": parts})
    server.kill()
    got = server.start().s3().get_object(Bucket="crash", Key="k")
    assert got["Body"].read() == b"".join(data) and got["Metadata"] == {"m": "1"}


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_a_deleted_index_is_rebuilt(make_server, clean):
    server = make_server(pool_size="2 GiB", extent_size="8 MiB")
    writers = make_writers(server, count=4)
    for writer in writers:
        writer.run(server, operations=100)
    uploads = server.s3().create_multipart_upload(Bucket="crash", Key="upload")["UploadId"]
    assert server.stop() == 0 if clean else server.kill() is None
    index = server.data / "index"
    assert index.is_dir(), sorted(server.data.iterdir())
    shutil.rmtree(index)
    server.start()
    load.check(server, writers, every_key=True)
    load.check_listing(server, writers)
    assert [u["UploadId"] for u in server.s3().list_multipart_uploads(Bucket="crash")["Uploads"]] == [uploads]
    assert server.stop() == 0
    server.start()
    load.check(server, writers, every_key=True)


def test_asynchronous_writes_outlive_a_crash_of_the_process_after_the_window(make_server):
    server = make_server()
    server.s3().create_bucket(Bucket="crash")
    durable = []
    for number in range(50):
        status, headers, _ = server.request("PUT", f"/crash/{number}", b"x" * number, {"x-steadfast-durability": "async"})
        assert status == 200
        durable.append(headers["x-steadfast-durable"])
    # An asynchronous write joins the flush of earlier writes if one is due.
    assert set(durable) <= {"true", "false"} and durable.count("false") > 20, durable
    # A synchronous write follows them in the same order: when it is durable, so are they.
    assert server.request("PUT", "/crash/last", b"")[0] == 200
    server.kill()
    server.start()
    for number in range(50):
        assert server.request("GET", f"/crash/{number}")[2] == b"x" * number


def test_a_full_history_is_compacted_and_survives(make_server):
    """More is written over time than the pool can hold: compaction frees the space of dead data."""
    server = make_server(pool_size="256 MiB", extent_size="8 MiB")
    writers = make_writers(server, count=4, keys=5, sizes=(1_000, 300_000, 1_500_000))
    written = 0
    for _ in range(3):
        threads = load.start(writers, server)
        goal = written + 200
        wait.until(lambda: sum(w.count for w in writers) >= goal, 150, "writes that replace each other")
        written = sum(w.count for w in writers)
        server.kill()
        load.stop(writers, threads)
        server.start()
        load.check(server, writers, every_key=True)
    assert not any(507 in w.refused for w in writers), [w.refused for w in writers]


def test_one_server_at_a_time(make_server):
    first = make_server()
    second = type(first)(first.data)
    second.log_path = first.log_path.with_suffix(".second")
    second.start(wait_ready=False)
    assert second.process.wait(30) != 0
    assert "another" in second.log() or "in use" in second.log() or "lock" in second.log(), second.log()
    assert first.request("GET", "/")[0] == 200
