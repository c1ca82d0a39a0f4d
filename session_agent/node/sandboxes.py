"""The sandboxes of this machine: made, watched, removed, and swept up after a crash.

Owns each sandbox's process, folder, cgroups and id range, and the order they come and go in. Does not own how a tree
or a namespace is made (zygote side) nor the RPC (server.py). One lock per sandbox keeps its life serial.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from holdfast_wire.errors import HoldfastError
from session_agent.node import cgroups, recovery, removal
from session_agent.node.agentlog import AgentLog
from session_agent.node.cgroups import Group, Hierarchies
from session_agent.node.events import Events
from session_agent.node.images.skeleton import hosts_file
from session_agent.node.images.spec import DEFAULT_PATH, ImageSpec
from session_agent.node.images.store import ImageStore
from session_agent.node.launcher import Launcher
from session_agent.node.request import CreateRequest
from session_agent.node.settings import NodeSettings

log = logging.getLogger(__name__)
_RANGE = 65536


@dataclass(slots=True, eq=False)
class Sandbox:
    """One sandbox and what has to be given back for it."""

    request: CreateRequest
    image: ImageSpec
    folder: str
    socket_path: str
    slot: int
    created_at: float
    group: Group | None = None
    pid: int = 0
    pidfd: int = -1
    agent_epoch: str = ""
    state: str = "creating"
    reason: str = ""
    fault: str = ""
    message: str = ""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    agent_log: AgentLog | None = None

    def to_map(self) -> dict[str, Any]:
        request = self.request
        return {
            "sandbox_id": request.sandbox_id,
            "incarnation": request.incarnation,
            "image": request.image,
            "endpoint": f"unix://{self.socket_path}",
            "owner": request.owner,
            "labels": request.labels,
            "cpu": request.limits.cpu,
            "memory": request.limits.memory_bytes,
            "created_at": self.created_at,
            "state": self.state,
            "reason": self.reason,
            "fault": self.fault,
            "message": self.message,
            "agent_epoch": self.agent_epoch,
        }


class Sandboxes:
    """All sandboxes of the node."""

    def __init__(self, settings: NodeSettings, images: ImageStore, *, privileged: bool) -> None:
        self._settings = settings
        self._images = images
        self._privileged = privileged
        self._hierarchies = Hierarchies()
        self._launcher = Launcher(settings, privileged=privileged)
        self._live: dict[str, Sandbox] = {}
        self._failed: dict[str, dict[str, Any]] = {}
        self._slots = list(range(settings.id_slots - 1, -1, -1))
        self._gate = asyncio.Semaphore(settings.concurrent_creates)
        self._burials: set[asyncio.Task[None]] = set()
        self._stopping = False
        self.events = Events(self.list)

    async def start(self) -> None:
        settings = self._settings
        for path in (settings.sandboxes_dir, settings.trash_dir):
            os.makedirs(path, mode=0o700, exist_ok=True)
        if settings.sockets_dir:
            os.makedirs(settings.sockets_dir, mode=0o700, exist_ok=True)
        self._hierarchies = cgroups.detect(settings.tag)
        for lost in await asyncio.to_thread(recovery.sweep, settings, self._hierarchies):
            self._remember_failure(lost)
        await self._launcher.start()

    @property
    def hierarchies(self) -> Hierarchies:
        return self._hierarchies

    def list(self) -> list[dict[str, Any]]:
        live = [box.to_map() for box in self._live.values() if box.state == "ready"]
        return live + list(self._failed.values())

    def uses_image(self, digest: str) -> bool:
        return any(box.image.digest == digest for box in self._live.values())

    def uses_layer(self, path: str) -> bool:
        return any(path in box.image.layers for box in self._live.values())

    def stats(self) -> dict[str, Any]:
        boxes = {name: box.group.usage() for name, box in self._live.items() if box.group}
        return {
            "sandboxes": len(self._live),
            "failed": len(self._failed),
            "cpu_s": sum(usage.get("cpu_s", 0) for usage in boxes.values()),
            "memory_bytes": sum(usage.get("memory_bytes", 0) for usage in boxes.values()),
            "limits": sorted(self._hierarchies.controllers),
            "usage": boxes,
        }

    async def create(self, request: CreateRequest) -> dict[str, Any]:
        """Returns when the agent serves. Raises HoldfastError and leaves nothing behind when it does not."""
        if self._stopping:
            raise HoldfastError("draining", "the node is stopping")
        if request.sandbox_id in self._live or request.sandbox_id in self._failed:
            raise HoldfastError("sandbox_exists", f"there is a sandbox {request.sandbox_id} already")
        image = self._images.resolve(request.image)
        if not self._slots:
            raise HoldfastError("no_capacity", "every id range of this node is in use")
        box = Sandbox(
            request=request,
            image=image,
            folder=os.path.join(self._settings.sandboxes_dir, request.sandbox_id),
            socket_path=self._settings.agent_socket(request.sandbox_id),
            slot=self._slots.pop(),
            created_at=time.time(),
        )
        self._live[request.sandbox_id] = box
        async with box.lock:
            try:
                async with self._gate:
                    await self._make(box)
            except BaseException as error:
                await self._dismantle(box)
                if isinstance(error, OSError):
                    raise HoldfastError("runtime_unavailable", f"cannot make a sandbox: {error}") from error
                raise
        return {"endpoint": f"unix://{box.socket_path}", "agent_epoch": box.agent_epoch, "created_at": box.created_at}

    async def delete(self, sandbox_id: str) -> bool:
        """True when there was one. Returns when nothing of it is left."""
        if self._failed.pop(sandbox_id, None) is not None:
            return True
        box = self._live.get(sandbox_id)
        if box is None:
            return False
        async with box.lock:
            if self._live.get(sandbox_id) is not box:
                return self._failed.pop(sandbox_id, None) is not None
            box.state, box.reason = "deleting", "deleted"
            await self._dismantle(box)
        self._publish("gone", box, "deleted", "caller", "the sandbox was deleted")
        return True

    async def stop(self) -> None:
        """Delete every sandbox, then end the zygote."""
        self._stopping = True
        await asyncio.gather(*(self.delete(name) for name in list(self._live)), return_exceptions=True)
        await asyncio.gather(*self._burials, return_exceptions=True)
        self._launcher.stop()
        for base in (*self._hierarchies.v1.values(), *filter(None, [self._hierarchies.v2])):
            with contextlib.suppress(OSError):
                cgroups.remove(base)
        if self._settings.sockets_dir:
            shutil.rmtree(self._settings.sockets_dir, ignore_errors=True)
        self.events.close()

    async def _make(self, box: Sandbox) -> None:
        settings = self._settings
        base = settings.id_base + box.slot * _RANGE if self._privileged else 0
        files = os.path.join(box.folder, "files")
        self._make_folder(box, files, base)
        listener, ours, theirs, ready, ready_w, log_r, log_w = _channels(box.socket_path)
        box.agent_log = AgentLog(box.request.sandbox_id, log_r)
        try:
            begun = False
            try:
                await self._launcher.begin(
                    {
                        "id_base": base,
                        "id_count": _RANGE if self._privileged else 1,
                        "layers": box.image.layers,
                        "trees": [(tree.source, tree.target) for tree in box.image.trees],
                        "hidden": box.image.hidden,
                        "folder": files,
                        "shm_bytes": min(settings.shm_bytes, box.request.limits.memory_bytes // 2),
                        "disk_bytes": box.request.disk,
                        "idmap": self._privileged,
                        "hostname": box.request.sandbox_id,
                        "open_files": settings.open_files,
                    },
                    [listener.fileno(), theirs.fileno(), ready_w, log_w],
                )
                begun = True
                box.group = Group(self._hierarchies, box.request.sandbox_id)
                box.group.create(box.request.limits)
            finally:
                if begun:
                    box.pid, box.pidfd = await self._launcher.finish()
                    asyncio.get_running_loop().add_reader(box.pidfd, self._ended, box)
                for fd in (ready_w, log_w):
                    os.close(fd)
                listener.close()
                theirs.close()
            self._save(box)
            box.group.add(box.pid)
            await self._configure(box, ours, base)
            box.agent_epoch = await self._until_ready(box, ready)
        finally:
            ours.close()
            os.close(ready)
        box.state = "ready"
        self._publish("ready", box, "", "", "")

    def _make_folder(self, box: Sandbox, files: str, base: int) -> None:
        os.mkdir(box.folder, 0o700)
        etc = os.path.join(files, "upper", "etc")
        made = [files, os.path.join(files, "upper"), os.path.join(files, "work"), etc]
        for path in made:
            os.mkdir(path, 0o755)
        for name, text in (
            ("hosts", hosts_file(box.request.sandbox_id)),
            ("hostname", box.request.sandbox_id + "\n"),
        ):
            path = os.path.join(etc, name)
            with open(path, "w", encoding="ascii") as file:
                file.write(text)
            made.append(path)
        if self._privileged:
            for path in made:
                os.chown(path, base, base)

    def _save(self, box: Sandbox) -> None:
        state = box.to_map() | {
            "pid": box.pid,
            "started": recovery.start_time(box.pid),
            "cgroups": box.group.paths if box.group else [],
        }
        with open(os.path.join(box.folder, recovery.STATE), "w", encoding="utf-8") as file:
            json.dump(state, file)

    async def _configure(self, box: Sandbox, channel: socket.socket, base: int) -> None:
        """The child's configuration goes to it directly, so no other sandbox's memory ever holds it."""
        request = box.request
        env = {"PATH": DEFAULT_PATH, "HOME": "/root", "LANG": "C.UTF-8", "HOSTNAME": request.sandbox_id}
        fds = box.group.delegate(base) if box.group else {}
        config = {
            "sandbox_id": request.sandbox_id,
            "incarnation": request.incarnation,
            "token": request.token,
            "env": env | box.image.env | request.env,
            "workdir": box.image.workdir or "/workspace",
            "user": box.image.user,
            "labels": request.labels,
            "cgroup_version": 2 if fds.get("cgroup_fd") else (1 if self._hierarchies.v1 else 0),
            "fds": [name for name, opened in fds.items() for _ in opened],
        }
        body = json.dumps(config).encode()
        channel.setblocking(False)
        handed = [fd for opened in fds.values() for fd in opened]
        try:
            try:
                socket.send_fds(channel, [len(body).to_bytes(4, "big")], handed)
            finally:
                for fd in handed:
                    os.close(fd)
            await asyncio.get_running_loop().sock_sendall(channel, body)
        except OSError as error:
            log.info("sandbox %s ended before it was configured: %s", request.sandbox_id, error)

    async def _until_ready(self, box: Sandbox, ready: int) -> str:
        loop = asyncio.get_running_loop()
        os.set_blocking(ready, False)
        line: asyncio.Future[bytes] = loop.create_future()
        received = bytearray()

        def readable() -> None:
            part = os.read(ready, 4096)
            received.extend(part)
            if (not part or b"\n" in received or len(received) > 8192) and not line.done():
                line.set_result(bytes(received))

        loop.add_reader(ready, readable)
        try:
            async with asyncio.timeout(self._settings.ready_timeout_s):
                raw = await line
        except TimeoutError:
            raise HoldfastError(
                "create_timeout", f"the agent did not serve within {self._settings.ready_timeout_s:g} s"
            ) from None
        finally:
            loop.remove_reader(ready)
        try:
            answer = json.loads(raw) if raw else {}
        except ValueError:
            answer = {}
        epoch = answer.get("agent_epoch") if isinstance(answer, dict) else None
        if isinstance(epoch, str) and epoch:
            return epoch[:128]
        said = answer.get("error") if isinstance(answer, dict) else None
        tail = box.agent_log.tail() if box.agent_log else ""
        raise HoldfastError("runtime_unavailable", f"the sandbox did not start: {said or tail or 'no reason given'}")

    def _ended(self, box: Sandbox) -> None:
        """The sandbox's first process is dead, and with it everything in the sandbox."""
        asyncio.get_running_loop().remove_reader(box.pidfd)
        result = os.waitid(os.P_PIDFD, box.pidfd, os.WEXITED | os.WNOHANG)
        os.close(box.pidfd)
        box.pidfd = -1
        box.gone.set()
        if box.state != "ready" or box.lock.locked():
            return
        killed = result is not None and result.si_code in (os.CLD_KILLED, os.CLD_DUMPED)
        if killed and box.group and box.group.out_of_memory():
            box.reason, box.fault, box.message = "oom", "workload", "the agent was killed for want of memory"
        else:
            status = "?" if result is None else result.si_status
            how = f"signal {status}" if killed else f"exit status {status}"
            box.reason, box.fault, box.message = "exited", "infrastructure", f"the agent ended with {how}"
        box.state = "failed"
        burial = asyncio.get_running_loop().create_task(self._bury(box), name=f"bury {box.request.sandbox_id}")
        self._burials.add(burial)
        burial.add_done_callback(self._burials.discard)

    async def _bury(self, box: Sandbox) -> None:
        async with box.lock:
            if self._live.get(box.request.sandbox_id) is not box:
                return
            # Known as failed before it is unknown as live: no moment without an answer.
            self._remember_failure(box.to_map())
            await self._dismantle(box)
        self._publish("failed", box, box.reason, box.fault, box.message)

    async def _dismantle(self, box: Sandbox) -> None:
        """Everything of *box* goes; a step that fails is logged and does not keep the others."""
        try:
            if box.pidfd >= 0:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(box.pidfd, signal.SIGKILL)
                await box.gone.wait()
            if box.agent_log:
                box.agent_log.close()
            await asyncio.to_thread(self._remove_files, box)
        finally:
            self._live.pop(box.request.sandbox_id, None)
            self._slots.append(box.slot)

    def _remove_files(self, box: Sandbox) -> None:
        steps = [lambda: removal.remove_tree(box.folder, self._settings.trash_dir)]
        if box.group:
            steps.append(box.group.remove)
        if self._settings.sockets_dir:
            steps.append(lambda: os.path.exists(box.socket_path) and os.unlink(box.socket_path))
        for step in steps:
            try:
                step()
            except OSError as error:
                log.error("sandbox %s: not all could be removed: %s", box.request.sandbox_id, error)

    def _remember_failure(self, record: dict[str, Any]) -> None:
        self._failed[record["sandbox_id"]] = record
        while len(self._failed) > self._settings.remembered_failures:
            del self._failed[next(iter(self._failed))]

    def _publish(self, kind: str, box: Sandbox, reason: str, fault: str, message: str) -> None:
        event = box.to_map() | {"type": kind, "reason": reason, "fault": fault, "message": message}
        self.events.publish(event)


def _channels(socket_path: str) -> tuple[socket.socket, socket.socket, socket.socket, int, int, int, int]:
    """Listening socket, configuration channel (ours, theirs), readiness pipe and log pipe (read, write ends)."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(socket_path)
    listener.listen(128)
    ours, theirs = socket.socketpair()
    ready, ready_w = os.pipe2(os.O_CLOEXEC)
    log_r, log_w = os.pipe2(os.O_CLOEXEC)
    return listener, ours, theirs, ready, ready_w, log_r, log_w
