"""Unpacking layers, root tars and root directories, which may be hostile.

Owns the extraction: every path is resolved from the target directory by descriptors, with links resolved as in a chroot. Devices become
whiteouts, and whiteouts are converted to overlay's form; the number of entries, bytes and the compression ratio are limited. As root,
owners, set-id bits, file capabilities and other extended attributes are kept, as in docker: the store is closed to every other user of the
machine. tarfile is used only to read headers. Called by formats.py, off the event loop.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import re
import shutil
import stat
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any

from holdfast_wire.errors import HoldfastError

from session_agent.node.images.links import MAX_PARTS, OPAQUE_XATTR, link_at, without_links
from session_agent.node.kernel.namespaces import HIGH_IDS, LOW_IDS, shared_ids

_OVERLAY = "user.overlay."
_ORIGIN_XATTR = "user.overlay.origin"
"""With an empty value: the directory was copied from an unknown lower one, and so may contain whiteouts."""
XATTR = "SCHILY.xattr."
_ROOT_XATTRS = ("security.capability", "system.posix_acl_access", "system.posix_acl_default")
_ROOT = os.geteuid() == 0
# Without root every file belongs to the node's own user, so these bits would have an effect on the machine.
_MODE = 0o7777 if _ROOT else 0o1777
_MAX_IDS = (shared_ids() or LOW_IDS + HIGH_IDS) - 1
NOBODY = 65534
"""The owner, in a sandbox, of files whose owner's id is higher than the sandbox's ids."""
WHITEOUT = ".wh."
_WHITEOUT_METADATA = ".wh..wh."
OPAQUE = ".wh..wh..opq"
_LINKED = ".wh..wh.plnk"
"""The directory in which AUFS stores a file that has several names in a layer; these are hard links to it."""
_LATEST_S = 4_000_000_000
_PAX_TIME = re.compile(r"(\d{1,10})(?:\.(\d{1,9})\d*)?")
_MAX_HEADER = 1 << 20
_EXTENDED = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_DEVICE_MODE = 0o600
"""Permissions of a whiteout that replaces a device of the layer. Overlay ignores them; a whiteout for a whiteout file has 0."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
Member = tuple[tarfile.TarInfo, IO[bytes] | None]
"""A member of an archive, and the content of a regular file."""


@dataclass(frozen=True, slots=True)
class LayerLimits:
    """Most entries, unpacked bytes and unpacked-to-packed ratio (looked at above `ratio_free_bytes`) of one image."""

    entries: int = 2_000_000
    size_bytes: int = 100 << 30
    ratio: int = 250
    ratio_free_bytes: int = 1 << 30


@dataclass(slots=True)
class Budget:
    """How much of its limits one image has used."""

    limits: LayerLimits
    entries: int = 0
    size_bytes: int = 0

    def entry(self, size: int) -> None:
        self.entries += 1
        self.size_bytes += size
        if self.entries > self.limits.entries:
            raise invalid(f"more than {self.limits.entries} entries")
        if self.size_bytes > self.limits.size_bytes:
            raise invalid(f"more than {self.limits.size_bytes} bytes unpacked")

    def unpacked(self, total: int, packed: int) -> None:
        """Checked while a stream is decompressed, before its bytes are interpreted."""
        if total > self.limits.size_bytes + (1 << 30):
            raise invalid(f"more than {self.limits.size_bytes} bytes unpacked")
        if total > self.limits.ratio_free_bytes and total > self.limits.ratio * max(packed, 1):
            raise invalid(f"unpacks to more than {self.limits.ratio} times its size")


def invalid(message: str) -> HoldfastError:
    return HoldfastError("image_invalid", f"this image cannot be imported: {message}")


class _Header(tarfile.TarInfo):
    """Refuses extended headers that tarfile would read into memory whole."""

    def _proc_member(self, archive: tarfile.TarFile) -> Any:
        if self.type in _EXTENDED and self.size > _MAX_HEADER:
            raise invalid("an oversized header")
        return super()._proc_member(archive)  # type: ignore[misc]


def members_of(stream: io.BufferedReader) -> Iterator[Member]:
    """The members of a tar stream."""
    if not stream.peek(1):
        return  # a layer without any bytes has no entries; tarfile would expect an end marker
    with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Header, errorlevel=0, encoding="utf-8", errors="surrogateescape") as archive:
        for member in archive:
            yield member, archive.extractfile(member) if member.isreg() else None


def unpack(members: Iterable[Member], target: str, budget: Budget, *, whiteouts: bool) -> None:
    """Unpack *members* into the empty directory *target*. Raises HoldfastError(image_invalid)."""
    root = os.open(target, _DIRECTORY)
    late: dict[tuple[str, ...], int] = {}
    try:
        for member, content in members:
            budget.entry(member.size if member.isreg() else 0)
            _extract(member, content, root, late, whiteouts=whiteouts)
        if whiteouts:
            _clear(_LINKED, root)
        _directory_times(root, late)
    except (tarfile.TarError, EOFError, UnicodeError, OverflowError, ValueError) as error:
        raise invalid(str(error) or type(error).__name__) from error
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ):
            raise invalid(str(error)) from error
        raise
    finally:
        os.close(root)


def parts_of(name: str) -> list[str]:
    """The components of a member's path. Raises HoldfastError for a path with ``..`` that leaves the image."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in name:
        raise invalid(f"a path that leaves the archive: {name[:200]!r}")
    if len(parts) > MAX_PARTS:
        raise invalid(f"a path with more than {MAX_PARTS} parts")
    return parts


def open_parent(root: int, parts: list[str], *, create: bool) -> int:
    """A descriptor of the directory that holds ``parts[-1]``, never reached through a link."""
    here = os.dup(root)
    try:
        for part in parts[:-1]:
            try:
                below = os.open(part, _DIRECTORY, dir_fd=here)
            except FileNotFoundError:
                if not create:
                    raise
                os.mkdir(part, 0o755, dir_fd=here)
                below = os.open(part, _DIRECTORY, dir_fd=here)
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                    raise
                if not create or not _is_whiteout(part, here):
                    raise invalid(f"a path through something that is no directory: {'/'.join(parts)[:200]!r}") from error
                _make_directory(part, here, 0o755)
                below = os.open(part, _DIRECTORY, dir_fd=here)
            os.close(here)
            here = below
        return here
    except BaseException:
        os.close(here)
        raise


def _open_parent_through_links(root: int, parts: list[str], *, create: bool) -> tuple[int, list[str]]:
    """As `open_parent`, with links resolved as in a chroot; also returns the resolved path.

    For example, `lib` may be a link, and files of `lib/` belong into its target.
    """
    try:
        return open_parent(root, parts, create=create), parts
    except HoldfastError:
        real = [*without_links(parts[:-1], functools.partial(link_at, root)), parts[-1]]
        return open_parent(root, real, create=create), real


def _extract(member: tarfile.TarInfo, content: IO[bytes] | None, root: int, late: dict[tuple[str, ...], int], *, whiteouts: bool) -> None:
    parts = parts_of(member.name)
    if whiteouts and any(part.startswith(_WHITEOUT_METADATA) for part in parts) and parts[-1] != OPAQUE:
        if parts[0] != _LINKED:
            return  # metadata of AUFS, which is not part of the image
        whiteouts = False  # these names are not whiteouts; ``unpack`` removes them when the links to them exist
    if not parts:
        if member.isdir():
            _own(member, root)
            os.fchmod(root, member.mode & _MODE | 0o500)
            _attributes(member, root)
            late[()] = _time_ns(member)
        return
    parent, parts = _open_parent_through_links(root, parts, create=True)
    name = parts[-1]
    try:
        if whiteouts and name == OPAQUE:
            os.setxattr(f"/proc/self/fd/{parent}", OPAQUE_XATTR, b"y")
        elif whiteouts and name.startswith(WHITEOUT):
            _whiteout(name.removeprefix(WHITEOUT), parent)
        elif member.isdir():
            _directory(member, name, parent)
            late[tuple(parts)] = _time_ns(member)
        elif content is not None:
            _file(member, content, name, parent)
        elif member.issym():
            _clear(name, parent)
            os.symlink(member.linkname, name, dir_fd=parent)
            _own(member, parent, name)
            _times(member, parent, name)
        elif member.islnk():
            _hard_link(member, name, parent, root)
        elif member.isfifo():
            _clear(name, parent)
            os.mkfifo(name, 0o600, dir_fd=parent)
            _own(member, parent, name)
            os.chmod(name, member.mode & 0o777, dir_fd=parent)
            _times(member, parent, name)
        elif (member.ischr() or member.isblk()) and not _hides_lower_directory(name, parent):
            # A sandbox has its own /dev and could not use the device, so it only hides an entry of a lower layer with this name.
            _clear(name, parent)
            _whiteout(name, parent, _DEVICE_MODE)
    finally:
        os.close(parent)


def _whiteout(name: str, parent: int, mode: int = 0) -> None:
    """Hide the entry of this name in lower layers. An entry of this name in the same layer, before or after, stays."""
    if name in ("", ".", ".."):
        raise invalid("a whiteout without a name")
    if mode == 0 and _is_whiteout(name, parent):
        os.unlink(name, dir_fd=parent)  # it may be the whiteout of a device
    try:
        os.mknod(name, stat.S_IFCHR | mode, os.makedev(0, 0), dir_fd=parent)
    except FileExistsError:
        if stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
            _make_opaque(name, parent)
    else:
        _mark_whiteouts(parent)


def _mark_whiteouts(directory: int) -> None:
    """Make overlay look for whiteouts in a directory even if no lower layer has this directory; otherwise listings would show them."""
    with contextlib.suppress(OSError):  # a file system without extended attributes
        os.setxattr(directory, _ORIGIN_XATTR, b"")


def _is_whiteout(name: str, parent: int) -> bool:
    """Whether the entry is a whiteout, made from a whiteout file or from a device."""
    try:
        status = os.lstat(name, dir_fd=parent)
    except FileNotFoundError:
        return False
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def _hides_lower_directory(name: str, parent: int) -> bool:
    """Whether the whiteout was made from a whiteout file: then a directory of this layer in its place is not merged with those of lower
    layers. A directory in the place of a device or of any other entry is merged: docker's overlay2 and containerd's overlayfs unpack each
    layer separately."""
    return _is_whiteout(name, parent) and stat.S_IMODE(os.lstat(name, dir_fd=parent).st_mode) == 0


def _make_opaque(name: str, parent: int) -> None:
    fd = os.open(name, _DIRECTORY, dir_fd=parent)
    try:
        os.setxattr(fd, OPAQUE_XATTR, b"y")
    finally:
        os.close(fd)


def _make_directory(name: str, parent: int, mode: int) -> None:
    """Create the directory if it does not exist; in the place of a whiteout file, it shows no entries of lower layers."""
    try:
        os.mkdir(name, mode, dir_fd=parent)
    except FileExistsError:
        if stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
            return
        hides = _hides_lower_directory(name, parent)
        os.unlink(name, dir_fd=parent)
        os.mkdir(name, mode, dir_fd=parent)
        if hides:
            _make_opaque(name, parent)


def _directory(member: tarfile.TarInfo, name: str, parent: int) -> None:
    _make_directory(name, parent, 0o700)
    fd = os.open(name, _DIRECTORY, dir_fd=parent)
    try:
        _own(member, fd)
        # The owner must be able to enter the directory: later members may be in it, and an unprivileged node has to remove it.
        os.fchmod(fd, member.mode & _MODE | (0 if _ROOT else 0o700))
        _attributes(member, fd)
    finally:
        os.close(fd)


def _directory_times(root: int, late: dict[tuple[str, ...], int]) -> None:
    """Set the times of directories at the end, because creating an entry changes the time of its directory."""
    for parts, when in late.items():
        try:
            parent = open_parent(root, [*parts, "."], create=False)
        except (OSError, HoldfastError):
            continue  # a later member replaced it
        try:
            os.utime(parent, ns=(when, when))
        finally:
            os.close(parent)


def _file(member: tarfile.TarInfo, content: IO[bytes], name: str, parent: int) -> None:
    _clear(name, parent)
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=parent)
    with os.fdopen(fd, "wb") as file:
        shutil.copyfileobj(content, file, 1 << 18)
        file.flush()
        _own(member, fd)
        os.fchmod(fd, member.mode & _MODE | (0 if _ROOT else 0o400))
        _attributes(member, fd)
        when = _time_ns(member)
        os.utime(fd, ns=(when, when))


def _hard_link(member: tarfile.TarInfo, name: str, parent: int, root: int) -> None:
    source = parts_of(member.linkname)
    if not source:
        raise invalid("a hard link to the root")
    try:
        holder, source = _open_parent_through_links(root, source, create=False)
        try:
            status = os.lstat(source[-1], dir_fd=holder)
            if stat.S_ISDIR(status.st_mode):
                raise invalid(f"a hard link to no file: {member.linkname[:200]!r}")
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(status, os.lstat(name, dir_fd=parent)):
                    return
            _clear(name, parent)
            os.link(source[-1], name, src_dir_fd=holder, dst_dir_fd=parent, follow_symlinks=False)
            if stat.S_ISCHR(status.st_mode):
                _mark_whiteouts(parent)
        finally:
            os.close(holder)
    except FileNotFoundError as error:
        raise invalid(f"a hard link to nothing: {member.linkname[:200]!r}") from error


def _clear(name: str, parent: int) -> None:
    """Remove an entry *name* that an earlier member created."""
    try:
        status = os.lstat(name, dir_fd=parent)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(status.st_mode):
        shutil.rmtree(name, dir_fd=parent)
    else:
        os.unlink(name, dir_fd=parent)


def _own(member: tarfile.TarInfo, where: int, name: str | None = None) -> None:
    if not _ROOT:
        return
    uid, gid = (value if 0 <= value < _MAX_IDS else NOBODY for value in (member.uid, member.gid))
    if name is None:
        os.fchown(where, uid, gid)
    else:
        os.chown(name, uid, gid, dir_fd=where, follow_symlinks=False)


def image_attribute(name: str) -> bool:
    """Whether an image may set this extended attribute: attributes of users and, as root, file capabilities and access lists.

    Not those of overlay.
    """
    return (name.startswith("user.") and not name.startswith(_OVERLAY)) or (_ROOT and name in _ROOT_XATTRS)


def _attributes(member: tarfile.TarInfo, fd: int) -> None:
    for key, value in member.pax_headers.items():
        name = key.removeprefix(XATTR)
        if name != key and image_attribute(name):
            with contextlib.suppress(OSError):  # a file system that keeps none
                os.setxattr(fd, name, value.encode("utf-8", "surrogateescape"))


def _times(member: tarfile.TarInfo, parent: int, name: str) -> None:
    when = _time_ns(member)
    os.utime(name, ns=(when, when), dir_fd=parent, follow_symlinks=False)


def _time_ns(member: tarfile.TarInfo) -> int:
    """The exact time in an extended header, which tarfile rounds to a float. Times before 1970 become 1970-01-01, as in docker."""
    exact = _PAX_TIME.fullmatch(member.pax_headers.get("mtime", ""))
    if exact is None:
        return int(min(max(float(member.mtime), 0.0), _LATEST_S)) * 10**9
    return min(int(exact[1]), _LATEST_S) * 10**9 + int((exact[2] or "").ljust(9, "0"))
