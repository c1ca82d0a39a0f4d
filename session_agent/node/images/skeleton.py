"""The topmost read-only layer under every sandbox: mount points and the few files that must be ours.

Owns the directories that rootfs.py mounts onto. Being on top, they hide whatever an image has in their place, a link
for instance, so that a mount can never be led astray. Called once when the node starts.
"""

from __future__ import annotations

import os
import secrets
import shutil

_DIRECTORIES = {
    "dev": 0o755,
    "proc": 0o555,
    "sys": 0o555,
    "tmp": 0o1777,
    "workspace": 0o777,
    "etc": 0o755,
    "run": 0o755,
}


def hosts_file(name: str) -> str:
    return f"127.0.0.1\tlocalhost {name}\n::1\tlocalhost ip6-localhost\n".replace(" \n", "\n")


def make_directory(path: str, mode: int) -> None:
    os.makedirs(path, exist_ok=True)
    os.chmod(path, mode)


def write_file(path: str, text: str, mode: int = 0o644) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, mode)


def fill(root: str) -> None:
    """Make the skeleton in the empty directory *root*."""
    os.chmod(root, 0o755)  # noqa: S103 - the root of a file tree
    for name, mode in _DIRECTORIES.items():
        make_directory(os.path.join(root, name), mode)
    write_file(os.path.join(root, "etc/hosts"), hosts_file(""))
    write_file(os.path.join(root, "etc/resolv.conf"), "# no network\n")


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


def build(path: str) -> None:
    """Make the skeleton layer at *path* anew."""
    temporary = fresh(path)
    fill(temporary)
    replace(temporary, path)
