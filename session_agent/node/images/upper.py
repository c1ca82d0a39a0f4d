"""Copying what a sandbox has written, the upper directory of its overlay, to a layer of the image store.

Owns the copy: owners are changed from the sandbox's range of ids to the ids inside, files stay sparse and hard links shared, whiteouts and
opaque directories stay as overlay wrote them. The files are hostile, but nothing changes them during the copy: the sandbox is frozen. Links
are never followed, and a tree may be deeper than any path. Also owns the digest of a layer's content.
Called by store.py, off the event loop.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import struct
from dataclasses import dataclass, field
from io import FileIO

from session_agent.node.images.layers import NOBODY
from session_agent.node.kernel.file_data import copy_data, data_blocks
from session_agent.node.kernel.namespaces import IdMap
from session_agent.node.kernel.rootfs import NAME_FILES
from session_agent.trees import DIRECTORY, Cursor, Entry, walk

_ORIGIN = "user.overlay.origin"
_DROPPED = frozenset({_ORIGIN, "user.overlay.impure", "user.overlay.nlink", "user.overlay.uuid"})
"""What overlay records about lower files and about this directory as an upper one."""
_ACLS = ("system.posix_acl_access", "system.posix_acl_default")
_ACL_ENTRY = struct.Struct("<HHI")
_ACL_NAMED = (0x02, 0x08)
"""Kinds of entries that name a user or a group."""
_CAPABILITY = "security.capability"
_CAPABILITY_V3, _CAPABILITY_V2 = 0x03000000, 0x02000000
_REVISION = 0xFF000000


@dataclass(slots=True)
class Copied:
    """What was copied."""

    entries: int = 0
    size_bytes: int = 0
    """Bytes of data, without holes."""


def copy_upper(upper: int, target: str, pool: str, ids: IdMap | None) -> Copied:
    """Copy the open directory *upper* into the empty directory *target*. *pool*: an empty directory on the same file system.

    *ids* maps the owners back to ids inside; None keeps them. The files with the sandbox's name are left out, as docker does.
    Raises OSError, for example ENOSPC; the target is then incomplete.
    """
    copy = _Copy(ids, os.open(pool, DIRECTORY))
    try:
        copy.tree(os.dup(upper), os.open(target, DIRECTORY))
    finally:
        os.close(copy.pool)
    return copy.copied


@dataclass(slots=True)
class _Copy:
    ids: IdMap | None
    pool: int
    """Holds a link to each file that has several names, until all of them exist: paths may be too long to link from one to another."""
    copied: Copied = field(default_factory=Copied)
    linked: set[int] = field(default_factory=set)

    def tree(self, upper: int, target: int) -> None:
        source, copy = Cursor(upper), Cursor(target)
        path: list[str] = []
        pending = [os.listdir(source.here)]
        try:
            while pending:
                if not pending[-1]:
                    pending.pop()
                    self._attributes(source.here, copy.here, os.fstat(source.here))
                    if path:
                        path.pop()
                        source.leave()
                        copy.leave()
                    continue
                name = pending[-1].pop()
                if path == ["etc"] and name in NAME_FILES:
                    continue
                state = os.lstat(name, dir_fd=source.here)
                self.copied.entries += 1
                if stat.S_ISDIR(state.st_mode):
                    os.mkdir(name, 0o700, dir_fd=copy.here)
                    source.enter(_open(name, source.here, state, os.O_DIRECTORY))
                    copy.enter(os.open(name, DIRECTORY, dir_fd=copy.here))
                    path.append(name)
                    pending.append(os.listdir(source.here))
                else:
                    self._entry(name, state, source.here, copy.here)
        finally:
            source.close()
            copy.close()

    def _entry(self, name: str, state: os.stat_result, source: int, target: int) -> None:
        """Copy one entry that is no directory."""
        kind, known = stat.S_IFMT(state.st_mode), str(state.st_ino)
        if state.st_ino in self.linked:
            os.link(known, name, src_dir_fd=self.pool, dst_dir_fd=target, follow_symlinks=False)
            return
        if kind == stat.S_IFREG:
            self._regular(name, state, source, target)
        elif kind == stat.S_IFLNK:
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
            self._own(state, name, target)
            os.utime(name, ns=(state.st_atime_ns, state.st_mtime_ns), dir_fd=target, follow_symlinks=False)
        elif kind in (stat.S_IFIFO, stat.S_IFSOCK):
            os.mknod(name, kind | 0o600, dir_fd=target)
            self._own(state, name, target)
            os.chmod(name, stat.S_IMODE(state.st_mode), dir_fd=target)
            os.utime(name, ns=(state.st_atime_ns, state.st_mtime_ns), dir_fd=target)
        elif kind == stat.S_IFCHR and state.st_rdev == 0:
            os.mknod(name, kind | stat.S_IMODE(state.st_mode), dir_fd=target)
            os.utime(name, ns=(state.st_atime_ns, state.st_mtime_ns), dir_fd=target)
            os.setxattr(target, _ORIGIN, b"")  # overlay looks for whiteouts only in directories that it takes for copies
        else:
            return  # a sandbox cannot create other devices
        if state.st_nlink > 1:
            os.link(name, known, src_dir_fd=target, dst_dir_fd=self.pool, follow_symlinks=False)
            self.linked.add(state.st_ino)

    def _regular(self, name: str, state: os.stat_result, source: int, target: int) -> None:
        read = _open(name, source, state)
        try:
            write = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=target)
            try:
                self.copied.size_bytes += copy_data(read, write, state.st_size)
                self._attributes(read, write, state)
            finally:
                os.close(write)
        finally:
            os.close(read)

    def _attributes(self, source: int, target: int, state: os.stat_result) -> None:
        """Give an open file or directory the owner, extended attributes, mode and times of another, in the order that keeps all of them."""
        self._own(state, target)
        for name in os.listxattr(source):
            if name in _DROPPED or not name.startswith(("user.", _CAPABILITY, *_ACLS)):
                continue
            os.setxattr(target, name, self._converted(name, os.getxattr(source, name)))
        os.fchmod(target, stat.S_IMODE(state.st_mode))
        os.utime(target, ns=(state.st_atime_ns, state.st_mtime_ns))

    def _own(self, state: os.stat_result, target: str | int, parent: int | None = None) -> None:
        if os.geteuid() == 0:
            os.chown(target, self._inside(state.st_uid), self._inside(state.st_gid), dir_fd=parent, follow_symlinks=isinstance(target, int))

    def _inside(self, number: int) -> int:
        inside = number if self.ids is None else self.ids.inside(number)
        return NOBODY if inside is None else inside

    def _converted(self, name: str, value: bytes) -> bytes:
        """The value of an extended attribute with the ids in it converted."""
        if self.ids is None:
            return value
        if name in _ACLS and len(value) % _ACL_ENTRY.size == 4:
            entries = [(tag, rights, self._inside(number) if tag in _ACL_NAMED else number)
                       for tag, rights, number in _ACL_ENTRY.iter_unpack(value[4:])]  # fmt: skip
            return value[:4] + b"".join(_ACL_ENTRY.pack(*entry) for entry in entries)
        if name == _CAPABILITY and len(value) == 24:
            magic, root = struct.unpack_from("<I", value)[0], struct.unpack_from("<I", value, 20)[0]
            if magic & _REVISION == _CAPABILITY_V3 and self._inside(root) == 0:
                return struct.pack("<I", magic & ~_REVISION | _CAPABILITY_V2) + value[4:20]
        return value


def _open(name: str, parent: int, state: os.stat_result, kind: int = 0) -> int:
    """Open for reading. A node without root's rights gives itself the permission for that moment."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | kind
    try:
        return os.open(name, flags, dir_fd=parent)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=parent)
        try:
            return os.open(name, flags, dir_fd=parent)
        finally:
            os.chmod(name, stat.S_IMODE(state.st_mode), dir_fd=parent)


def content_digest(directory: str) -> str:
    """``sha256:`` and a digest of everything in a layer's directory: names, kinds, modes, owners, times, attributes and contents."""
    digest = hashlib.sha256(b"layer\0")
    linked: dict[int, int] = {}
    with contextlib.closing(walk(os.open(directory, DIRECTORY))) as entries:
        for entry in entries:
            _add(digest, entry, linked)
    return f"sha256:{digest.hexdigest()}"


def _content(file: FileIO, state: os.stat_result) -> bytes:
    """A digest of a file's content. Of a file with holes only what is no hole is read: it may be larger than any disk."""
    if state.st_blocks * 512 >= state.st_size:
        return hashlib.file_digest(file, "sha256").digest()
    digest = hashlib.sha256(f"sparse {state.st_size}".encode())
    for place, block in data_blocks(file.fileno(), state.st_size):
        digest.update(b"%d:%d:" % (place, len(block)))
        digest.update(block)
    return digest.digest()


def _add(digest: hashlib._Hash, entry: Entry, linked: dict[int, int]) -> None:
    state, name = entry.state, entry.path[-1] if entry.path else ""
    link, values, content = "", list[tuple[str, bytes]](), b""
    if entry.is_directory:
        values = [(key, os.getxattr(entry.parent, key)) for key in sorted(os.listxattr(entry.parent))]
    elif stat.S_ISLNK(state.st_mode):
        link = os.readlink(name, dir_fd=entry.parent)
    elif stat.S_ISREG(state.st_mode):
        with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=entry.parent), "rb", buffering=0) as file:
            values = [(key, os.getxattr(file.fileno(), key)) for key in sorted(os.listxattr(file.fileno()))]
            content = _content(file, state)
    same = linked.setdefault(state.st_ino, len(linked)) if state.st_nlink > 1 and not entry.is_directory else None
    row = (len(entry.path), name, state.st_mode, state.st_uid, state.st_gid, state.st_mtime_ns, same, link, values, content)
    digest.update(repr(row).encode("utf-8", "surrogateescape") + b"\0")
