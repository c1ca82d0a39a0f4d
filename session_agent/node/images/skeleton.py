"""The read-only layers that every sandbox has beside those of its image.

The topmost has the directories that rootfs.py mounts onto. Being on top, they hide what an image has in their place, such as a
link, which could redirect a mount. The lowest ones have what programs expect and an image may lack: an image's own files hide
them. Called when the node starts and when an image is imported.
"""

from __future__ import annotations

import os
import secrets
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
    """As docker writes it, with the sandbox's own name last."""
    return f"{_HOSTS}127.0.0.1\t{name}\n"


def make_directory(path: str, mode: int) -> None:
    os.makedirs(path, exist_ok=True)
    os.chmod(path, mode)


def write_file(path: str, text: str, mode: int = 0o644) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, mode)


def fill(root: str, *names: str) -> None:
    """Put layers of these names together in the empty directory *root*."""
    os.chmod(root, 0o755)  # noqa: S103 - the root of a file tree
    for layer in names:
        for name, mode in LAYERS[layer].items():
            make_directory(os.path.join(root, name), mode)
    if BASE in names:
        os.symlink("/proc/mounts", os.path.join(root, "etc/mtab"))


def fill_directories(root: str, paths: Sequence[str]) -> None:
    """Make the lowest layer of an image in the empty directory *root*: its volumes."""
    os.chmod(root, 0o755)  # noqa: S103 - the root of a file tree
    for path in paths:
        parts = [part for part in path.split("/") if part not in ("", ".", "..")]
        if parts:
            os.makedirs(os.path.join(root, *parts), mode=0o755, exist_ok=True)


def fresh(path: str) -> str:
    """A new, private directory beside *path*, for `replace`."""
    temporary = f"{path}.{secrets.token_hex(4)}.tmp"
    os.makedirs(temporary, mode=0o755)
    return temporary


def replace(temporary: str, path: str) -> None:
    """Put *temporary* in the place of *path*; a crash leaves one or the other."""
    if os.path.isdir(path):
        old = f"{path}.{secrets.token_hex(4)}.tmp"
        os.rename(path, old)
        os.rename(temporary, path)
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.rename(temporary, path)


def build(name: str, path: str) -> None:
    """Make the layer of that name at *path* anew."""
    temporary = fresh(path)
    fill(temporary, name)
    replace(temporary, path)
