"""Copying a root directory into the store.

Owns the walk: links stay links, hard links stay shared, devices, pipes and sockets are left out, other mounts below
the directory are not entered. Called by formats.py, off the event loop.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator

from session_agent.node.images.layers import Budget


def _walk(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Relative paths, parents first, in a fixed order."""
    device = os.lstat(path).st_dev
    pending = [""]
    while pending:
        directory = pending.pop()
        for name in sorted(os.listdir(os.path.join(path, directory))):
            relative = os.path.join(directory, name)
            status = os.lstat(os.path.join(path, relative))
            yield relative, status
            if stat.S_ISDIR(status.st_mode) and status.st_dev == device:
                pending.append(relative)


def tree_digest(path: str, budget: Budget) -> str:
    """Names the state of *path*: names, types, modes, owners, sizes, times and link targets (not file contents)."""
    digest = hashlib.sha256(b"tree\0")
    for relative, status in _walk(path):
        budget.entry(status.st_size if stat.S_ISREG(status.st_mode) else 0)
        link = os.readlink(os.path.join(path, relative)) if stat.S_ISLNK(status.st_mode) else ""
        row = (relative, status.st_mode, status.st_uid, status.st_gid, status.st_size, status.st_mtime_ns, link)
        digest.update(repr(row).encode("utf-8", "surrogateescape") + b"\n")
    return f"sha256:{digest.hexdigest()}"


def copy_tree(path: str, target: str) -> None:
    """Copy *path* into the empty directory *target*."""
    shared: dict[tuple[int, int], str] = {}
    owners = os.geteuid() == 0
    _finish(target, os.lstat(path), owners=owners)
    for relative, status in _walk(path):
        source, copy = os.path.join(path, relative), os.path.join(target, relative)
        mode = status.st_mode
        if stat.S_ISDIR(mode):
            os.mkdir(copy, 0o700)
        elif stat.S_ISLNK(mode):
            os.symlink(os.readlink(source), copy)
            if owners:
                os.chown(copy, status.st_uid % 65536, status.st_gid % 65536, follow_symlinks=False)
            continue
        elif not stat.S_ISREG(mode):
            continue
        elif (first := shared.get((status.st_dev, status.st_ino))) is not None:
            os.link(first, copy)
            continue
        else:
            shutil.copyfile(source, copy)
            if status.st_nlink > 1:
                shared[status.st_dev, status.st_ino] = copy
        _finish(copy, status, owners=owners)


def _finish(copy: str, status: os.stat_result, *, owners: bool) -> None:
    if owners:
        os.chown(copy, status.st_uid % 65536, status.st_gid % 65536)
    # Set-id bits mean nothing in a sandbox and something in the store, which is a directory of this machine.
    os.chmod(copy, status.st_mode & 0o1777 | (0o700 if stat.S_ISDIR(status.st_mode) else 0o400))
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
