"""Block devices: real NBD clients, and a ledger of acknowledged writes, kept outside the disk."""

import contextlib
import os
import pathlib
import random
import re
import shutil
import socket
import subprocess
import threading

import pytest

from harness import loops, wait
from harness.nbd import BLOCK, FUA, READ, BlockServer, Client

MIB = 1 << 20
# Debian's own Python has the bindings of libnbd.
PATH = {**os.environ, "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"}


@pytest.fixture
def device(tmp_path):
    server = BlockServer(tmp_path)
    server.format()
    try:
        yield server.start()
    finally:
        server.close()


def run(*command, **options):
    if not shutil.which(command[0], path=PATH["PATH"]):
        pytest.skip(f"no {command[0]} here")
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120, check=False,
                          env=PATH, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


# -- clients ------------------------------------------------------------------------------------


def test_nbdinfo_shows_the_export(device):
    shown = run("nbdinfo", device.uri)
    for word in ("can_flush: true", "can_fua: true", "can_multi_conn: true", "can_trim: true", "export-size: 65011712",
                 "structured packets", "block_size_preferred: 4096"):
        assert word in shown, shown
    assert 'export="disk"' in run("nbdinfo", "--list", device.uri)


def test_nbdcopy_there_and_back(device, tmp_path):
    there, back = tmp_path / "there", tmp_path / "back"
    there.write_bytes(random.Random(1).randbytes(62 * MIB))
    run("nbdcopy", "--flush", there, device.uri)
    run("nbdcopy", device.uri, back)
    assert back.read_bytes() == there.read_bytes()
    assert device.stop() == 0
    # Only the durable disk has it, from 1 MiB.
    with device.durable.open("rb") as disk:
        disk.seek(MIB)
        assert disk.read(62 * MIB) == there.read_bytes()


def test_nbdsh_uses_every_command(device):
    run("nbdsh", "-u", device.uri, "-c", """
h.set_strict_mode(0)
h.pwrite(b"a" * 512, 1024); h.pwrite(b"b" * 3, 1500, nbd.CMD_FLAG_FUA); h.flush()
assert h.pread(1024, 1024) == b"a" * 476 + b"b" * 3 + b"a" * 33 + bytes(512)
h.zero(512, 1024); assert h.pread(512, 1024) == bytes(512)
h.trim(1 << 20, 0)
size = h.get_size()
h.pwrite(b"end!", size - 4); assert h.pread(4, size - 4) == b"end!"
for bad in (lambda: h.pread(512, size), lambda: h.pwrite(bytes(512), size - 4)):
    try:
        bad()
    except nbd.Error:
        continue
    raise SystemExit("out of range was not refused")
assert h.pread(4, size - 4) == b"end!"
""")


def test_qemu_io_writes_discards_and_reads(device):
    url = f"nbd+unix:///disk?socket={device.socket}"
    shown = run("qemu-io", "-f", "raw", url, "-c", "write -P 7 512 8192", "-c", "write -z 1M 1M", "-c", "discard 4M 4M",
                "-c", "write -f -P 9 8M 64k", "-c", "flush", "-c", "read -P 7 512 8192", "-c", "read -P 0 1M 1M",
                "-c", "read -P 9 8M 64k")
    assert "failed" not in shown and "error" not in shown.lower(), shown


def test_qemu_reconnects_to_a_server_that_was_killed(device):
    """QEMU's block layer with the recipe's `reconnect-delay`: a server restart pauses the guest."""
    if not shutil.which("qemu-io", path=PATH["PATH"]):
        pytest.skip("no qemu-io here")
    options = f"driver=nbd,server.type=unix,server.path={device.socket},export=disk,reconnect-delay=60,open-timeout=60"
    with contextlib.closing(Client(device.socket)) as watch, subprocess.Popen(
            ["qemu-io", "--image-opts", options], env=PATH, text=True, bufsize=1, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as qemu:
        qemu.stdin.write("write -f -P 7 1M 64k\n")
        wait.until(lambda: watch.read(MIB, BLOCK) == bytes([7]) * BLOCK, 30, "the first write")
        device.kill()
        # These requests wait for the server.
        qemu.stdin.write("read -P 7 1M 64k\nwrite -f -P 8 2M 64k\nread -P 8 2M 64k\n")
        device.start()
        shown, _ = qemu.communicate(timeout=60)
    assert qemu.returncode == 0 and "fail" not in shown and "error" not in shown.lower(), shown
    assert shown.count("read 65536/65536") == shown.count("wrote 65536/65536") == 2, shown


def test_a_client_that_floods_and_takes_no_replies_is_bounded(device):
    memory = lambda: int(re.search(r"VmRSS:\s+(\d+) kB", pathlib.Path(f"/proc/{device.process.pid}/status").read_text())[1])
    before, mute = memory(), [Client(device.socket) for _ in range(4)]
    for client in mute:
        client.socket.settimeout(0.5)
        # Send reads of 1 MiB until the server accepts no more.
        with contextlib.suppress(TimeoutError):
            for _ in range(10_000):
                client.send(READ, 0, MIB)
            raise AssertionError("the server takes requests without end")
    status = device.status()["export"]
    assert status["bytes_in_flight"] <= 64 * MIB and status["in_flight"] <= 4 * 128, status
    assert memory() - before < (64 + 64 + 32) * 1024
    for client in mute:
        client.close()
    with contextlib.closing(Client(device.socket)) as client:
        client.write(0, b"x" * BLOCK, FUA)
        assert client.read(0, BLOCK) == b"x" * BLOCK


def test_fio_verifies_what_it_wrote(device):
    if not shutil.which("fio"):
        pytest.skip("no fio here")
    if "nbd" not in run("fio", "--enghelp"):
        pytest.skip("this fio has no nbd engine")
    run("fio", "--name=v", "--ioengine=nbd", f"--uri={device.uri}", "--rw=randrw", "--bsrange=512-64k", "--iodepth=16",
        "--size=48m", "--verify=crc32c", "--fsync=32", "--verify_fatal=1", "--verify_state_save=0", "--randseed=7")


def test_a_file_system_on_the_durable_disk_alone(device, tmp_path):
    """A copy of the durable disk is an ordinary disk: its first partition mounts without Steadfast.
    """
    if loops.missing() or not shutil.which("mkfs.ext4", path=PATH["PATH"]):
        pytest.skip(loops.missing() or "no mkfs.ext4 here")
    image = tmp_path / "image"
    image.write_bytes(bytes(62 * MIB))
    # Not the whole folder of the tests: it grows with the packages that are installed in it.
    files = pathlib.Path(__file__).parent / "harness"
    run("mkfs.ext4", "-q", "-d", files, image)
    run("nbdcopy", "--flush", image, device.uri)
    copy = tmp_path / "copy"
    shutil.copyfile(device.durable, copy)
    attached = subprocess.run(["losetup", "--find", "--show", "--offset", str(MIB), "--sizelimit", str(62 * MIB), copy],
                              capture_output=True, text=True, check=False)
    if attached.returncode != 0:
        pytest.skip(f"the kernel gives no loop device: {attached.stderr}")
    loop, mount = attached.stdout.strip(), tmp_path / "mount"
    mount.mkdir()
    try:
        run("fsck.ext4", "-fn", loop)
        run("mount", "-o", "ro", loop, mount)
        assert (mount / "nbd.py").read_bytes() == (files / "nbd.py").read_bytes()
        run("umount", mount)
    finally:
        loops.detach(loop)


# -- crashes ------------------------------------------------------------------------------------


class Ledger:
    """The versions that each block may hold: the last acknowledged one, or one whose write was
    interrupted."""

    def __init__(self, blocks):
        self.may = [{0} for _ in range(blocks)]
        self.next = 0

    def content(self, block, version):
        return (version.to_bytes(8, "little") + block.to_bytes(8, "little")) * (BLOCK // 16) if version else bytes(BLOCK)

    def write(self, client, block):
        self.next += 1
        version = self.next
        self.may[block].add(version)
        client.write(block * BLOCK, self.content(block, version), flags=FUA)
        self.may[block] = {version}

    def check(self, path):
        """Reads all blocks, and records the version read as the version held."""
        client = Client(path)
        for block, may in enumerate(self.may):
            data = client.read(block * BLOCK, BLOCK)
            found = [version for version in may if data == self.content(block, version)]
            assert found, f"block {block} holds {data[:16]!r} and may hold {sorted(may)}"
            self.may[block] = set(found)
        client.close()


def write_and_stop(server, ledger, blocks):
    """Writes these blocks, and stops the server in order once both disks are equal."""
    client = Client(server.socket)
    for block in blocks:
        ledger.write(client, block)
    client.close()
    server.wait_clean()
    assert server.stop() == 0


def write_until_killed(server, ledger, dice):
    """Several clients write blocks of their own; the server is killed in the middle."""
    lanes = 4
    stop = threading.Event()
    written = threading.Semaphore(0)

    def lane(number, dice):
        try:
            client = Client(server.socket)
            while not stop.is_set():
                ledger_lock.acquire()
                block = dice.randrange(len(ledger.may) // lanes) * lanes + number
                ledger_lock.release()
                ledger.write(client, block)
                written.release()
        except (ConnectionError, OSError):
            pass

    ledger_lock = threading.Lock()
    threads = [threading.Thread(target=lane, args=(n, random.Random(dice.random()))) for n in range(lanes)]
    for thread in threads:
        thread.start()
    for _ in range(dice.randrange(50, 400)):
        assert written.acquire(timeout=60)
    server.kill()
    stop.set()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("fast", ["kept", "deleted", "blank", "old copy"])
def test_kill_9_loses_nothing_acknowledged(device, tmp_path, fast):
    dice, ledger = random.Random(fast), Ledger(2048)
    for _ in range(4):
        image = tmp_path / "image"
        if fast == "old copy":
            shutil.copyfile(device.fast[0], image)
        write_until_killed(device, ledger, dice)
        if fast == "old copy":
            os.replace(image, device.fast[0])
        elif fast == "deleted":
            device.fast[0].unlink()
        elif fast == "blank":
            size = device.fast[0].stat().st_size
            device.fast[0].unlink()
            with device.fast[0].open("wb") as file:
                file.truncate(size)
        device.start()
        ledger.check(device.socket)
    assert device.stop() == 0
    device.start()
    ledger.check(device.socket)
    # Without its fast disk, the device opens at once, with the same data.
    assert device.stop() == 0
    device.fast = []
    device.start()
    ledger.check(device.socket)


def test_a_restored_durable_disk_shows_its_own_time(device, tmp_path):
    """A cloud volume is restored to a snapshot of the same opening, and the fast disk is kept."""
    dice, ledger = random.Random(5), Ledger(1024)
    client = Client(device.socket)
    for _ in range(300):
        ledger.write(client, dice.randrange(1024))
    client.close()
    # A clean stop leaves no dirty region once everything has been copied.
    device.wait_clean()
    assert device.stop() == 0
    device.start()
    client = Client(device.socket)
    snapshot = tmp_path / "snapshot"
    shutil.copyfile(device.durable, snapshot)
    then = [set(may) for may in ledger.may]
    for _ in range(300):
        ledger.write(client, dice.randrange(1024))
    client.close()
    assert device.stop() == 0
    os.replace(snapshot, device.durable)
    ledger.may = then
    device.start()
    assert "restored to an earlier time" in device.log(), device.log()
    ledger.check(device.socket)


@pytest.mark.parametrize("disk", range(3))
def test_one_of_several_fast_disks_put_back_alone_shows_no_old_block(tmp_path, disk):
    server, ledger, image = BlockServer(tmp_path, fast=3), Ledger(2048), tmp_path / "image"
    server.format()
    try:
        server.start()
        write_and_stop(server, ledger, range(2048))
        shutil.copyfile(server.fast[disk], image)
        server.start()
        write_and_stop(server, ledger, range(0, 2048, 100))
        os.replace(image, server.fast[disk])
        server.start()
        assert "the fast leg has been restored to an earlier time" in server.log(), server.log()
        ledger.check(server.socket)
    finally:
        server.close()


def test_a_fast_disk_of_a_history_that_was_given_up_shows_no_block_of_it(device, tmp_path):
    """Both disks are restored to one time; later the fast disk is replaced by an image of a later
    time."""
    ledger, images = Ledger(2048), [tmp_path / "durable image", tmp_path / "fast image", tmp_path / "later image"]
    write_and_stop(device, ledger, range(2048))
    shutil.copyfile(device.durable, images[0])
    shutil.copyfile(device.fast[0], images[1])
    then = [set(may) for may in ledger.may]
    for block, restored in ((300, False), (1500, True)):
        if restored:
            shutil.copyfile(device.fast[0], images[2])
            os.replace(images[0], device.durable)
            os.replace(images[1], device.fast[0])
            ledger.may = then
        device.start()
        client = Client(device.socket)
        ledger.write(client, block)
        client.close()
        device.kill()
    os.replace(images[2], device.fast[0])
    device.start()
    assert "of another history" in device.log(), device.log()
    ledger.check(device.socket)


def test_a_durable_disk_written_elsewhere_shows_what_was_written(device):
    ledger = Ledger(1024)
    write_and_stop(device, ledger, range(1024))
    with device.durable.open("r+b") as disk:
        for block in (0, 700):
            ledger.next += 1
            disk.seek(MIB + block * BLOCK)
            disk.write(ledger.content(block, ledger.next))
            ledger.may[block] = {ledger.next}
    device.start()
    assert "written elsewhere" in device.log(), device.log()
    ledger.check(device.socket)
    # Where samples find no difference, the operator decides.
    assert device.stop() == 0
    done = device.command("forget-fast", "--durable", device.durable)
    assert done.returncode == 0, done.stderr
    shown = device.command("status", "--durable", device.durable, "--fast", device.fast[0])
    assert "not usable" in shown.stdout, shown.stdout + shown.stderr
    device.start()
    ledger.check(device.socket)


def test_clients_that_only_connect_do_not_keep_others_out(device):
    strangers = []

    def connect_strangers(count):
        for _ in range(count):
            strangers.append(socket.socket(socket.AF_UNIX))
            strangers[-1].connect(str(device.socket))

    def client():
        # The kernel refuses a connection while too many wait to be accepted.
        with contextlib.suppress(BlockingIOError):
            return Client(device.socket)

    connect_strangers(200)
    session = wait.until(client, 10, "a place")
    session.write(0, b"z" * 4096)
    # A session keeps its place.
    connect_strangers(100)
    wait.until(client, 10, "another place").close()
    assert session.read(0, 4096) == b"z" * 4096
    for stranger in strangers:
        stranger.close()
    assert "was refused" not in device.log()


# -- commands -----------------------------------------------------------------------------------


def test_disks_that_hold_something_are_not_overwritten(tmp_path):
    server = BlockServer(tmp_path)
    server.durable.write_bytes(b"precious" * MIB)
    refused = server.command("format", *server.disks())
    assert refused.returncode == 1 and "ALL ITS DATA IS LOST" in refused.stderr, refused.stderr
    assert server.durable.read_bytes() == b"precious" * MIB
    refused = server.command("serve", *server.disks(), "--listen", f"unix:{server.socket}")
    assert refused.returncode == 1 and "block format" in refused.stderr, refused.stderr
    done = server.command("format", *server.disks(), "--force")
    assert done.returncode == 0, done.stderr
    server.start()
    # A served disk is not formatted, not even with --force.
    refused = server.command("format", *server.disks(), "--force")
    assert refused.returncode == 1, refused.stdout
    client = Client(server.socket)
    client.write(0, b"x" * 512)
    server.close()
    refused = server.command("serve", *server.disks(), "--listen", "0.0.0.0:10809")
    assert refused.returncode == 2 and "ssh -L" in refused.stderr, refused.stderr


def test_a_format_without_the_space_leaves_nothing(tmp_path):
    server = BlockServer(tmp_path)
    free = shutil.disk_usage(tmp_path)
    server.durable.unlink(missing_ok=True)
    refused = server.command("format", *server.disks(), "--size", f"{free.total // MIB + 64} MiB")
    assert refused.returncode == 1 and str(server.durable) in refused.stderr, refused.stderr
    assert not server.durable.exists() and not server.fast[0].exists()
    # A sparse file that the disk cannot hold.
    try:
        with open(server.durable, "wb") as file:
            file.truncate(free.total + 64 * MIB)
    except OSError:
        pytest.skip("no file of this length here")
    refused = server.command("format", *server.disks())
    assert refused.returncode == 1 and "the file system has" in refused.stderr, refused.stderr
    assert server.durable.stat().st_blocks * 512 < MIB
    # A fast disk that cannot be made takes the durable disk along.
    server.durable.unlink()
    refused = server.command("format", "--durable", server.durable, "--fast", tmp_path / "no" / "fast", "--size", "64 MiB")
    assert refused.returncode == 1 and not server.durable.exists(), refused.stderr
    assert server.command("format", *server.disks(), "--size", "64 MiB").returncode == 0


def test_serve_has_block_devices_too(make_server, tmp_path):
    server = BlockServer(tmp_path)
    server.format()
    config = tmp_path / "steadfast.toml"
    config.write_text(f'[[block]]\nname = "disk"\ndurable = "{server.durable}"\nfast = ["{server.fast[0]}"]\n'
                      f'listen = "unix:{server.socket}"\n')
    pool = make_server(args=["--config", str(config)])
    client = Client(server.socket)
    client.write(4096, b"y" * 4096, flags=FUA)
    assert client.read(4096, 4096) == b"y" * 4096
    (row,) = pool.status()["block"]
    assert (row["name"], row["export"]["counts"]["written_bytes"]) == ("disk", 4096), row
    assert pool.metric("steadfast_block_written_bytes_total") == 4096
    assert pool.stop() == 0
    with server.durable.open("rb") as disk:
        disk.seek(MIB + 4096)
        assert disk.read(4096) == b"y" * 4096
