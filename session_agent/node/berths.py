"""Berths: sandboxes without a name yet, made and waiting for their configuration.

Owns everything a sandbox needs of the machine: a folder, an id range, cgroups, the process in its namespaces with its
tree mounted, and the giving back of all that. What takes milliseconds happens here, before or without a request;
sandboxes.py only has to name a berth. Called by spares.py and sandboxes.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast_wire.errors import HoldfastError

from session_agent.node import recovery, removal, rootfs
from session_agent.node.agentlog import AgentLog
from session_agent.node.cgroups import Group, Hierarchies
from session_agent.node.disks import LEAST_BYTES, Disks, FileId, discard, identity
from session_agent.node.images.spec import ImageSpec
from session_agent.node.launcher import Launcher
from session_agent.node.namespaces import HIGH_IDS, LOW_IDS, IdMap
from session_agent.node.network import Link
from session_agent.node.settings import NodeSettings

log = logging.getLogger(__name__)
_DEATH_S = 30.0


@dataclass(slots=True, eq=False)
class Berth:
    """One waiting or used process and what has to be given back for it. Descriptors are -1 once closed."""

    image: ImageSpec
    slot: int
    ids: IdMap
    folder: str
    group: Group
    control: socket.socket
    ready: int
    agent_log: AgentLog
    pid: int = 0
    pidfd: int = -1
    disk: int = -1
    disk_file: FileId = (0, 0)
    link: Link | None = None
    death: str = ""
    killed: bool = False
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    on_end: Callable[[], None] | None = None

    def close_channels(self) -> None:
        self.control.close()
        if self.ready >= 0:
            os.close(self.ready)
            self.ready = -1

    async def was_killed(self) -> bool:
        """Whether the process, which has closed its end or is about to, died by a signal."""
        try:
            async with asyncio.timeout(1):
                await self.gone.wait()
        except TimeoutError:
            return False
        return self.killed


class Berths:
    """Makes berths and takes them apart."""

    def __init__(self, settings: NodeSettings, launcher: Launcher, hierarchies: Hierarchies, *, privileged: bool) -> None:
        self._settings = settings
        self._launcher = launcher
        self._hierarchies = hierarchies
        self._privileged = privileged
        self.disks: Disks | None = None
        """Where sandboxes can have disks of their own."""
        self._slots = list(range(settings.id_slots - 1, -1, -1))

    async def make(self, image: ImageSpec, disk_bytes: int | None, *, ahead: bool = False) -> Berth:
        """Raises HoldfastError or OSError and leaves nothing behind when it cannot. *ahead*: nobody waits for it yet."""
        if not self._slots:
            raise HoldfastError("no_capacity", "every id range of this node is in use")
        name = f".{secrets.token_hex(8)}"
        slot = self._slots.pop()
        ours, theirs = socket.socketpair()
        ready, ready_w = os.pipe2(os.O_CLOEXEC)
        log_r, log_w = os.pipe2(os.O_CLOEXEC)
        fds = [theirs.fileno(), ready_w, log_w]
        berth = Berth(
            image=image,
            slot=slot,
            ids=self.ids(slot),
            folder=os.path.join(self._settings.sandboxes_dir, name),
            group=Group(self._hierarchies, name[1:]),
            control=ours,
            ready=ready,
            agent_log=AgentLog(log_r),
        )
        try:
            try:
                blank = await asyncio.to_thread(self._make_folder, berth, disk_bytes or self._settings.default_disk)
                if blank is not None:
                    fds.append(blank)
                    berth.disk_file = identity(blank)
                await self._fork(berth, disk_bytes, ahead, fds)
            finally:
                for blank in fds[3:]:
                    os.close(blank)
                theirs.close()
                os.close(ready_w)
                os.close(log_w)
            berth.group.add(berth.pid)
        except BaseException:
            await self.dismantle(berth)
            raise
        return berth

    async def dismantle(self, berth: Berth) -> None:
        """Everything of *berth* goes; a step that fails is logged and does not keep the others."""
        try:
            berth.close_channels()
            if berth.pidfd >= 0:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(berth.pidfd, signal.SIGKILL)
                await self._until_gone(berth)
            berth.agent_log.close()
            if berth.link:
                link, berth.link = berth.link, None
                await asyncio.to_thread(link.stop)
            if berth.disk >= 0:
                disk, berth.disk = berth.disk, -1
                await asyncio.to_thread(discard, disk, berth.disk_file)
            await asyncio.to_thread(self._remove_files, berth)
        finally:
            if berth.pidfd < 0:
                self._slots.append(berth.slot)

    async def _until_gone(self, berth: Berth) -> None:
        try:
            async with asyncio.timeout(_DEATH_S):
                await berth.gone.wait()
        except TimeoutError:
            # Stuck in the kernel, on a dead disk for instance. Its ids are not given to another.
            log.error("%s: process %d does not die", berth.folder, berth.pid)

    def ids(self, slot: int) -> IdMap:
        if not self._privileged:
            return IdMap(0, 1)
        # Without id-mapped mounts the layers are stored with the ids of the first range, and all sandboxes share it.
        number = slot if self._launcher.id_mapping else 0
        return IdMap(self._settings.id_base + number * LOW_IDS, LOW_IDS, self._settings.high_base + number * HIGH_IDS)

    async def _fork(self, berth: Berth, disk_bytes: int | None, ahead: bool, passed: list[int]) -> None:
        image = berth.image
        await self._launcher.begin(
            {
                "ids": (berth.ids.base, berth.ids.count, berth.ids.high_base),
                "layers": image.layers,
                "trees": [(tree.source, tree.target) for tree in image.trees],
                "hidden": image.hidden,
                "folder": os.path.join(berth.folder, "files"),
                "shm_bytes": self._settings.shm_bytes,
                "tmpfs_bytes": None if len(passed) > 3 else disk_bytes,
                "warm_up": ahead,
                "idmap": self._launcher.id_mapping,
                "open_files": self._settings.open_files,
            },
            passed,
        )
        try:
            berth.group.create()
            fds = berth.group.delegate()
            shown = berth.group.show()
            fds["mount_fds"] = list(shown.values())
            await send_to_child(berth, {"mounts": list(shown)}, fds)
        finally:
            berth.pid, berth.pidfd, berth.disk = await self._launcher.finish()
            asyncio.get_running_loop().add_reader(berth.pidfd, self._ended, berth)

    def _make_folder(self, berth: Berth, disk_bytes: int | None) -> int | None:
        """Also a blank disk for it, where there are disks and it is to have one."""
        os.mkdir(berth.folder, 0o700)
        files = os.path.join(berth.folder, "files")
        os.mkdir(files, 0o755)
        made = [files, *rootfs.prepare_folder(files)]
        os.close(os.open(os.path.join(berth.folder, recovery.STATE), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        if self._privileged:
            for path in made:
                os.chown(path, berth.ids.base, berth.ids.base)
        if self.disks is None or disk_bytes is None or disk_bytes < LEAST_BYTES:
            return None
        return self.disks.blank(disk_bytes)

    def _ended(self, berth: Berth) -> None:
        """The berth's first process is dead, and with it everything in its namespaces."""
        asyncio.get_running_loop().remove_reader(berth.pidfd)
        result = os.waitid(os.P_PIDFD, berth.pidfd, os.WEXITED | os.WNOHANG)
        os.close(berth.pidfd)
        berth.pidfd = -1
        berth.killed = result is not None and result.si_code in (os.CLD_KILLED, os.CLD_DUMPED)
        status = "?" if result is None else result.si_status
        berth.death = f"signal {status}" if berth.killed else f"exit status {status}"
        berth.gone.set()
        if berth.on_end:
            berth.on_end()

    def _remove_files(self, berth: Berth) -> None:
        try:
            removal.remove_tree(berth.folder, self._settings.trash_dir)
        except OSError as error:
            log.error("%s: not all files could be removed: %s", berth.folder, error)
        try:
            berth.group.remove()
        except OSError as error:
            log.error("%s: its control groups could not be removed: %s", berth.folder, error)


async def send_to_child(berth: Berth, message: dict[str, object], fds: dict[str, list[int]]) -> None:
    """One of the two messages to the child, which no other process sees. *fds* are closed here; the child gets its own."""
    passed = [fd for opened in fds.values() for fd in opened]
    body = json.dumps(message | {"fds": [name for name, opened in fds.items() for _ in opened]}).encode()
    berth.control.setblocking(False)
    try:
        try:
            socket.send_fds(berth.control, [len(body).to_bytes(4, "big")], passed)
        finally:
            for fd in passed:
                os.close(fd)
        await asyncio.get_running_loop().sock_sendall(berth.control, body)
    except OSError as error:
        # The child reports on its own channel why it ended.
        log.info("%s: the process ended before it was configured: %s", berth.folder, error)
