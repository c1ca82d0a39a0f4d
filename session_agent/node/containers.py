"""Containers of sandboxes: created without a name, waiting for their configuration.

Owns what a sandbox uses on the machine (files, an id range, cgroups, the process in its namespaces with its mounts) and the release of all
that. The steps that take milliseconds are here, so that they can be done before a request comes; sandboxes.py only assigns a container to a
request. Called by spares.py and sandboxes.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import marshal
import os
import secrets
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from holdfast_wire.errors import HoldfastError

from session_agent.node.agentlog import AgentLog
from session_agent.node.disk_space import DiskSpace
from session_agent.node.id_ranges import IdRanges
from session_agent.node.images.spec import ImageSpec
from session_agent.node.images.upper import Copied, copy_upper
from session_agent.node.kernel import freezer, rootfs, syscalls
from session_agent.node.kernel.cgroups import SandboxCgroup
from session_agent.node.kernel.disks import LEAST_BYTES, Clone, Disk, Disks, discard
from session_agent.node.kernel.hierarchies import Hierarchies
from session_agent.node.kernel.namespaces import HIGH_IDS, LOW_IDS, IdMap, shared_ids
from session_agent.node.kernel.network import NetworkHelper
from session_agent.node.settings import NodeSettings, memory_dir
from session_agent.node.zygote.launcher import Launcher
from session_agent.trees import remove

log = logging.getLogger(__name__)
T = TypeVar("T")
_DEATH_S = 30.0
_BLOCKS_BYTES, _FILE_BYTES = 16 << 20, 64 << 10
"""Where files share no blocks, a disk with at most so much in use, and so much more for each file, is copied as blocks: creating a file
costs as much as copying some tens of KiB. Of a larger one the files are copied, from memory and without writing the disk out before."""


@dataclass(slots=True, eq=False)
class Container:
    """The first process of a sandbox, waiting or in use, and its resources on the machine. Descriptors are -1 once closed."""

    image: ImageSpec
    slot: int
    ids: IdMap
    folder: str
    """The folder for the sandbox's files, if it has no disk."""
    cgroup: SandboxCgroup
    control: socket.socket
    ready: int
    agent_log: AgentLog
    pid: int = 0
    pidfd: int = -1
    disk: Disk | None = None
    network_helper: NetworkHelper | None = None
    death: str = ""
    killed: bool = False
    survives: bool = False
    """Whether the kernel has not ended the process within `_DEATH_S` after it was killed: nothing waits for it any more."""
    end_cause: tuple[str, str, str] | None = None
    """Reason, fault and message, if the node itself ends the process."""
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    on_end: Callable[[], None] | None = None

    def kill(self, reason: str, fault: str, message: str) -> None:
        """End the container because of what it does. `on_end` follows."""
        if self.pidfd >= 0 and self.end_cause is None:
            self.end_cause = (reason, fault, message)
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def close_channels(self) -> None:
        self.control.close()
        if self.ready >= 0:
            os.close(self.ready)
            self.ready = -1

    def open_upper(self) -> int:
        """A descriptor of the directory with everything that the container's processes have written. Raises HoldfastError(unsupported)."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open("upper", flags, dir_fd=self.disk.root) if self.disk is not None else os.open(f"{self.folder}/upper", flags)
        except FileNotFoundError:
            hint = f"create it without a limit of its disk, or with at least {LEAST_BYTES >> 20}Mi"
            raise HoldfastError("unsupported", "the files of this sandbox are in memory and cannot be copied", hint=hint) from None

    async def was_killed(self) -> bool:
        """Whether the process, which has ended or is about to end, died by a signal."""
        try:
            async with asyncio.timeout(1):
                await self.gone.wait()
        except TimeoutError:
            return False
        return self.killed


class ContainerFactory:
    """Creates containers and releases their resources on the machine."""

    def __init__(self, settings: NodeSettings, launcher: Launcher, hierarchies: Hierarchies, *, privileged: bool) -> None:
        self._settings = settings
        self._launcher = launcher
        self._hierarchies = hierarchies
        self._privileged = privileged
        self.disks: Disks | None = None
        """The disks; None if sandboxes cannot have their own."""
        self.space: DiskSpace | None = None
        self.clones: dict[str, Clone] = {}
        """The layers that are clones of a sandbox's disk, by what stands for them among the layers of an image: no path of a directory."""
        self._ranges = IdRanges(settings, memory_dir() if privileged and not shared_ids() else None)

    async def create(self, image: ImageSpec, disk_bytes: int | None, *, ahead: bool = False) -> Container:
        """Create a container. Raises HoldfastError or OSError and then leaves nothing behind. *ahead*: no request waits for it yet."""
        name = secrets.token_hex(8)
        slot = self._ranges.take()
        ours, theirs = socket.socketpair()
        ready, ready_w = os.pipe2(os.O_CLOEXEC)
        log_r, log_w = os.pipe2(os.O_CLOEXEC)
        fds = [theirs.fileno(), ready_w, log_w]
        container = Container(
            image=image,
            slot=slot,
            ids=self.ids(slot),
            folder=os.path.join(self._settings.sandboxes_dir, name),
            cgroup=SandboxCgroup(self._hierarchies, name),
            control=ours,
            ready=ready,
            agent_log=AgentLog(log_r),
        )
        try:
            try:
                await _to_its_end(lambda: self._make_files(container, disk_bytes, fds))
                if container.disk is not None and self.space is not None:
                    self.space.add(container.disk)
                await self._fork(container, disk_bytes, ahead, fds)
            finally:
                for tree in fds[3:]:
                    os.close(tree)
                theirs.close()
                os.close(ready_w)
                os.close(log_w)
            container.cgroup.add(container.pid)
        except BaseException:
            await self.destroy(container)
            raise
        return container

    async def end(self, container: Container) -> None:
        """End all processes of *container*; `destroy` follows. What is left has names of its own, which no other container uses."""
        container.close_channels()
        if container.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(container.pidfd, signal.SIGKILL)
            if not container.survives:
                await self._until_gone(container)
        container.agent_log.close()

    async def destroy(self, container: Container) -> None:
        """Release all resources of *container*; a step that fails is logged, and the other steps are still done."""
        try:
            await self.end(container)
            if container.disk is not None and self.space is not None:
                self.space.forget(container.disk)
            await asyncio.to_thread(self._release, container)
        finally:
            if container.pidfd < 0:
                self._ranges.release(container.slot)

    async def freeze(self, container: Container) -> None:
        """Stop all processes of the container. Raises HoldfastError(unsupported, runtime_unavailable)."""
        await _to_its_end(lambda: freezer.freeze(container.cgroup))

    def thaw(self, container: Container) -> None:
        """Continue them."""
        freezer.thaw(container.cgroup)

    async def copy_written(self, container: Container, target: str, pool: str) -> Copied:
        """Copy what the processes of a frozen container have written to the empty directory *target*.

        Raises HoldfastError(unsupported) where its files are in memory, and OSError.
        """
        ids = container.ids if self._privileged and self._launcher.id_mapping else None

        def copy() -> Copied:
            upper = container.open_upper()
            try:
                return copy_upper(upper, target, pool, ids)
            finally:
                os.close(upper)

        return await _to_its_end(copy)

    def can_share(self, container: Container) -> bool:
        """Whether a clone of what the container has written takes the same time whatever its size."""
        return self._maps_disks and container.disk is not None and not container.disk.reserved and self._shares_blocks

    def can_clone(self, container: Container) -> bool:
        """Whether cloning what the container has written costs less than copying its files."""
        disk = container.disk
        if not self._maps_disks or disk is None or disk.reserved:
            return False
        size_bytes, files = disk.used()
        return self._shares_blocks or size_bytes <= _BLOCKS_BYTES + files * _FILE_BYTES

    async def write_out(self, container: Container) -> None:
        """Write out what the container has in memory of its disk, so that `clone` has little to write while it is frozen."""
        disk = container.disk
        assert disk is not None
        root = os.dup(disk.root)
        try:
            await _to_its_end(lambda: syscalls.syncfs(root))
        finally:
            os.close(root)

    async def clone(self, container: Container) -> Clone:
        """What the processes of a frozen container have written. The caller closes it. Raises OSError, such as ENOSPC."""
        disk, disks, space = container.disk, self.disks, self.space
        assert disk is not None
        assert disks is not None
        if space is not None and (left := space.measure().left) < (held := os.fstat(disk.backing).st_blocks * 512):
            raise OSError(errno.ENOSPC, f"{held >> 20} MiB are shared or copied, {left >> 20} MiB are left")
        made: list[Clone] = []
        try:
            await _to_its_end(lambda: made.append(disks.clone(disk)))
        except BaseException:
            for clone in made:
                clone.close()
            raise
        return made[0]

    async def copy_clone(self, clone: Clone, target: str, pool: str) -> Copied:
        """Copy the files of a clone to the empty directory *target*. Raises OSError."""

        def copy() -> Copied:
            with clone.opened() as upper:
                return copy_upper(upper, target, pool, None)

        return await _to_its_end(copy)

    @property
    def _maps_disks(self) -> bool:
        """Whether files on disks belong to ids inside, which the kernel maps to those of the sandbox: so any sandbox can use a clone."""
        return self._launcher.id_mapping and self.disks is not None

    @property
    def _shares_blocks(self) -> bool:
        return self.disks is not None and self.disks.share_blocks

    async def _until_gone(self, container: Container) -> None:
        try:
            async with asyncio.timeout(_DEATH_S):
                await container.gone.wait()
        except TimeoutError:
            # The process is stuck in the kernel, for example on a broken disk. Its ids are not reused.
            container.survives = True
            log.error("%s: process %d was killed but has not ended", container.agent_log.name, container.pid)

    def ids(self, slot: int) -> IdMap:
        if not self._privileged:
            return IdMap(0, 1)
        if shared_ids():
            return IdMap(0, shared_ids())
        # Without id-mapped mounts the layers are stored with the ids of the first range, and all sandboxes share it.
        number = slot if self._launcher.id_mapping else 0
        return IdMap(self._settings.id_base + number * LOW_IDS, LOW_IDS, self._settings.high_base + number * HIGH_IDS)

    async def _fork(self, container: Container, disk_bytes: int | None, ahead: bool, passed: list[int]) -> None:
        image = container.image
        await self._launcher.begin(
            {
                "ids": (container.ids.base, container.ids.count, container.ids.high_base),
                "root": tuple(
                    rootfs.Root(
                        layers=tuple("" if path in self.clones else path for path in image.layers),
                        trees=image.trees,
                        hidden=image.hidden,
                        folder=container.folder if disk_bytes is None and len(passed) == 3 else None,
                        shm_bytes=self._settings.shm_bytes,
                        tmpfs_bytes=None if len(passed) > 3 else disk_bytes,
                    )
                ),
                "groups": len(container.cgroup.paths),
                "warm_up": ahead,
                "idmap": self._launcher.id_mapping,
                "idmap_disk": self._maps_disks,
                "open_files": self._settings.open_files,
            },
            passed,
        )
        try:
            container.cgroup.create()
            container.cgroup.divide()
            fds = container.cgroup.delegate()
            shown = container.cgroup.show()
            fds["mount_fds"] = list(shown.values())
            await send_to_child(container, {"mounts": list(shown)}, fds)
        finally:
            container.pid, container.pidfd = await self._launcher.finish()
            asyncio.get_running_loop().add_reader(container.pidfd, self._ended, container)

    def _make_files(self, container: Container, disk_bytes: int | None, fds: list[int]) -> None:
        """Create a disk, whose mount is added to *fds*, and mounts of the layers that are clones; or a folder for the sandbox's files."""
        size_bytes = disk_bytes or self._settings.default_disk
        owner = container.ids.base
        clones = [self.clones[path] for path in container.image.layers if path in self.clones]
        if self.disks is not None and size_bytes is not None and size_bytes >= LEAST_BYTES:
            try:
                container.disk = self.disks.create(size_bytes, 0 if self._maps_disks else owner, reserved=disk_bytes is not None)
            except OSError as error:
                raise _refused(error) from error
            fds.append(container.disk.tree)
            fds.extend(clone.mount() for clone in clones)
        elif clones:
            raise HoldfastError("unsupported", "a sandbox whose files are in memory cannot use a clone of a disk")
        elif disk_bytes is None:
            os.mkdir(container.folder, 0o755)
            rootfs.prepare_folder(container.folder)
            if self._privileged:
                for path in (".", *rootfs.PREPARED):
                    os.chown(os.path.join(container.folder, path), owner, owner)

    def _ended(self, container: Container) -> None:
        """The container's first process has ended, and with it all processes in its namespaces."""
        asyncio.get_running_loop().remove_reader(container.pidfd)
        result = os.waitid(os.P_PIDFD, container.pidfd, os.WEXITED | os.WNOHANG)
        os.close(container.pidfd)
        container.pidfd = -1
        container.killed = result is not None and result.si_code in (os.CLD_KILLED, os.CLD_DUMPED)
        status = "?" if result is None else result.si_status
        container.death = f"signal {status}" if container.killed else f"exit status {status}"
        container.gone.set()
        if container.on_end:
            container.on_end()

    def _release(self, container: Container) -> None:
        """Release the resources of an ended process. Runs on a thread, because every step waits for the kernel."""
        if container.network_helper:
            helper, container.network_helper = container.network_helper, None
            helper.stop()
        if container.disk is not None:
            disk, container.disk = container.disk, None
            discard(disk)
        steps: list[tuple[str, Callable[[], None]]] = [
            ("files", lambda: remove(container.folder, unlock=not self._privileged)),
            ("control groups", container.cgroup.remove),
        ]
        for what, step in steps:
            try:
                step()
            except FileNotFoundError:
                pass
            except OSError as error:
                log.error("%s: its %s could not be removed: %s", container.agent_log.name, what, error)


def _refused(error: OSError) -> HoldfastError | OSError:
    """The typed error for a disk that cannot be made."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = "ask for a smaller disk, delete sandboxes or images, or set HOLDFAST_DATA to a larger disk"
        return HoldfastError("no_capacity", f"the data folder has no room for the disk: {error.strerror}", hint=hint)
    if error.errno == errno.EOPNOTSUPP:
        hint = "leave disk out for the default, which is not reserved, or set HOLDFAST_DATA to a folder on ext4, xfs or btrfs"
        return HoldfastError("unsupported", f"the data folder cannot reserve room: {error.strerror}", hint=hint)
    return error


async def _to_its_end(step: Callable[[], T]) -> T:
    """Run ``step`` on a thread, and return its result.

    A cancelled caller continues only when the thread has ended, so that it can remove what the step created.
    """
    work = asyncio.ensure_future(asyncio.to_thread(step))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise


async def send_to_child(container: Container, message: dict[str, object], fds: dict[str, list[int]]) -> None:
    """Send one of the two messages to the child, over a channel that no other process has. *fds* are closed here; the child gets copies."""
    passed = [fd for opened in fds.values() for fd in opened]
    body = marshal.dumps(message | {"fds": [name for name, opened in fds.items() for _ in opened]})
    container.control.setblocking(False)
    try:
        try:
            socket.send_fds(container.control, [len(body).to_bytes(4, "big")], passed)
        finally:
            for fd in passed:
                os.close(fd)
        await asyncio.get_running_loop().sock_sendall(container.control, body)
    except OSError as error:
        # The child reports on its own channel why it ended.
        log.info("%s: the process ended before it was configured: %s", container.agent_log.name, error)
