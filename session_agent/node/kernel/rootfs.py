"""The file tree of a sandbox: an overlay of image layers, fresh /dev, /proc and /sys, and the way into it.

Owns every mount. Parent-side: `ZygoteMounts` is the zygote's own tree, and `open_layers` gives detached mounts. Child-side:
`build` and `mount_sys` attach them in the sandbox's own mount namespace, and `enter` detaches the zygote's tree. Layers and trees are
reached through detached copies only, so no path leads out of them. What is mounted, masked and read-only follows docker's defaults;
a comment gives the reason for each difference.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from session_agent.node.kernel import syscalls as sys_
from session_agent.node.kernel.namespaces import IdMap, write_id_maps

MAX_LAYERS = 128
NAME_FILES = ("hostname", "hosts", "resolv.conf")
_FOLDERS = ("upper", "work", "upper/etc")
_FILES = tuple(f"upper/etc/{name}" for name in NAME_FILES)
PREPARED = (*_FOLDERS, *_FILES)
_DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
_DEV_OPTIONS = ("size=64m", "mode=755")
_DEV_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
    "core": "/proc/kcore",
}
# The paths that docker masks, and the disks of all other sandboxes.
_HIDDEN_FILES = ("kcore", "keys", "latency_stats", "timer_list", "timer_stats", "sched_debug", "interrupts", "diskstats", "partitions")
_HIDDEN_DIRECTORIES = ("acpi", "asound", "scsi", "device-tree", "fs/ext4", "fs/jbd2", "fs/xfs", "fs/nfsd")
_READ_ONLY = ("bus", "fs", "irq", "sys", "sysrq-trigger")
# Docker masks the first two; the others show the disk of every sandbox on the machine, and the path of its file.
_HIDDEN_SYS = (
    "firmware", "devices/virtual/powercap", "devices/virtual/block", "devices/virtual/bdi", "class/bdi", "block", "class/block",
    "dev/block", "fs/ext4", "fs/xfs",
)  # fmt: skip
_SYS_FALLBACK = "devices/system"
_CGROUPS = "sys/fs/cgroup"
_GUARD = sys_.MS_NOSUID | sys_.MS_NODEV
_SHM_FLAGS = _GUARD | sys_.MS_NOEXEC
_OWN_MOUNTS = "/proc/self/ns/mnt"
_TERMINALS = 256
"""Most pseudo-terminals of one sandbox. The kernel has 3072 for all sandboxes together."""


class Root(NamedTuple):
    """The parts of a sandbox's file tree: layers (topmost first), read-only trees, and a writable part.

    A tree is a directory of the machine and its path relative to the root. An empty layer stands for the next mount that is passed, of
    which the directory `upper` is the layer. Files are written to a tmpfs of *tmpfs_bytes*, to *folder*,
    whose size is not limited, or, without either, to the sandbox's own disk.
    """

    layers: tuple[str, ...]
    trees: tuple[tuple[str, str], ...]
    hidden: tuple[str, ...]
    folder: str | None
    shm_bytes: int
    tmpfs_bytes: int | None


@dataclass(frozen=True, slots=True)
class DetachedMounts:
    """Detached mounts of a Root, in its order. ``folder`` is empty if a tmpfs is used instead, ``devices`` if the machine's are shared."""

    layers: tuple[int, ...]
    trees: tuple[int, ...]
    folder: tuple[int, ...] = ()
    devices: tuple[int, ...] = ()

    def close(self) -> None:
        for fd in (*self.layers, *self.trees, *self.folder, *self.devices):
            os.close(fd)


class ZygoteMounts:
    """The zygote's own mount namespace.

    Every sandbox's namespace starts as a copy of it, and has few mounts because copying them takes time. Its root is a tmpfs with the mount
    points of the layers, the devices, and an empty directory for masks. The machine's /proc and /sys are mounted there too, completely:
    otherwise the kernel would refuse new mounts of these file systems.
    """

    def __init__(self, place: str) -> None:
        """*place* is any directory; a tmpfs is mounted there for a moment, only in the new namespace."""
        self._machine = os.open(_OWN_MOUNTS, os.O_RDONLY | os.O_CLOEXEC)
        sys_.unshare(sys_.CLONE_NEWNS)
        self._own = os.open(_OWN_MOUNTS, os.O_RDONLY | os.O_CLOEXEC)
        sys_.mount("", "/", "", sys_.MS_REC | sys_.MS_PRIVATE)
        sys_.mount("tmpfs", place, "tmpfs", _GUARD, "size=256k,mode=755")
        os.chdir(place)
        for name in ("root", "folder", "empty", "dev", "proc", "sys", *(str(index) for index in range(MAX_LAYERS))):
            os.mkdir(name, 0o755)
        for name in _DEVICES:
            os.mknod(f"dev/{name}")
        for path in ("proc", "sys", *(f"dev/{name}" for name in _DEVICES)):
            sys_.bind(f"/{path}", path)
        enter()
        sys_.mount_setattr("/", sys_.MOUNT_ATTR_RDONLY)
        self.hidden_files = [name for name in _HIDDEN_FILES if os.path.exists(f"/proc/{name}")]
        self.hidden_directories = [name for name in _HIDDEN_DIRECTORIES if os.path.isdir(f"/proc/{name}")]
        self.read_only = [name for name in _READ_ONLY if os.path.exists(f"/proc/{name}")]
        self.hidden_sys = [name for name in _HIDDEN_SYS if os.path.isdir(f"/sys/{name}")]

    @contextlib.contextmanager
    def outside(self) -> Iterator[None]:
        """Inside the block, paths are those of the machine."""
        sys_.setns(self._machine, sys_.CLONE_NEWNS)
        try:
            yield
        finally:
            sys_.setns(self._own, sys_.CLONE_NEWNS)


def prepare_folder(folder: str) -> None:
    """Fill an empty *folder* with PREPARED: the directories that an overlay needs, and the files that contain the sandbox's name."""
    for path in _FOLDERS:
        os.mkdir(f"{folder}/{path}", 0o755)
    for path in _FILES:
        os.close(os.open(f"{folder}/{path}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))


def make_devices(owner: int) -> int:
    """Parent, as the machine's root: a detached /dev with device nodes that belong to *owner*.

    Every sandbox has its own nodes: locks, modes and times of a node would otherwise be shared with the machine and with other sandboxes.
    """
    made = sys_.new_mount("tmpfs", "tmpfs", _DEV_OPTIONS, sys_.MOUNT_ATTR_NOSUID)
    try:
        mask = os.umask(0)
        try:
            for name, (major, minor) in _DEVICES.items():
                os.mknod(name, stat.S_IFCHR | 0o666, os.makedev(major, minor), dir_fd=made)
        finally:
            os.umask(mask)
        for name in (".", *_DEVICES):
            os.chown(name, owner, owner, dir_fd=made)
    except BaseException:
        os.close(made)
        raise
    return made


def open_layers(root: Root, disk: int | None, devices_of: int | None = None, passed: Sequence[int] = ()) -> DetachedMounts:
    """Parent, outside: detached copies of all parts of *root*, *disk*, a detached mount, and with *devices_of* device nodes of that owner.

    *passed*: the detached mounts of empty layers. Close them when the child has its copies.
    """
    opened: list[int] = []
    try:
        mounts = iter(passed)
        layers = [_keep(opened, _detach(path) if path else os.dup(next(mounts))) for path in root.layers]
        trees = [_keep(opened, _detach(source)) for source, _ in root.trees]
        for fd in trees:
            sys_.mount_setattr(fd, sys_.MOUNT_ATTR_RDONLY | sys_.MOUNT_ATTR_NOSUID | sys_.MOUNT_ATTR_NODEV, recursive=True)
        folder = [_keep(opened, _detach(root.folder))] if root.folder else [] if disk is None else [_keep(opened, os.dup(disk))]
        devices = [] if devices_of is None else [make_devices(devices_of)]
    except BaseException:
        for fd in opened:
            os.close(fd)
        raise
    return DetachedMounts(tuple(layers), tuple(trees), tuple(folder), tuple(devices))


def map_owners(opened: DetachedMounts, pid: int, *, disk: bool = False) -> None:
    """Parent: map the owners of the layers' files, with *disk* also of those on the disk, to the ids of the sandbox of *pid*."""
    userns = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    try:
        for fd in (*opened.layers, *(opened.folder if disk else ())):
            sys_.mount_setattr(fd, sys_.MOUNT_ATTR_IDMAP, userns_fd=userns)
    finally:
        os.close(userns)


def id_mapping_works(directory: str, zygote_mounts: ZygoteMounts) -> bool:
    """Whether overlay accepts an id-mapped layer from the file system of *directory* (Linux 5.19). Determined by trying it."""
    ids = IdMap(1 << 20, 1 << 16)
    held, release = os.pipe2(os.O_CLOEXEC)
    with zygote_mounts.outside():
        layer = _detach(directory)
    try:
        pid, pidfd = sys_.fork_into(sys_.CLONE_NEWUSER | sys_.CLONE_NEWNS)
        if pid == 0:
            os._exit(_try_overlay(held, layer))
        os.close(pidfd)
        try:
            write_id_maps(pid, ids.extents)
            map_owners(DetachedMounts((layer,), ()), pid)
            os.write(release, b"1")
        except OSError:
            os.write(release, b"0")
        return os.waitpid(pid, 0)[1] == 0
    finally:
        for fd in (held, release, layer):
            os.close(fd)


def _try_overlay(held: int, layer: int) -> int:
    try:
        if os.read(held, 1) != b"1":
            return 1
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        sys_.move_mount(layer, "0")
        sys_.mount("overlay", "root", "overlay", sys_.MS_NODEV, "lowerdir=0:empty,userxattr")
    except OSError:
        return 1
    return 0


def build(root: Root, opened: DetachedMounts, zygote_mounts: ZygoteMounts, ids: IdMap) -> None:
    """Child: build the tree in the copy of the zygote's mount namespace, and change into it. `mount_sys` and `enter` follow."""
    sys_.mount("", "/", "", sys_.MS_REC | sys_.MS_PRIVATE)
    for index, fd in enumerate(opened.layers):
        sys_.move_mount(fd, str(index))
    for fd in opened.folder:
        sys_.move_mount(fd, "folder")
    if root.tmpfs_bytes is not None:
        sys_.mount("tmpfs", "folder", "tmpfs", _GUARD, f"size={root.tmpfs_bytes},mode=755")
        prepare_folder("folder")
    lower = ":".join(str(index) if path else f"{index}/upper" for index, path in enumerate(root.layers))
    # volatile: a sandbox does not outlive its node, so its fsync calls need not reach the disk
    options = f"lowerdir={lower},upperdir=folder/upper,workdir=folder/work,userxattr,volatile"
    sys_.mount("overlay", "root", "overlay", sys_.MS_NODEV, options)  # programs with the set-user-ID bit work, as in docker
    require_writable("root")
    os.chdir("root")
    for (_, target), fd in zip(root.trees, opened.trees, strict=True):
        _attach_tree(fd, target)
    for path in root.hidden:
        sys_.bind("/empty", path)
    _dev(ids, root.shm_bytes, opened.devices)
    _proc(zygote_mounts)


def require_writable(overlay: str) -> None:
    """Raise ENOSPC for an overlay that is read-only: the kernel mounts it so where the disk has no room for its working directory."""
    if os.statvfs(overlay).f_flag & os.ST_RDONLY:
        raise OSError(errno.ENOSPC, "the sandbox's disk has no room")


def _attach_tree(tree: int, target: str) -> None:
    """Mount a read-only tree of the machine through an overlay. So locks on its files, which need no write access, are the sandbox's own.

    Where the machine has other file systems mounted below a tree, a user cannot do that, and the tree is shown as it is.
    """
    place = "/folder"  # above the disk, which the sandbox's overlay keeps by itself
    sys_.move_mount(tree, place)
    try:
        sys_.mount("overlay", target, "overlay", sys_.MS_RDONLY | _GUARD, f"lowerdir={place}:/empty,userxattr")
    except OSError:
        sys_.bind(place, target)
    finally:
        sys_.umount(place, sys_.MNT_DETACH)


def mount_sys(zygote_mounts: ZygoteMounts, groups: Mapping[str, int]) -> None:
    """Child, between `build` and `enter`, in the sandbox's network namespace: a read-only /sys.

    *groups* are detached mounts of the commands' control groups: by controller, or one under "" where there is a single hierarchy.
    """
    try:
        sys_.mount("sysfs", "sys", "sysfs", sys_.MS_RDONLY | _GUARD | sys_.MS_NOEXEC)
    except OSError:
        # Parts of the machine's own /sys are hidden, as in a container, so the kernel refuses a new one. Runtimes read these parts.
        sys_.mount("tmpfs", "sys", "tmpfs", _GUARD | sys_.MS_NOEXEC, "size=64k,mode=755")
        for path in (_SYS_FALLBACK, _CGROUPS.removeprefix("sys/")):
            os.makedirs(f"sys/{path}")
        if os.path.isdir(f"/sys/{_SYS_FALLBACK}"):
            sys_.bind(f"/sys/{_SYS_FALLBACK}", f"sys/{_SYS_FALLBACK}")
        sys_.mount_setattr("sys", sys_.MOUNT_ATTR_RDONLY, recursive=True)
    else:
        for name in zygote_mounts.hidden_sys:
            sys_.bind("/empty", f"sys/{name}")
    if "" in groups:
        sys_.move_mount(groups[""], _CGROUPS)
    elif groups:
        sys_.mount("tmpfs", _CGROUPS, "tmpfs", _GUARD | sys_.MS_NOEXEC, "size=64k,mode=755")
        for name, fd in groups.items():
            os.mkdir(f"{_CGROUPS}/{name}")
            sys_.move_mount(fd, f"{_CGROUPS}/{name}")
        sys_.mount_setattr(_CGROUPS, sys_.MOUNT_ATTR_RDONLY)


def enter() -> None:
    """Make the working directory the root of the file tree, and detach the previous tree."""
    sys_.pivot_root(".", ".")
    sys_.umount(".", sys_.MNT_DETACH)
    os.chdir("/")


def resize_shm(size_bytes: int) -> None:
    """Child, inside: change the size of /dev/shm."""
    sys_.mount("", "/dev/shm", "", sys_.MS_REMOUNT | _SHM_FLAGS, f"size={size_bytes}")


def _dev(ids: IdMap, shm_bytes: int, devices: Sequence[int]) -> None:
    for fd in devices:
        sys_.move_mount(fd, "dev")
    if not devices:  # only the machine's root can create device nodes, so the machine's own are shown
        sys_.mount("tmpfs", "dev", "tmpfs", sys_.MS_NOSUID, ",".join(_DEV_OPTIONS))
        for name in _DEVICES:
            os.mknod(f"dev/{name}")
            sys_.bind(f"/dev/{name}", f"dev/{name}")
    for name in ("pts", "shm", "mqueue"):
        os.mkdir(f"dev/{name}", 0o755)
    for name, target in _DEV_LINKS.items():
        os.symlink(target, f"dev/{name}")
    group = ",gid=5" if ids.count > 5 else ""
    sys_.mount("devpts", "dev/pts", "devpts", _GUARD & ~sys_.MS_NODEV | sys_.MS_NOEXEC,
               f"newinstance,ptmxmode=0666,mode=0620,max={_TERMINALS}{group}")  # fmt: skip
    sys_.mount("tmpfs", "dev/shm", "tmpfs", _SHM_FLAGS, f"size={shm_bytes},mode=1777")
    sys_.mount("mqueue", "dev/mqueue", "mqueue", _GUARD | sys_.MS_NOEXEC)


def _proc(zygote_mounts: ZygoteMounts) -> None:
    sys_.mount("proc", "proc", "proc", _GUARD | sys_.MS_NOEXEC)
    for name in zygote_mounts.hidden_files:
        sys_.bind("dev/null", f"proc/{name}")
    for name in zygote_mounts.hidden_directories:
        sys_.bind("/empty", f"proc/{name}")
    for name in zygote_mounts.read_only:
        sys_.bind(f"proc/{name}", f"proc/{name}")
        sys_.mount_setattr(f"proc/{name}", sys_.MOUNT_ATTR_RDONLY)


def _detach(path: str) -> int:
    try:
        return sys_.open_tree(path)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # In a user namespace a directory with mounts below it can only be copied with them.
        return sys_.open_tree(path, recursive=True)


def _keep(kept: list[int], fd: int) -> int:
    kept.append(fd)
    return fd
