"""The disk of one sandbox: an ext4 file system of a fixed size in an unnamed sparse file, through a loop device.

Owns blank disks (copies of a formatted template), attaching one, and discarding one without writing its unsaved pages.
The kernel itself answers ENOSPC then, whatever the sandbox does with links, holes or deleted files. Needs root, loop devices and
mkfs.ext4; where they are missing ``why_not`` gives the reason. Quotas would be cheaper but few kernels and mounts have them.
Called by containers.py (node side) and the zygote (``attach``). Infra decision 0023.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import struct
import subprocess
import threading

from session_agent.node import syscalls as sys_

LEAST_BYTES = 64 << 20
"""Smaller ones are kept in memory: a file system would be mostly its own tables."""
_CONTROL = "/dev/loop-control"
_GET_FREE, _CONFIGURE, _STATUS = 0x4C82, 0x4C0A, 0x4C05
_STATUS_BYTES = 232
_LOOP_MAJOR = 7
_AUTOCLEAR, _DIRECT_IO = 4, 16
_EXT4_SHUTDOWN, _WITHOUT_FLUSH = 0x8004587D, 2
_ATTEMPTS = 64
_FORMAT = ("-q", "-F", "-O", "^has_journal,^resize_inode", "-E", "lazy_itable_init=1,nodiscard", "-m", "0", "-b", "4096", "-i", "8192")
# No barriers and no journal: a disk does not outlive its sandbox. discard gives freed blocks back to the machine.
_OPTIONS = "nobarrier,noinit_itable,discard"
_TEMPLATES = 8
FileId = tuple[int, int]
"""Device and inode."""


class Disks:
    """Blank disks below *directory*. Templates are made once per size; at most _TEMPLATES are kept."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._templates: dict[int, int] = {}
        self._making = threading.Lock()

    def blank(self, size_bytes: int) -> int:
        """A descriptor of a new formatted disk without a name. Blocks for milliseconds. Raises OSError."""
        size_bytes = size_bytes // 4096 * 4096
        with self._making:
            template = self._templates.get(size_bytes)
            if template is None:
                template = self._format(size_bytes)
                while len(self._templates) >= _TEMPLATES:
                    os.close(self._templates.pop(next(iter(self._templates))))
                self._templates[size_bytes] = template
            made = self._unnamed(size_bytes)
            try:
                _copy_data(template, made)
            except BaseException:
                os.close(made)
                raise
        return made

    def close(self) -> None:
        for template in self._templates.values():
            os.close(template)
        self._templates.clear()

    def _format(self, size_bytes: int) -> int:
        made = self._unnamed(size_bytes)
        done = subprocess.run(
            [_mkfs() or "mkfs.ext4", *_FORMAT, f"/proc/self/fd/{made}"],
            pass_fds=[made], capture_output=True, check=False, timeout=60,
        )  # fmt: skip
        if done.returncode != 0:
            os.close(made)
            raise OSError(errno.EIO, f"mkfs.ext4: {done.stderr.decode(errors='replace').strip()[:300]}")
        return made

    def _unnamed(self, size_bytes: int) -> int:
        made = os.open(self._directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        os.ftruncate(made, size_bytes)
        return made


def why_not(directory: str) -> str:
    """Why disks cannot be had here, by making one; empty when they can. Only for a process that may be forked from."""
    if os.geteuid() != 0:
        return "loop devices are root's"
    if not _mkfs():
        return "there is no mkfs.ext4"
    if not os.path.exists(_CONTROL):
        return f"there is no {_CONTROL}"
    disks = Disks(directory)
    pid = -1
    try:
        blank = disks.blank(LEAST_BYTES)
        pid = os.fork()
        if pid == 0:
            os._exit(_try(blank))
        os.close(blank)
        number = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return os.strerror(number) if number else ""
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    finally:
        disks.close()


def _try(blank: int) -> int:
    try:
        sys_.unshare(sys_.CLONE_NEWNS)
        sys_.mount("", "/", "", sys_.MS_REC | sys_.MS_PRIVATE)
        tree, root = attach(blank, "/mnt", 0)
        discard(root, identity(blank))
        os.close(tree)
    except OSError as error:
        return min(error.errno or 1, 125)
    return 0


def attach(disk: int, place: str, owner: int) -> tuple[int, int]:
    """Zygote: (detached mount, open directory) of *disk*, which belongs to *owner*. *place* is a directory to pass through."""
    device = _loop(disk)
    try:
        sys_.mount(f"/proc/self/fd/{device}", place, "ext4", sys_.MS_NOSUID | sys_.MS_NODEV, _OPTIONS)
    finally:
        os.close(device)
    try:
        os.chown(place, owner, owner)
        with contextlib.suppress(OSError):
            os.rmdir(f"{place}/lost+found")
        root = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return sys_.open_tree(place), root
        except BaseException:
            os.close(root)
            raise
    finally:
        sys_.umount(place, sys_.MNT_DETACH)


def identity(file: int) -> FileId:
    """What identifies the open *file*: device and inode."""
    status = os.fstat(file)
    return status.st_dev, status.st_ino


def discard(root: int, disk: FileId) -> None:
    """Close the directory of *disk*, whose sandbox is dead. What was not written yet is dropped: writing it could take minutes."""
    try:
        # The call would as readily end any other file system: first make sure that it is that disk's.
        if _backing(root) == disk:
            fcntl.ioctl(root, _EXT4_SHUTDOWN, struct.pack("I", _WITHOUT_FLUSH))
    except OSError:
        pass
    finally:
        os.close(root)


def _backing(root: int) -> FileId | None:
    """The file behind the loop device that *root* lies on; None when it lies on anything else."""
    device = os.fstat(root).st_dev
    if os.major(device) != _LOOP_MAJOR:
        return None
    name = os.path.basename(os.readlink(f"/sys/dev/block/{_LOOP_MAJOR}:{os.minor(device)}"))
    loop = os.open(f"/dev/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.fstat(loop).st_rdev != device:
            return None
        backing: FileId = struct.unpack_from("=QQ", fcntl.ioctl(loop, _STATUS, bytes(_STATUS_BYTES)))
        return backing
    finally:
        os.close(loop)


def _loop(disk: int) -> int:
    config = struct.pack("II", disk, 4096) + struct.pack("5Q4I64s32s32s2Q", *[0] * 8, _AUTOCLEAR | _DIRECT_IO, b"", b"", b"", 0, 0)
    control = os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(_ATTEMPTS):
            device = os.open(f"/dev/loop{fcntl.ioctl(control, _GET_FREE)}", os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(device, _CONFIGURE, config + bytes(64))
                return device
            except OSError as error:
                os.close(device)
                # Somebody else was faster with the same number.
                if error.errno != errno.EBUSY:
                    raise
    finally:
        os.close(control)
    raise OSError(errno.EBUSY, "no loop device is free")


def _copy_data(source: int, target: int) -> None:
    end = 0
    while True:
        try:
            start = os.lseek(source, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        end = os.lseek(source, start, os.SEEK_HOLE)
        while start < end:
            piece = os.pread(source, min(end - start, 1 << 20), start)
            start += os.pwrite(target, piece, start)


def _mkfs() -> str | None:
    return shutil.which("mkfs.ext4", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
