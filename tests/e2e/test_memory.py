"""Memory is bounded by configuration, not by clients."""

import pytest

from harness.server import in_threads


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_hundred_uploads_onto_a_slow_disk(fuse_disk, make_server):
    budget_mib = 64
    server = make_server(disk=fuse_disk, pool_size="2 GiB", settings={
        "log.write_budget": f"{budget_mib} MiB", "data.write_buffers": "32 MiB", "data.read_buffers": "32 MiB"})
    server.s3().create_bucket(Bucket="memory")
    assert server.request("PUT", "/memory/small", b"data")[0] == 200
    base_kib = server.memory_kib("VmRSS")
    fuse_disk.command(bandwidth=5_000_000)
    done, answered = [], 0

    def upload(number):
        if number == 200:
            return read_meanwhile()
        # As an SDK: told to slow down, it tries again.
        for _ in range(60):
            status, _, text = server.request("PUT", f"/memory/{number}", b"m" * (2 << 20), timeout_s=300)
            if status != 503:
                break
        assert status == 200, (status, text)
        done.append(number)

    def read_meanwhile():
        nonlocal answered
        while len(done) < 200:
            assert server.request("GET", "/memory/small", timeout_s=10)[2] == b"data"
            answered += 1

    in_threads(201, upload)
    peak_mib = server.memory_kib("VmHWM") / 1024
    print(f"peak {peak_mib:.0f} MiB, at rest {base_kib / 1024:.0f} MiB, budget {budget_mib} MiB, {answered} reads meanwhile")
    assert answered > 50
    assert peak_mib <= budget_mib + 64
    assert server.s3().list_objects_v2(Bucket="memory")["KeyCount"] == 201
