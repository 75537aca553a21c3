"""A pool on zones that are only written in order. No zoned device is needed: the server drives a
file like one (`data.zone_size`). A layer refuses whatever such a device would refuse, and a refusal
stops the log and fails the test."""

import json
import shutil

from harness import load, wait

from test_crash import crash_rounds, make_writers

ZONES = {"data.zone_size": "4 MiB", "data.zone_open_max": 6, "compaction.interval": "20ms", "store.inline_max": "16 KiB"}


def zoned(make_server, **settings):
    return make_server(pool_size="192 MiB", extent_size=None, settings={**ZONES, **settings})


def log_of(server):
    return server.status()["store"]["log"]


def test_kill_9_under_load_on_zones_loses_nothing(make_server):
    """Puts, overwrites and deletes until extents are reused, with crashes in between."""
    server = zoned(make_server)
    writers = make_writers(server, keys=8)
    crash_rounds(server, writers, 2)
    threads = load.start(writers, server)
    wait.until(lambda: log_of(server)["compaction"]["recycled"] > 20, 120, "recycled zones")
    load.stop(writers, threads)
    load.check(server, writers, every_key=True)
    zones = log_of(server)["zones"]
    assert zones["emulated"] and zones["zone_bytes"] == 4 << 20 and 0 < zones["open_zones"] <= 6
    assert server.admin("/health/ready")[0] == 200
    assert server.stop() == 0
    verified = server.command("verify", "--data", str(server.data))
    assert verified.returncode == 0, verified.stdout + verified.stderr
    # Nothing was left open, and the index is only a copy.
    shutil.rmtree(server.data / "index")
    server.start()
    load.check(server, writers, every_key=True)
    load.check_listing(server, writers)


def test_uploads_in_parts_on_zones(make_server):
    server = zoned(make_server)
    s3 = server.s3()
    s3.create_bucket(Bucket="zones")
    data = [load.content(number, 5 << 20) for number in range(3)]
    for round_number in range(6):
        upload = s3.create_multipart_upload(Bucket="zones", Key="k")["UploadId"]
        parts = []
        for number, part in enumerate(data, 1):
            answer = s3.upload_part(Bucket="zones", Key="k", UploadId=upload, PartNumber=number, Body=part)
            parts.append({"PartNumber": number, "ETag": answer["ETag"]})
            if round_number % 2 == 0 and number == 2:
                server.kill()
                s3 = server.start().s3()
        s3.complete_multipart_upload(Bucket="zones", Key="k", UploadId=upload, MultipartUpload={"Parts": parts})
        assert s3.get_object(Bucket="zones", Key="k")["Body"].read() == b"".join(data)
    assert server.stop() == 0


def test_a_pool_keeps_its_zones(make_server):
    """The format sets the zones: the configuration of a later start does not change them."""
    server = zoned(make_server)
    server.s3().create_bucket(Bucket="zones")
    server.s3().put_object(Bucket="zones", Key="k", Body=b"x" * 300_000)
    assert server.stop() == 0
    del server.settings["data.zone_size"]
    server.start()
    assert log_of(server)["zones"]["zone_bytes"] == 4 << 20
    assert server.s3().get_object(Bucket="zones", Key="k")["Body"].read() == b"x" * 300_000


def test_too_few_open_zones_are_refused(make_server):
    server = make_server(pool_size="192 MiB", extent_size=None, settings={**ZONES, "data.zone_open_max": 3}, start=False)
    run = server.command("format", "--data", str(server.data), "--size", "192 MiB")
    assert run.returncode != 0 and "only 3 zones may be open at a time: the log needs 5" in run.stderr, run.stderr
