"""Power cuts: the disk loses or tears unflushed writes (FUSE disk with a volatile cache)."""

import pytest

from harness import load, wait


def rounds_of_power_cuts(server, disk, rounds):
    server.s3().create_bucket(Bucket="power")
    writers = [load.Writer(number, "power") for number in range(5)]
    lost = 0
    for number in range(rounds):
        before = sum(writer.count for writer in writers)
        threads = load.start(writers, server)
        wait.until(lambda: sum(writer.count for writer in writers) >= before + 30 + 10 * number % 70, 120, "acknowledged writes")
        # At any moment, or while a flush is in flight: then unflushed data exists.
        hold = disk.fault("fsync", "hold") if number % 3 else None
        if hold:
            wait.until(lambda: disk.counts()["held"] > 0, what="a flush that is held")
        lost += disk.command(cut=1000 + number)["lost"]
        if hold:
            disk.remove(hold)
        server.kill()
        load.stop(writers, threads)
        disk.command(power_on=None)
        server.start()
        load.check(server, writers)
        load.check_listing(server, writers)
    load.check(server, writers, every_key=True)
    assert lost > 0, "no cut has lost anything, so the test proves nothing"


def test_power_cuts_under_load_lose_nothing(fuse_disk, make_server):
    fuse_disk.command(volatile=True)
    server = make_server(disk=fuse_disk, pool_size="1 GiB", extent_size="8 MiB")
    rounds_of_power_cuts(server, fuse_disk, 5)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_power_cuts_under_load_lose_nothing(fuse_disk, make_server):
    fuse_disk.command(volatile=True)
    server = make_server(disk=fuse_disk, pool_size="1 GiB", extent_size="8 MiB")
    rounds_of_power_cuts(server, fuse_disk, 60)
