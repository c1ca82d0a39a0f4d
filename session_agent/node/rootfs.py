"""The file tree of a sandbox: an overlay of image layers, fresh /dev and /proc, and the way into it.

Owns every mount. Parent-side: `Workshop` (made once per zygote) and `open_layers` give detached mounts. Child-side:
`build` attaches them in the sandbox's own mount namespace and leaves the machine's tree for good. Layers and trees are
only ever reached through detached copies, so nothing outside them is reachable by walking up.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

from session_agent.node import syscalls as sys_
from session_agent.node.namespaces import IdMap, write_id_maps

MAX_LAYERS = 128
NAME_FILES = ("hostname", "hosts")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEV_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
# Most of these the sandbox's root could not read anyway: it is nobody outside. The list is the second lock.
_HIDDEN_FILES = (
    "cmdline", "kallsyms", "kcore", "key-users", "keys", "kmsg", "kpagecgroup", "kpagecount", "kpageflags",
    "latency_stats", "modules", "pagetypeinfo", "sched_debug", "slabinfo", "sysrq-trigger", "timer_list",
    "timer_stats", "vmallocinfo", "config.gz", "bootconfig", "iomem", "ioports", "mtrr", "buddyinfo", "zoneinfo",
    # The disks of all sandboxes are in these, and what each does with its own.
    "diskstats", "partitions",
)  # fmt: skip
_HIDDEN_DIRECTORIES = ("acpi", "asound", "driver", "dynamic_debug", "scsi", "tty", "device-tree", "pressure")
_READ_ONLY = ("sys", "fs", "irq", "bus")
_GUARD = sys_.MS_NOSUID | sys_.MS_NODEV
_TERMINALS = 256
"""At once in one sandbox. The kernel has 3072 for all sandboxes together."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A directory of the machine shown read-only at *target* (relative to the root)."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Root:
    """What a sandbox's tree is made of: layers (topmost first), read-only trees, and its own writable folder.

    What it writes goes to a disk of its own, to a tmpfs of *tmpfs_bytes*, or to *folder*, where nothing bounds it.
    """

    layers: tuple[str, ...]
    trees: tuple[Tree, ...]
    hidden: tuple[str, ...]
    folder: str
    shm_bytes: int
    tmpfs_bytes: int | None
    own_disk: bool = False


@dataclass(frozen=True, slots=True)
class Opened:
    """Detached mounts of a Root, in its order."""

    layers: tuple[int, ...]
    trees: tuple[int, ...]
    folder: int

    def on(self, folder: int) -> Opened:
        """The same with another folder."""
        os.close(self.folder)
        return Opened(self.layers, self.trees, folder)

    def close(self) -> None:
        for fd in (*self.layers, *self.trees, self.folder):
            os.close(fd)


class Workshop:
    """A tmpfs in the zygote's own mount namespace, which every sandbox's namespace starts as a copy of.

    It holds the mount points the layers are attached at, a ready /dev, and an empty directory for masks. Attached, not
    detached: kernels before 6.15 copy mounts only from attached ones.
    """

    def __init__(self, place: str) -> None:
        self.place = place
        sys_.mount("tmpfs", place, "tmpfs", _GUARD, "size=256k,mode=755")
        for name in ("root", "folder", "empty", "dev", *(str(index) for index in range(MAX_LAYERS))):
            os.mkdir(f"{place}/{name}", 0o755)
        self._fill_dev(f"{place}/dev")
        _restrict(place, sys_.MOUNT_ATTR_RDONLY)
        self.hidden_files = [name for name in _HIDDEN_FILES if os.path.exists(f"/proc/{name}")]
        self.hidden_directories = [name for name in _HIDDEN_DIRECTORIES if os.path.isdir(f"/proc/{name}")]
        self.read_only = [name for name in _READ_ONLY if os.path.isdir(f"/proc/{name}")]

    @staticmethod
    def _fill_dev(dev: str) -> None:
        sys_.mount("tmpfs", dev, "tmpfs", sys_.MS_NOSUID | sys_.MS_NOEXEC, "size=64k,mode=755")
        for name in ("pts", "shm"):
            os.mkdir(f"{dev}/{name}", 0o755)
        for name, target in _DEV_LINKS.items():
            os.symlink(target, f"{dev}/{name}")
        for name in _DEVICES:
            os.close(os.open(f"{dev}/{name}", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o666))
            _bind(f"/dev/{name}", f"{dev}/{name}")
        _restrict(dev, sys_.MOUNT_ATTR_RDONLY)


def prepare_folder(folder: str) -> list[str]:
    """Fill an empty *folder* with what an overlay needs, and the files a sandbox writes its name to; what was made."""
    etc = os.path.join(folder, "upper", "etc")
    made = [os.path.join(folder, "upper"), os.path.join(folder, "work"), etc]
    for path in made:
        os.mkdir(path, 0o755)
    for name in NAME_FILES:
        made.append(os.path.join(etc, name))
        os.close(os.open(made[-1], os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
    return made


def open_layers(root: Root) -> Opened:
    """Parent: detached copies of everything *root* names. Close them when the child has its own."""
    opened: list[int] = []
    try:
        layers = [_keep(opened, _detach(path)) for path in root.layers]
        trees = [_keep(opened, _detach(tree.source)) for tree in root.trees]
        for fd in trees:
            sys_.mount_setattr(fd, sys_.MOUNT_ATTR_RDONLY | sys_.MOUNT_ATTR_NOSUID | sys_.MOUNT_ATTR_NODEV, recursive=True)
        folder = _keep(opened, _detach(root.folder))
    except BaseException:
        for fd in opened:
            os.close(fd)
        raise
    return Opened(tuple(layers), tuple(trees), folder)


def map_owners(opened: Opened, pid: int) -> None:
    """Parent: show the layers' files to the sandbox of *pid* with its own ids (an id-mapped mount)."""
    userns = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    try:
        for fd in opened.layers:
            sys_.mount_setattr(fd, sys_.MOUNT_ATTR_IDMAP, userns_fd=userns)
    finally:
        os.close(userns)


def id_mapping_works(directory: str, workshop: Workshop) -> bool:
    """Whether an overlay takes an id-mapped layer from the file system of *directory* (Linux 5.19), by doing it."""
    ids = IdMap(1 << 20, 1 << 16)
    held, release = os.pipe2(os.O_CLOEXEC)
    layer = _detach(directory)
    try:
        pid, pidfd = sys_.fork_into(sys_.CLONE_NEWUSER | sys_.CLONE_NEWNS)
        if pid == 0:
            os._exit(_try_overlay(held, layer, workshop))
        os.close(pidfd)
        try:
            write_id_maps(pid, ids)
            map_owners(Opened((layer,), (), -1), pid)
            os.write(release, b"1")
        except OSError:
            os.write(release, b"0")
        return os.waitpid(pid, 0)[1] == 0
    finally:
        for fd in (held, release, layer):
            os.close(fd)


def _try_overlay(held: int, layer: int, workshop: Workshop) -> int:
    try:
        if os.read(held, 1) != b"1":
            return 1
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        os.chdir(workshop.place)
        sys_.move_mount(layer, "0")
        sys_.mount("overlay", "root", "overlay", _GUARD, "lowerdir=0:empty,userxattr")
    except OSError:
        return 1
    return 0


def build(root: Root, opened: Opened, workshop: Workshop, ids: IdMap) -> None:
    """Child: put the tree together in the workshop, enter it and let go of the machine's."""
    sys_.mount("", "/", "", sys_.MS_REC | sys_.MS_PRIVATE)
    place = workshop.place
    os.chdir(place)
    for index, fd in enumerate(opened.layers):
        sys_.move_mount(fd, str(index))
    if root.tmpfs_bytes is None:
        sys_.move_mount(opened.folder, "folder")
    else:
        sys_.mount("tmpfs", "folder", "tmpfs", _GUARD, f"size={root.tmpfs_bytes},mode=755")
    if root.tmpfs_bytes is not None or root.own_disk:
        prepare_folder("folder")
    lower = ":".join(str(index) for index in range(len(opened.layers)))
    # volatile: a sandbox does not outlive its node, so its fsync calls need not reach the disk
    options = f"lowerdir={lower},upperdir=folder/upper,workdir=folder/work,userxattr,volatile"
    sys_.mount("overlay", "root", "overlay", _GUARD, options)
    os.chdir("root")
    for tree, fd in zip(root.trees, opened.trees, strict=True):
        sys_.move_mount(fd, tree.target)
    for path in root.hidden:
        _bind(f"{place}/empty", path)
    _dev(f"{place}/dev", ids, root.shm_bytes)
    _proc(workshop)
    sys_.pivot_root(".", ".")
    sys_.umount(".", sys_.MNT_DETACH)
    os.chdir("/")


def _dev(ready: str, ids: IdMap, shm_bytes: int) -> None:
    _bind(ready, "dev", recursive=True)
    group = ",gid=5" if ids.count > 5 else ""
    sys_.mount("devpts", "dev/pts", "devpts", _GUARD & ~sys_.MS_NODEV | sys_.MS_NOEXEC,
               f"newinstance,ptmxmode=0666,mode=0620,max={_TERMINALS}{group}")  # fmt: skip
    sys_.mount("tmpfs", "dev/shm", "tmpfs", _GUARD, f"size={shm_bytes},mode=1777")


def _proc(workshop: Workshop) -> None:
    sys_.mount("proc", "proc", "proc", _GUARD | sys_.MS_NOEXEC)
    for name in workshop.hidden_files:
        _bind("dev/null", f"proc/{name}")
    for name in workshop.hidden_directories:
        _bind(f"{workshop.place}/empty", f"proc/{name}")
    for name in workshop.read_only:
        fd = sys_.open_tree(f"proc/{name}", recursive=True)
        sys_.mount_setattr(fd, sys_.MOUNT_ATTR_RDONLY, recursive=True)
        sys_.move_mount(fd, f"proc/{name}")
        os.close(fd)


def _bind(source: str, target: str, *, recursive: bool = False) -> None:
    fd = sys_.open_tree(source, recursive=recursive)
    sys_.move_mount(fd, target)
    os.close(fd)


def _restrict(path: str, attributes: int) -> None:
    fd = sys_.open_tree(path, clone=False)
    try:
        sys_.mount_setattr(fd, attributes)
    finally:
        os.close(fd)


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
