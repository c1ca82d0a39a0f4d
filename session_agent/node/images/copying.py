"""Copying a root directory into the store.

Owns the walk: links stay links, hard links stay shared, devices and sockets are left out, other mounts below the directory are not
entered. As root owners, set-id bits and extended attributes are kept. Called by formats.py, off the event loop.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator

from session_agent.node.images.layers import MAX_IDS, NOBODY, Budget, image_attribute


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
    directories = [(target, os.lstat(path))]
    _finish(path, target, os.lstat(path), owners=owners)
    for relative, status in _walk(path):
        source, copy = os.path.join(path, relative), os.path.join(target, relative)
        mode = status.st_mode
        if stat.S_ISDIR(mode):
            os.mkdir(copy, 0o700)
            directories.append((copy, status))
        elif stat.S_ISLNK(mode):
            os.symlink(os.readlink(source), copy)
            if owners:
                os.chown(copy, _id(status.st_uid), _id(status.st_gid), follow_symlinks=False)
            os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)
            continue
        elif stat.S_ISFIFO(mode):
            os.mkfifo(copy, 0o600)
        elif not stat.S_ISREG(mode):
            continue
        elif (first := shared.get((status.st_dev, status.st_ino))) is not None:
            os.link(first, copy)
            continue
        else:
            shutil.copyfile(source, copy)
            if status.st_nlink > 1:
                shared[status.st_dev, status.st_ino] = copy
        _finish(source, copy, status, owners=owners)
    for copy, status in directories:  # what was made in one changed its times
        os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))


def _finish(source: str, copy: str, status: os.stat_result, *, owners: bool) -> None:
    if owners:
        os.chown(copy, _id(status.st_uid), _id(status.st_gid))
        os.chmod(copy, status.st_mode & 0o7777)
        _copy_attributes(source, copy)
    else:
        # The copy is the node's own user's, for whom set-id bits would mean something on the machine, and who has to remove it.
        os.chmod(copy, status.st_mode & 0o1777 | (0o700 if stat.S_ISDIR(status.st_mode) else 0o400))
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))


def _copy_attributes(source: str, copy: str) -> None:
    with contextlib.suppress(OSError):  # a file system that keeps none
        for name in os.listxattr(source):
            if image_attribute(name):
                os.setxattr(copy, name, os.getxattr(source, name))


def _id(number: int) -> int:
    return number if number < MAX_IDS else NOBODY
