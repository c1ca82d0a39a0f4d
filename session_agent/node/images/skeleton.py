"""The read-only layers that every sandbox has beside those of its image.

The topmost layer has the directories that rootfs.py mounts onto: it hides entries of an image in their place, such as a link, which could
redirect a mount. The lowest layers have files that programs expect and an image may lack: an image's own files hide them. Called when the
node starts and when an image is imported.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

_MOUNT_POINTS = {"dev": 0o755, "proc": 0o555, "sys": 0o555}
_EXPECTED = {"tmp": 0o1777, "etc": 0o755, "run": 0o755}
TOP, BASE = "skeleton", "base"
LAYERS = {TOP: _MOUNT_POINTS, BASE: _EXPECTED}
"""The layers by name: above an image and below it."""


_HOSTS = """127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
fe00::0\tip6-localnet
ff00::0\tip6-mcastprefix
ff02::1\tip6-allnodes
ff02::2\tip6-allrouters
"""


def hosts_file(name: str) -> str:
    """The content of /etc/hosts, as docker writes it, with the sandbox's own name last."""
    return f"{_HOSTS}127.0.0.1\t{name}\n"


def make_directory(path: str, mode: int) -> None:
    os.makedirs(path, exist_ok=True)
    os.chmod(path, mode)


def build(path: str, *names: str) -> None:
    """Create the directory *path* again, with the files of the layers of these names."""
    shutil.rmtree(path, ignore_errors=True)
    make_directory(path, 0o755)
    for layer in names:
        for name, mode in LAYERS[layer].items():
            make_directory(os.path.join(path, name), mode)
    if BASE in names:
        os.symlink("/proc/mounts", os.path.join(path, "etc/mtab"))


def fill_directories(root: str, paths: Sequence[str]) -> None:
    """Create the lowest layer of an image in the empty directory *root*: the directories of its volumes."""
    make_directory(root, 0o755)
    for path in paths:
        os.makedirs(os.path.join(root, path), mode=0o755, exist_ok=True)
