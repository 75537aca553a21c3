"""Loop devices: block devices over files, where root may create them."""

import os
import shutil
import subprocess


def missing():
    """The reason why this machine cannot create one; None when it can."""
    if os.geteuid() != 0:
        return "loop devices need root"
    if not shutil.which("losetup"):
        return "no losetup here"
    if not os.path.exists("/dev/loop-control"):
        return "no /dev/loop-control here"
    return None


def attach(path, size):
    """A loop device over a new file; raises where the kernel refuses."""
    with open(path, "wb") as file:
        file.truncate(size)
    done = subprocess.run(["losetup", "--find", "--show", "--sector-size", "4096", path], capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        raise OSError(f"losetup: {done.stderr.strip()}")
    return done.stdout.strip()


def detach(device):
    subprocess.run(["losetup", "--detach", device], check=False)
