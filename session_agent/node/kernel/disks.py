"""The disk of one sandbox: an ext4 file system of a fixed size in an unnamed file, through a loop device.

Owns blank disks (copies of a formatted template), mounting one, cloning one (a reflink, or a copy of the blocks in use), and discarding
one without writing its unsaved pages. The file is sparse, unless the size is reserved. The kernel itself returns ENOSPC when the disk is
full, whatever the sandbox does with links, holes or deleted files. Needs root, loop devices and mkfs.ext4; ``missing_requirement`` returns
what is missing. Quotas would be cheaper, but few kernels and mounts support them. Called by containers.py on threads: every step here waits
for a device. disk_space.py decides how much of a sparse disk may be used. Infra decisions 0023, 0074 and 0099.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from session_agent.node.kernel import rootfs
from session_agent.node.kernel import syscalls as sys_
from session_agent.node.kernel.file_data import copy_data, share_blocks
from session_agent.node.kernel.namespaces import shared_ids

LEAST_BYTES = 64 << 20
"""Smaller disks are kept in memory: the file system would consist mostly of its own tables."""
_CONTROL = "/dev/loop-control"
_GET_FREE, _CONFIGURE, _STATUS = 0x4C82, 0x4C0A, 0x4C05
_STATUS_BYTES = 232
_LOOP_MAJOR = 7
_AUTOCLEAR, _DIRECT_IO = 4, 16
_EXT4_SHUTDOWN, _WITHOUT_FLUSH = 0x8004587D, 2
_ATTEMPTS = 64
# All tables in one place and without copies: then only 72 KiB in few pieces are copied for each disk.
_FORMAT = (
    "-q", "-F", "-O", "^has_journal,^resize_inode,sparse_super2", "-m", "0", "-b", "4096", "-i", "8192",
    "-E", "lazy_itable_init=1,nodiscard,num_backup_sb=0,packed_meta_blocks=1",
)  # fmt: skip
# No barriers and no journal, because a disk does not outlive its sandbox.
_OPTIONS = ("nobarrier", "noinit_itable")
_RETURNS_BLOCKS = "discard"
"""Returns freed blocks to the machine; a reserved disk keeps them."""
BLOCK_BYTES = 4096
_SETTINGS = "/sys/fs/ext4"
_TEMPLATES = 8
FileId = tuple[int, int]
"""Device and inode of a file."""


@dataclass(slots=True, eq=False)
class Disk:
    """A disk in use: a detached mount, an open directory that keeps it mounted, and the file behind it, open and by its identity."""

    tree: int
    root: int
    file: FileId
    backing: int
    device: str
    """The name of the loop device."""
    size_bytes: int
    reserved: bool
    usual_blocks: int = -1
    """How many free blocks ext4 itself keeps for its tables; -1 before that was read."""
    kept_blocks: int = -1
    """How many free blocks are kept from the sandbox; -1 before that was changed."""
    clones: set[Clone] = field(default_factory=set)
    """Those that share blocks with it. What the sandbox overwrites of these needs room of its own."""

    def free_bytes(self) -> int:
        """What the sandbox has not used, whether or not it may use it. Raises OSError."""
        status = os.fstatvfs(self.root)
        return status.f_bfree * status.f_frsize

    def used(self) -> tuple[int, int]:
        """Bytes and files that the sandbox has, on the disk or still in memory. Raises OSError."""
        status = os.fstatvfs(self.root)
        return (status.f_blocks - status.f_bfree) * status.f_frsize, status.f_files - status.f_ffree

    def promised_bytes(self) -> int:
        """What the sandbox has written or allocated and the file behind the disk does not hold yet. Raises OSError."""
        if self.reserved:
            return 0
        status = os.fstatvfs(self.root)
        used, held = (status.f_blocks - status.f_bfree) * status.f_frsize, os.fstat(self.backing).st_blocks * 512
        shared = max((clone.held_bytes for clone in self.clones), default=0)
        return max(0, used - held) + min(shared, held)

    def allow(self, more_bytes: int) -> None:
        """Let the sandbox use at most so much more; then the kernel answers ENOSPC to new writes. Raises OSError."""
        setting = f"{_SETTINGS}/{self.device}/reserved_clusters"
        if self.usual_blocks < 0:
            with open(setting, encoding="ascii") as file:
                self.usual_blocks = self.kept_blocks = int(file.read())
        kept = max(self.usual_blocks, (self.free_bytes() - more_bytes) // BLOCK_BYTES)
        kept = min(kept, self.size_bytes // BLOCK_BYTES - 1)
        if kept != self.kept_blocks:
            sys_.write_file(setting, str(kept))
            self.kept_blocks = kept


class Clone:
    """The files of a disk as they were at one instant, read-only, in an unnamed file that may share its blocks with the disk's."""

    def __init__(self, disk: Disk, backing: int, *, shared: bool) -> None:
        """Owns *backing* from then on; *shared*: it shares blocks with the disk's file. Raises OSError."""
        self.held_bytes = os.fstat(backing).st_blocks * 512
        self._disk = disk
        self._backing = backing
        try:
            self._device, _ = _loop(backing)
        except BaseException:
            os.close(backing)
            raise
        if shared:
            disk.clones.add(self)

    def mount(self) -> int:
        """A new detached mount; each may map owners in its own way. Raises OSError."""
        attributes = sys_.MOUNT_ATTR_NOSUID | sys_.MOUNT_ATTR_NODEV | sys_.MOUNT_ATTR_RDONLY
        return sys_.new_mount("ext4", f"/proc/self/fd/{self._device}", (*_OPTIONS, "ro"), attributes)

    @contextlib.contextmanager
    def opened(self) -> Iterator[int]:
        """A descriptor of the directory with what the sandbox had written; owners are ids inside. Raises OSError."""
        tree = self.mount()
        try:
            upper = os.open("upper", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=tree)
        finally:
            os.close(tree)
        try:
            yield upper
        finally:
            os.close(upper)

    def close(self) -> None:
        """Give it up; sandboxes that use it keep its files until they end."""
        self._disk.clones.discard(self)
        os.close(self._device)
        os.close(self._backing)


class Disks:
    """Disks below *directory*, with a sandbox's folders on each. A template is created once per size; at most _TEMPLATES are kept."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._templates: dict[int, list[tuple[int, bytes]]] = {}
        self._making = threading.Lock()
        self.share_blocks = not why_not_cloned(directory)
        """Whether a clone shares the blocks of the disk's file, and so takes the same time and no room, whatever its size."""

    def create(self, size_bytes: int, owner: int, *, reserved: bool = False) -> Disk:
        """Create a disk for the sandbox whose root has the id *owner*. *reserved*: nothing else can take its room on the machine.

        Blocks for milliseconds; threads do not wait for each other. Raises OSError, ENOSPC where there is no room for a reserved disk.
        """
        size_bytes = size_bytes // BLOCK_BYTES * BLOCK_BYTES
        with self._making:
            template = self._templates.get(size_bytes)
            if template is None:
                template = self._format(size_bytes)
                while len(self._templates) >= _TEMPLATES:
                    del self._templates[next(iter(self._templates))]
                self._templates[size_bytes] = template
        made = self._unnamed(size_bytes)
        try:
            if reserved:
                _reserve(made, size_bytes)
            for offset, data in template:
                os.pwrite(made, data, offset)
            return _attach(made, owner, size_bytes, reserved=reserved)
        except BaseException:
            os.close(made)
            raise

    def clone(self, disk: Disk) -> Clone:
        """What *disk*, whose sandbox is frozen, contains now. Raises OSError, for example ENOSPC."""
        sys_.syncfs(disk.root)
        made = self._unnamed(0)
        try:
            copy_data(disk.backing, made, disk.size_bytes)
        except BaseException:
            os.close(made)
            raise
        return Clone(disk, made, shared=self.share_blocks)

    def _format(self, size_bytes: int) -> list[tuple[int, bytes]]:
        """Format a disk; returns the non-empty ranges and their content."""
        made = self._unnamed(size_bytes)
        try:
            with tempfile.TemporaryDirectory(prefix=".template-", dir=self._directory) as folder:
                rootfs.prepare_folder(folder)
                try:
                    done = subprocess.run(
                        [_mkfs() or "mkfs.ext4", *_FORMAT, "-d", folder, f"/proc/self/fd/{made}"],
                        pass_fds=[made], capture_output=True, check=False, timeout=60,
                    )  # fmt: skip
                except subprocess.TimeoutExpired as slow:
                    raise OSError(errno.ETIMEDOUT, f"mkfs.ext4 took more than {slow.timeout:g} s") from None
            if done.returncode != 0:
                raise OSError(errno.EIO, f"mkfs.ext4: {done.stderr.decode(errors='replace').strip()[:300]}")
            return list(_data(made))
        finally:
            os.close(made)

    def _unnamed(self, size_bytes: int) -> int:
        made = os.open(self._directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        os.ftruncate(made, size_bytes)
        return made


def missing_requirement(directory: str) -> str:
    """Why no disk can be created on this machine; empty if a test disk was created."""
    if os.geteuid() != 0 or shared_ids():
        return "only root can use loop devices"
    if not _mkfs():
        return "there is no mkfs.ext4"
    if not os.path.exists(_CONTROL):
        return f"there is no {_CONTROL}"
    disks = Disks(directory)
    try:
        disk = disks.create(LEAST_BYTES, 0)
        os.close(disk.tree)
        discard(disk)
        return ""
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)


def why_not_cloned(directory: str) -> str:
    """Why files in *directory* cannot share blocks; empty if they can."""
    try:
        files = [os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600) for _ in range(2)]
    except OSError as error:
        return str(error)
    try:
        os.pwrite(files[0], bytes(BLOCK_BYTES), 0)
        share_blocks(files[0], files[1])
        return ""
    except OSError as error:
        return error.strerror or str(error)
    finally:
        for file in files:
            os.close(file)


def _reserve(file: int, size_bytes: int) -> None:
    """Allocate all blocks of *file*. Raises OSError."""
    try:
        sys_.allocate(file, size_bytes)
    except OSError as error:
        raise OSError(error.errno, f"{size_bytes >> 20} MiB cannot be reserved: {os.strerror(error.errno or 0)}") from None


def _attach(blank: int, owner: int, size_bytes: int, *, reserved: bool) -> Disk:
    """Mount *blank*, which the disk owns from then on, and give its existing files to *owner*. Waits for the device. Raises OSError."""
    device, name = _loop(blank)
    try:
        options = _OPTIONS if reserved else (*_OPTIONS, _RETURNS_BLOCKS)
        tree = sys_.new_mount("ext4", f"/proc/self/fd/{device}", options, sys_.MOUNT_ATTR_NOSUID | sys_.MOUNT_ATTR_NODEV)
    finally:
        os.close(device)
    try:
        if reserved:  # zeroing a small range through the loop device would free its blocks
            sys_.write_file(f"{_SETTINGS}/{name}/extent_max_zeroout_kb", "0")
        root = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=tree)
        try:
            for path in (".", *rootfs.PREPARED):
                os.chown(path, owner, owner, dir_fd=root)
            return Disk(tree, root, identity(blank), blank, name, size_bytes, reserved)
        except BaseException:
            os.close(root)
            raise
    except BaseException:
        os.close(tree)
        raise


def identity(file: int) -> FileId:
    """The identity of the open *file*: device and inode."""
    status = os.fstat(file)
    return status.st_dev, status.st_ino


def discard(disk: Disk) -> None:
    """Close *disk*, whose sandbox has ended, except for ``tree``. Unwritten data is dropped, because writing it could take minutes."""
    try:
        # The call would shut down any file system, so check first that this is the disk's own.
        device, file = _backing(disk.root)
        if file == disk.file:
            _silence(device)
            fcntl.ioctl(disk.root, _EXT4_SHUTDOWN, struct.pack("I", _WITHOUT_FLUSH))
    except OSError:
        pass
    finally:
        os.close(disk.root)
        os.close(disk.backing)


def _silence(device: str) -> None:
    """Suppress ext4's message about the shutdown on the machine's console, where a serial line takes half a millisecond for it."""
    try:
        with open(f"/sys/fs/ext4/{device}/msg_ratelimit_burst", "w", encoding="ascii") as file:
            file.write("0")
    except OSError:
        pass


def _backing(root: int) -> tuple[str, FileId | None]:
    """The loop device that *root* is on, and the file behind it; no file if it is on another kind of device."""
    device = os.fstat(root).st_dev
    if os.major(device) != _LOOP_MAJOR:
        return "", None
    name = os.path.basename(os.readlink(f"/sys/dev/block/{_LOOP_MAJOR}:{os.minor(device)}"))
    loop = os.open(f"/dev/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.fstat(loop).st_rdev != device:
            return name, None
        backing: FileId = struct.unpack_from("=QQ", fcntl.ioctl(loop, _STATUS, bytes(_STATUS_BYTES)))
        return name, backing
    finally:
        os.close(loop)


def _loop(disk: int) -> tuple[int, str]:
    """A loop device for the open file *disk*: its descriptor and name. Raises OSError."""
    config = struct.pack("II", disk, 4096) + struct.pack("5Q4I64s32s32s2Q", *[0] * 8, _AUTOCLEAR | _DIRECT_IO, b"", b"", b"", 0, 0)
    control = os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(_ATTEMPTS):
            name = f"loop{fcntl.ioctl(control, _GET_FREE)}"
            device = os.open(f"/dev/{name}", os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(device, _CONFIGURE, config + bytes(64))
                return device, name
            except OSError as error:
                os.close(device)
                # Another process has taken the same number first.
                if error.errno != errno.EBUSY:
                    raise
    finally:
        os.close(control)
    raise OSError(errno.EBUSY, "no loop device is free")


def _data(file: int) -> Iterator[tuple[int, bytes]]:
    end = 0
    while True:
        try:
            start = os.lseek(file, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        end = os.lseek(file, start, os.SEEK_HOLE)
        yield start, os.pread(file, end - start, start)


def _mkfs() -> str | None:
    return shutil.which("mkfs.ext4", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
