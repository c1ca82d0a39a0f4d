"""Reading a root directory as if it were an archive.

Owns the walk: links stay links, hard links stay shared, devices and sockets are left out, other mounts below the directory are not entered.
layers.py decides what is kept of each file. Called by formats.py, off the event loop.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
from collections.abc import Iterator

from session_agent.node.images.layers import XATTR, Member


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


def tree_digest(path: str) -> str:
    """A digest of the state of *path*: names, types, modes, owners, sizes, times and link targets (not file contents)."""
    digest = hashlib.sha256(b"tree\0")
    for relative, status in _walk(path):
        link = os.readlink(os.path.join(path, relative)) if stat.S_ISLNK(status.st_mode) else ""
        row = (relative, status.st_mode, status.st_uid, status.st_gid, status.st_size, status.st_mtime_ns, link)
        digest.update(repr(row).encode("utf-8", "surrogateescape") + b"\n")
    return f"sha256:{digest.hexdigest()}"


def members_of(path: str) -> Iterator[Member]:
    """The directory *path* and its entries, as members of an archive."""
    first: dict[tuple[int, int], str] = {}
    for relative, status in (("", os.lstat(path)), *_walk(path)):
        source, mode = os.path.join(path, relative), status.st_mode
        member = tarfile.TarInfo(relative or ".")
        member.mode, member.uid, member.gid = stat.S_IMODE(mode), status.st_uid, status.st_gid
        seconds, rest = divmod(status.st_mtime_ns, 10**9)
        member.mtime, member.pax_headers = seconds, {"mtime": f"{seconds}.{rest:09}"}
        if stat.S_ISLNK(mode):
            member.type, member.linkname = tarfile.SYMTYPE, os.readlink(source)
        elif stat.S_ISFIFO(mode):
            member.type = tarfile.FIFOTYPE
        elif stat.S_ISDIR(mode):
            member.type, member.pax_headers = tarfile.DIRTYPE, member.pax_headers | _attributes(source)
        elif stat.S_ISREG(mode) and (status.st_dev, status.st_ino) in first:
            member.type, member.linkname = tarfile.LNKTYPE, first[status.st_dev, status.st_ino]
        elif stat.S_ISREG(mode):
            member.size, member.pax_headers = status.st_size, member.pax_headers | _attributes(source)
            if status.st_nlink > 1:
                first[status.st_dev, status.st_ino] = relative
            with open(source, "rb") as content:
                yield member, content
            continue
        else:
            continue
        yield member, None


def _attributes(path: str) -> dict[str, str]:
    try:
        return {f"{XATTR}{name}": os.getxattr(path, name).decode("utf-8", "surrogateescape") for name in os.listxattr(path)}
    except OSError:  # a file system without extended attributes
        return {}
