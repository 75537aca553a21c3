"""Legs of a super-disk that are lost, blank, old, foreign or copied."""

import random
import shutil
import time

import pytest

from harness import load, wait
from harness.pair import MIB, POOL, check_all, fill, put, verify


# -- a fast leg that is lost, blank, old, foreign -------------------------------------------------


def writers_until(pair, enough, writers):
    before = sum(writer.count for writer in writers)
    threads = load.start(writers, pair.server)
    wait.until(lambda: sum(writer.count for writer in writers) >= before + enough, 120, "acknowledged writes")
    return threads


@pytest.mark.parametrize("how", ["deleted", "zeroed"])
def test_kill_9_and_a_lost_fast_leg(make_pair, how):
    pair = make_pair(members=2)
    server = pair.server
    writers = [load.Writer(number, "pair") for number in range(4)]
    threads = writers_until(pair, 150, writers)
    server.kill()
    load.stop(writers, threads)
    for path in pair.fast:
        if how == "deleted":
            path.unlink()
        else:
            size = path.stat().st_size
            with open(path, "r+b") as file:
                file.truncate(0)
                file.truncate(size)
    begin = time.monotonic()
    server.start()
    took = time.monotonic() - begin
    assert took < 3, f"ready after {took:.1f} s"
    load.check(server, writers, every_key=True)
    load.check_listing(server, writers)
    pair.wait_state()
    threads = writers_until(pair, 50, writers)
    load.stop(writers, threads)
    load.check(server, writers, every_key=True)
    assert server.stop() == 0
    verify(server)
    verify(server, "--fast")


def test_an_old_fast_leg_put_back_is_noticed_and_rebuilt(make_pair):
    pair = make_pair()
    server = pair.server
    writers = [load.Writer(number, "pair") for number in range(4)]
    load.stop(writers, writers_until(pair, 100, writers))
    assert server.stop() == 0
    old = pair.fast[0].with_suffix(".old")
    shutil.copyfile(pair.fast[0], old)
    for _ in range(2):
        server.start()
        load.stop(writers, writers_until(pair, 150, writers))
        assert server.stop() == 0
    shutil.copyfile(old, pair.fast[0])
    old.unlink()
    server.start()
    assert "the fast leg has been restored to an earlier time" in server.log(), server.log()
    load.check(server, writers, every_key=True)
    load.check_listing(server, writers)
    pair.wait_state()
    load.check(server, writers, every_key=True)
    assert server.stop() == 0
    verify(server, "--fast")


def test_a_fast_leg_is_used_again_after_a_clean_stop(make_pair):
    pair = make_pair()
    server = pair.server
    fill(server, 60, MIB)
    pair.wait_state()
    assert server.stop() == 0
    server.start()
    pair.wait_state()
    rebuilt = server.metric("steadfast_superdisk_rebuilt_bytes_total")
    assert rebuilt < 20 * MIB, f"{rebuilt} bytes were rebuilt although nothing had happened"
    server.kill()
    server.start()
    pair.wait_state()


def test_a_fast_leg_of_others_is_never_touched(make_pair):
    pair = make_pair()
    server = pair.server
    objects = fill(server, 10, 100_000)
    assert server.stop() == 0
    precious = bytearray(random.Random(3).randbytes(4 * MIB))
    precious[1024 + 56:1024 + 58] = b"\x53\xef"
    pair.fast[0].write_bytes(precious)
    server.start()
    check_all(server, objects)
    assert "ext4" in server.log()
    wait.until(lambda: "What to do" in server.log(), what="the remedy in the log")
    assert pair.state() == "foreign"
    assert server.admin("/health/ready")[0] == 200
    shown = server.command("disk", "list", "--admin", f"127.0.0.1:{server.admin_port}")
    assert shown.returncode == 3 and "foreign" in shown.stdout, shown.stdout + shown.stderr
    fill(server, 10, 100_000, first=50)
    assert server.stop() == 0
    assert pair.fast[0].read_bytes() == precious
    # On the operator's order, only the fast disk is formatted anew, and the pool stays.
    refused = server.command("format", "--data", str(server.data), "--fast-only")
    assert refused.returncode == 1 and "ext4" in refused.stderr, refused.stderr
    forced = server.command("format", "--data", str(server.data), "--fast-only", "--force")
    assert forced.returncode == 0, forced.stderr
    server.start()
    check_all(server, objects)
    pair.wait_state()


def test_the_fast_leg_of_another_pool_is_not_taken(make_pair, make_server, tmp_path):
    pair = make_pair()
    assert pair.server.stop() == 0
    other = make_server("other", pool_size=f"{POOL} B", extent_size="4 MiB",
                        settings={"superdisk.fast": pair.fast[0]}, start=False)
    before = pair.fast[0].read_bytes()
    other.start()
    assert other.admin("/health/ready")[0] == 200
    assert other.status()["superdisks"][0]["fast"]["state"] == "foreign", other.log()
    assert other.stop() == 0
    assert pair.fast[0].read_bytes() == before
    pair.server.start()
    pair.wait_state()


def test_a_missing_fast_leg_costs_only_speed(make_pair):
    pair = make_pair(start=False, settings={"superdisk.fast": "/dev/steadfast-no-such-disk"})
    server = pair.server.start()
    server.s3().create_bucket(Bucket="pair")
    objects = fill(server, 10, 100_000)
    check_all(server, objects)
    assert pair.state() == "missing"
    wait.until(lambda: "steadfast-no-such-disk" in server.log() and "What to do" in server.log(), what="the remedy in the log")
    assert server.admin("/health/ready")[0] == 200
    shown = server.command("status", "--admin", f"127.0.0.1:{server.admin_port}")
    assert "degraded" in shown.stdout.lower(), shown.stdout


# -- copies of the durable leg ----------------------------------------------------------------


def test_a_copy_of_the_durable_leg_under_load_is_a_pool(make_pair, make_server, tmp_path):
    """Like a block snapshot, taken at one moment: the file is frozen while it is copied."""
    pair = make_pair()
    server = pair.server
    writers = [load.Writer(number, "pair") for number in range(4)]
    for round_number in range(3):
        threads = writers_until(pair, 60, writers)
        # Writes acknowledged before the copy begins must be in it.
        moments = [writer.moment() for writer in writers]
        copy = tmp_path / f"copy{round_number}.pool"
        server.process.send_signal(19)  # SIGSTOP: the moment of the snapshot
        try:
            shutil.copyfile(pair.durable, copy)
        finally:
            server.process.send_signal(18)
        load.stop(writers, threads)
        snapshot = make_server(f"copy{round_number}", pool_size=f"{POOL} B", settings={"data.pool": copy}, start=False)
        snapshot.start()
        wrong, read = [], 0
        for writer, moment in zip(writers, moments):
            for key in sorted(writer.attempts):
                status, _, data = snapshot.request("GET", f"/pair/{key}")
                found = load.digest(data) if status == 200 else load.ABSENT
                read += status == 200
                if status not in (200, 404) or found not in writer.allowed(moment, key):
                    wrong.append((key, status))
        assert read > 20
        assert not wrong, wrong
        assert snapshot.stop() == 0
        verify(snapshot)
        copy.unlink()


@pytest.mark.parametrize("kept", ["durable leg restored", "fast leg put back"])
def test_legs_of_two_times_of_one_opening_are_not_mixed(make_pair, tmp_path, kept):
    """A cloud volume is restored to a snapshot and meets its later fast leg, or the fast leg is the
    older one."""
    pair = make_pair()
    server = pair.server
    objects = fill(server, 200, 100_000)
    pair.wait_state()
    # A clean stop leaves no dirty region: later writes raise events.
    assert server.stop() == 0
    server.start()
    pair.wait_state()
    leg_name, leg = ("durable", pair.durable) if kept == "durable leg restored" else ("fast", pair.fast[0])
    copy = tmp_path / "copy"
    server.process.send_signal(19)  # SIGSTOP: the moment of the snapshot
    try:
        shutil.copyfile(leg, copy)
    finally:
        server.process.send_signal(18)
    before = dict(objects)
    for number in range(100):
        key = f"o{number:04}"
        objects[key] = load.content(1000 + number, 100_000)
        put(server, key, objects[key])
    objects |= fill(server, 200, 100_000, first=200)
    pair.wait_state()
    if kept == "fast leg put back":
        # Clearing the bits makes the image outdated.
        assert server.stop() == 0
    else:
        server.kill()
    shutil.copyfile(copy, leg)
    copy.unlink()
    if leg == pair.durable:
        objects = before
        # Its index is gone; the server rebuilds it from the pool.
        for index in server.data.glob("index*"):
            shutil.rmtree(index)
    server.start()
    # The opening logs this before the server is ready; the rebuild may already be complete.
    assert f"the {leg_name} leg has been restored to an earlier time" in server.log(), server.log()
    check_all(server, objects)
    pair.wait_state()
    assert pair.healed("durable") == 0, "no block of one leg was copied to the other"
    check_all(server, objects)
    listed = [o["Key"] for page in server.s3().get_paginator("list_objects_v2").paginate(Bucket="pair")
              for o in page.get("Contents", [])]
    assert listed == sorted(objects)
    assert server.stop() == 0
    verify(server, "--fast")
    pair.fast[0].unlink()
    server.start()
    check_all(server, objects)
    assert server.stop() == 0
    verify(server)
