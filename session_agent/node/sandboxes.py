"""The sandboxes of this machine: creating, watching and deleting them.

Owns each sandbox from its request to its end, and the record that remains afterwards. Does not own its processes and files (containers.py)
nor the RPC (server.py). One lock per sandbox makes its operations serial.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Coroutine
from dataclasses import replace
from typing import Any

from holdfast_wire.errors import HoldfastError

from session_agent.agent.process.ulimits import raise_ulimits
from session_agent.node import port_sockets, recovery, socket_memory
from session_agent.node.containers import Container, ContainerFactory, send_to_child
from session_agent.node.disk_space import DiskSpace, Room
from session_agent.node.events import Events
from session_agent.node.images.spec import DEFAULT_PATH
from session_agent.node.images.store import ImageStore
from session_agent.node.kernel import cgroups, hierarchies, network
from session_agent.node.kernel.disks import Disk, Disks, missing_requirement
from session_agent.node.kernel.namespaces import IdMap, shared_ids
from session_agent.node.readiness import prepared, wait_ready
from session_agent.node.request import CreateRequest
from session_agent.node.sandbox import Sandbox
from session_agent.node.settings import NodeSettings
from session_agent.node.snapshots import Snapshots
from session_agent.node.spares import Spares
from session_agent.node.suspended import SuspendedFiles
from session_agent.node.zygote.launcher import Launcher

_DISCARDS = 32
"""Most sandboxes whose files are discarded while their ids may be used again; further ones keep their ids meanwhile."""
_ID_S = 1.0
"""How long a create waits for the end of the sandbox that had its id."""
_KILLED_FROM_OUTSIDE = f"signal {signal.SIGKILL:d}"
_ENDED_BY_ITSELF = "exit status 0"
"""An agent on this node ends like this only with the command that its sandbox was created for (``ends_sandbox``)."""

log = logging.getLogger(__name__)


class Sandboxes:
    """All sandboxes of the node."""

    def __init__(self, settings: NodeSettings, images: ImageStore, *, privileged: bool) -> None:
        self._settings = settings
        self._images = images
        self._privileged = privileged
        self._hierarchies = hierarchies.detect(settings.tag)
        self._launcher = Launcher(settings, self._hierarchies, privileged=privileged)
        self._containers = ContainerFactory(settings, self._launcher, self._hierarchies, privileged=privileged)
        self.spares = Spares(self._containers, settings.spares)
        self._space = self._containers.space = DiskSpace(settings.sandboxes_dir, self._end_without_room)
        self._live: dict[str, Sandbox] = {}
        self._suspended = SuspendedFiles(settings.suspended_dir)
        self._snapshots = Snapshots(images, self._containers, self._sandbox_uses_layer)
        self._failed: dict[str, dict[str, Any]] = {}
        self._gate = asyncio.Semaphore(settings.concurrent_creates)
        self._leaving: set[Sandbox] = set()
        """Those whose processes are gone and whose id is free, but whose files are still being discarded."""
        self._discards = asyncio.Semaphore(_DISCARDS)
        self._cleanups: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._run_dir_fd: int | None = None
        """The lock of the folder in memory, held until this node ends."""
        self._looking: asyncio.Task[None] | None = None
        self.events = Events(self.list)

    async def start(self) -> None:
        """Remove the remains of an earlier node, then start the zygote. Raises HoldfastError if that is not possible."""
        settings = self._settings
        recovery.make_directories(settings)
        self._run_dir_fd = recovery.claim_run_dir(settings)
        await asyncio.to_thread(recovery.sweep, settings, self._hierarchies)
        await asyncio.to_thread(recovery.sweep_abandoned, settings)
        if settings.default_disk is not None and self._privileged:
            problem = missing_requirement(settings.sandboxes_dir)
            if problem:
                log.warning("the disk usage of sandboxes is not limited: %s", problem)
            else:
                self._containers.disks = Disks(settings.sandboxes_dir)
        self.events.began_at = time.time()
        await self._launcher.start()
        self._space.start()
        self._looking = asyncio.get_running_loop().create_task(self._look_at_sockets(), name="look at the memory of sockets")
        self.spares.start()

    @property
    def stored_ids(self) -> IdMap | None:
        """The ids to which the image store has to change the owners of files, because the kernel cannot map ids; None if it can."""
        return self._containers.ids(0) if self._privileged and not self._launcher.id_mapping and not shared_ids() else None

    def get(self, sandbox_id: str) -> list[dict[str, Any]]:
        """The entry of ``list`` for this id."""
        box = self._live.get(sandbox_id)
        if box is not None:
            return [box.to_map()] if box.state == "ready" else []
        return [self._failed[sandbox_id]] if sandbox_id in self._failed else []

    def list(self) -> list[dict[str, Any]]:
        live = [box.to_map() for box in self._live.values() if box.state == "ready"]
        return live + list(self._failed.values())

    def uses_image(self, digest: str) -> bool:
        return any(box.image.digest == digest for box in (*self._live.values(), *self._leaving))

    def uses_layer(self, path: str) -> bool:
        return self._snapshots.uses_layer(path) or self._sandbox_uses_layer(path)

    def _sandbox_uses_layer(self, path: str) -> bool:
        return any(path in box.image.layers for box in (*self._live.values(), *self._leaving))

    def stats(self) -> dict[str, Any]:
        boxes = {name: box.container.cgroup.usage() for name, box in self._live.items() if box.container}
        requested = [box.request.limits for box in self._live.values() if box.paused != "disk"]
        return {
            "sandboxes": len(self._live),
            "failed": len(self._failed),
            **self.spares.stats(),
            "cpu_s": sum(usage.get("cpu_s", 0) for usage in boxes.values()),
            "memory_bytes": sum(usage.get("memory_bytes", 0) for usage in boxes.values()),
            "cpu_requested": sum(limits.cpu for limits in requested),
            "memory_requested": sum(limits.memory_bytes for limits in requested),
            "limits": sorted(self._hierarchies.controllers),
            "usage": boxes,
            **self.room().to_map(),
        }

    def room(self) -> Room:
        return self._space.measure()

    async def create(self, request: CreateRequest) -> dict[str, Any]:
        """Create a sandbox; returns when its agent listens. Raises HoldfastError and then leaves nothing behind."""
        if self._stopping:
            raise HoldfastError("draining", "the node is stopping")
        before = self._live.get(request.sandbox_id)
        if request.sandbox_id in self._failed or not (before is None or self._is_ending(before, request.incarnation)):
            raise HoldfastError("sandbox_exists", "the sandbox already exists")
        lasting = not request.branch_point
        if not lasting:
            image, env = self._snapshots.files(request.branch_point, request.owner)
            request = replace(request, env=env | request.env, branch_point="")
        else:
            image = self._images.resolve(request.image, request.owner)
        self._space.check(request.disk)
        if request.entrypoint is True and not image.entrypoint:
            message = f"image {request.image} has neither ENTRYPOINT nor CMD"
            raise HoldfastError(
                "invalid_argument", message, hint="give the command to start as a list, such as entrypoint=['/bin/server', '--port', '80']"
            )
        box = Sandbox(
            request=request,
            image=image,
            socket_path=self._settings.agent_socket(request.sandbox_id),
            created_at=time.time(),
            lasting_image=lasting,
            before=before,
        )
        self._live[request.sandbox_id] = box
        async with box.lock:
            try:
                async with self._gate:
                    await self._make(box)
            except BaseException as error:
                await self._remove(box)
                if isinstance(error, OSError):
                    raise HoldfastError("runtime_unavailable", f"cannot create a sandbox: {error}") from error
                raise
        return {"endpoint": f"unix://{box.socket_path}", "created_at": box.created_at}

    async def delete(self, sandbox_id: str, incarnation: str | None = None) -> bool:
        """Delete a sandbox; returns when nothing of it is left. True if it existed (with *incarnation*: in this incarnation).

        Its id is free as soon as its processes are gone, while its files are still being discarded. A create with the same id may come
        earlier: it does everything that needs no id, and then waits.
        """
        box = self._live.get(sandbox_id)
        if box is not None and incarnation not in (None, box.request.incarnation):
            return False
        if box is None:
            return self._forget(sandbox_id, incarnation)
        async with box.lock:
            if self._live.get(sandbox_id) is not box:
                return self._forget(sandbox_id, incarnation)
            box.state = "deleting"
            try:
                discarded = await self._free(box)
                box.reason, box.fault, box.message = "deleted", "caller", "the sandbox was deleted"
                self._publish("gone", box)  # before another incarnation can be reported
            finally:
                box.freed.set()
        await discarded
        return True

    async def snapshot(self, sandbox_id: str, incarnation: str | None, name: str | None) -> dict[str, Any]:
        """Store what the sandbox has written, as it is at one instant, as an image. Its processes are stopped for the copy.

        Raises HoldfastError(sandbox_not_found, unsupported) and what ``ImageStore.commit`` raises.
        """
        async with self._running(sandbox_id, incarnation) as (box, container):
            return await self._snapshots.store(box, container, name)

    async def hold(self, sandbox_id: str, incarnation: str | None) -> str:
        """Store what ``snapshot`` does for the creates of branches, which name it by the result, until ``release``."""
        async with self._running(sandbox_id, incarnation) as (box, container):
            return await self._snapshots.hold(box, container)

    async def release(self, branch_point: str) -> None:
        """Remove what ``hold`` stored; its layer goes with the last sandbox that uses it."""
        await self._snapshots.release(branch_point)

    async def pause(self, sandbox_id: str, incarnation: str | None) -> None:
        """Stop all processes of the sandbox until it is resumed. Raises HoldfastError(sandbox_not_found, unsupported)."""
        async with self._running(sandbox_id, incarnation) as (box, container):
            if not box.paused:
                await self._containers.freeze(container)
                box.paused = "memory"

    async def suspend(self, sandbox_id: str, incarnation: str | None, shells: str = "") -> None:
        """Keep the sandbox's files and end its processes until it is resumed, perhaps by a later node.

        *shells* is opaque text that ``resume`` returns. Raises HoldfastError(sandbox_not_found, unsupported) and OSError; the sandbox then
        continues as before.
        """
        async with self._locked(sandbox_id, incarnation) as box:
            container = box.container
            if container is None:
                return  # it has been done
            async with self._snapshots.kept(box, container):
                self._suspended.save(box.request, box.created_at, shells)
                box.shells, box.paused, container.on_end = shells, "disk", None
                await self._release(box)
            box.image, box.lasting_image = self._images.held(sandbox_id), False
            self._snapshots.close_unused()

    async def resume(self, sandbox_id: str, incarnation: str | None) -> str:
        """Continue a paused sandbox, and return what ``suspend`` was given. Does nothing for one that runs.

        As long as ``resumed`` does not follow, the sandbox is listed as paused, and another call returns the same: a gateway that ends
        before it has restored the shells loses nothing.

        Raises HoldfastError(sandbox_not_found) and what ``create`` raises; a sandbox on disk then stays there.
        """
        box = self._found(sandbox_id, incarnation)
        async with box.lock:
            if box.paused == "memory" and box.container:
                self._containers.thaw(box.container)
            elif box.paused == "disk" and self._live.get(sandbox_id) is box:
                await self._restore(box)
            box.paused = ""
            return box.shells

    def resumed(self, sandbox_id: str, incarnation: str | None) -> None:
        """The shells that ``resume`` has returned are restored. Raises HoldfastError(sandbox_not_found)."""
        box = self._found(sandbox_id, incarnation)
        if not box.paused:
            box.shells = ""

    async def connect(self, sandbox_id: str, incarnation: str | None, port: int) -> socket.socket:
        """A connection to a port on a loopback address of the sandbox.

        Raises HoldfastError(sandbox_not_found, sandbox_paused) and what ``port_sockets.connect`` raises.
        """
        box = self._found(sandbox_id, incarnation)
        if box.paused or box.container is None:
            raise HoldfastError("sandbox_paused", "the sandbox is paused")
        return await port_sockets.connect(box.container, self._launcher, port)

    async def _restore(self, box: Sandbox) -> None:
        self._space.check(box.request.disk)
        try:
            async with self._gate:
                await self._make(box)
        except BaseException:
            await self._release(box)
            self._suspended.put_back(box.request.sandbox_id)
            raise
        self._suspended.remove(box.request.sandbox_id)
        await self._images.release_held([box.request.sandbox_id])

    async def load_suspended(self) -> None:
        """Called once after the start: take over the sandboxes that an earlier node left on disk."""
        for request, created_at, shells in self._suspended.read_all():
            with contextlib.suppress(HoldfastError):
                image = self._images.held(request.sandbox_id)
                path = self._settings.agent_socket(request.sandbox_id)
                box = Sandbox(request, image, path, created_at, lasting_image=False, state="ready", paused="disk", shells=shells)
                self._live[request.sandbox_id] = box
        await self._images.release_held(but=[name for name, box in self._live.items() if box.paused == "disk"])

    def _found(self, sandbox_id: str, incarnation: str | None) -> Sandbox:
        box = self._live.get(sandbox_id)
        if box is None or box.state != "ready" or incarnation not in (None, box.request.incarnation):
            raise HoldfastError("sandbox_not_found", "there is no such running sandbox")
        return box

    @contextlib.asynccontextmanager
    async def _running(self, sandbox_id: str, incarnation: str | None) -> AsyncIterator[tuple[Sandbox, Container]]:
        """The sandbox and its container, which are not removed within the block.

        Raises HoldfastError(sandbox_not_found, sandbox_paused).
        """
        async with self._locked(sandbox_id, incarnation) as box:
            if box.container is None:
                raise HoldfastError("sandbox_paused", "the sandbox is paused on disk")
            yield box, box.container

    @contextlib.asynccontextmanager
    async def _locked(self, sandbox_id: str, incarnation: str | None) -> AsyncIterator[Sandbox]:
        """The sandbox, which nothing else changes within the block. Raises HoldfastError(sandbox_not_found)."""
        box = self._found(sandbox_id, incarnation)
        async with box.lock:
            self._found(sandbox_id, incarnation)
            yield box

    def _is_ending(self, box: Sandbox, next_incarnation: str) -> bool:
        """Whether another incarnation may be prepared while *box* is deleted."""
        return box.state == "deleting" and box in self._leaving and box.request.incarnation != next_incarnation

    def _forget(self, sandbox_id: str, incarnation: str | None) -> bool:
        failed = self._failed.get(sandbox_id)
        if failed is None or incarnation not in (None, failed.get("incarnation")):
            return False
        del self._failed[sandbox_id]
        return True

    async def stop(self) -> None:
        """Delete every sandbox, then end the zygote."""
        self._stopping = True
        await self.spares.stop()
        running = [name for name, box in self._live.items() if box.paused != "disk"]
        await asyncio.gather(*(self.delete(name) for name in running), return_exceptions=True)
        for box in list(self._leaving):
            await box.freed.wait()
        await asyncio.gather(*self._cleanups, return_exceptions=True)
        await self._space.stop()
        if self._looking:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        self._launcher.stop()
        for base in self._hierarchies.bases:
            with contextlib.suppress(OSError):
                hierarchies.remove(base)
        if self._run_dir_fd is not None:
            with contextlib.suppress(OSError):
                recovery.remove_run_dir(self._settings)
            os.close(self._run_dir_fd)
            self._run_dir_fd = None
        self.events.close()

    async def _make(self, box: Sandbox) -> None:
        takes_spare = box.request.disk is None and box.lasting_image
        spare = self.spares.take(box.image) if takes_spare else None
        try:
            if spare is None or not await self._use_spare(box, spare):
                box.container = await self._containers.create(box.image, box.request.disk)
                await self._settle(box, box.container)
        finally:
            if takes_spare:
                self.spares.done()
        assert box.container
        box.container.close_channels()
        box.state = "ready"
        box.container.on_end = lambda: self._ended(box)
        self._publish("ready", box)

    async def _use_spare(self, box: Sandbox, spare: Container) -> bool:
        """Use a spare for the request. False if the spare was killed while it waited: the request then gets another container."""
        box.container = spare
        try:
            await self._settle(box, spare)
        except HoldfastError:
            if not await spare.was_killed():
                raise
            log.warning("a spare had ended before it was used; creating another")
            await self._release(box)
            return False
        return True

    async def _settle(self, box: Sandbox, container: Container) -> None:
        await self._wait_for_id(box)
        await self._name(box, container)
        await wait_ready(container, self._settings.ready_timeout_s)

    async def _wait_for_id(self, box: Sandbox) -> None:
        """Wait for the end of the sandbox that had the id; its files may still exist then. Raises HoldfastError(sandbox_exists)."""
        if box.before is not None:
            try:
                async with asyncio.timeout(_ID_S):
                    await box.before.freed.wait()
            except TimeoutError:
                raise HoldfastError("sandbox_exists", "the sandbox that had this id has not ended yet") from None
            box.before = None

    async def _name(self, box: Sandbox, container: Container) -> None:
        """Turn the container into this sandbox: set its socket and limits, and send the configuration that starts the agent."""
        request = box.request
        container.agent_log.name = request.sandbox_id
        container.cgroup.limit(request.limits)
        container.cgroup.raise_priority(container.pid)
        raise_ulimits(container.pid, request.ulimits)
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(box.socket_path)
            listener.listen(128)
            fds = {"listen_fds": [os.dup(listener.fileno())]}
        finally:
            listener.close()
        env = {"PATH": DEFAULT_PATH, "HOSTNAME": request.host_name}
        config = {
            "sandbox_id": request.host_name,
            "incarnation": request.incarnation,
            "token": request.token,
            "env": env | box.image.env | request.env,
            "workdir": box.image.workdir,
            "user": box.image.user,
            "entrypoint": box.image.entrypoint if request.entrypoint is True else request.entrypoint or (),
            "ulimits": request.ulimits,
            "labels": request.labels,
            "memory_bytes": request.limits.memory_bytes,
        }
        if "pids" not in self._hierarchies.controllers:
            config["pids"] = request.limits.pids + cgroups.RESERVE_PIDS
        if request.shm_bytes is not None:
            config["shm_bytes"] = request.shm_bytes
        # A child that ended needs no network: `wait_ready` reports why it ended.
        if request.network and await prepared(container, self._settings.ready_timeout_s):
            try:
                container.network_helper = await network.start(container.pid)
                container.cgroup.add(container.network_helper.process.pid)  # its memory and CPU time are the sandbox's
            except BaseException:
                for fd in (fd for opened in fds.values() for fd in opened):
                    os.close(fd)
                raise
            config["network"] = {"out_of_reach": network.out_of_reach(), "resolver": network.RESOLVER}
        if box.paused == "disk":
            self._suspended.set_aside(request.sandbox_id)  # at the last moment before it runs: a node that is killed earlier loses nothing
        await send_to_child(container, config, fds)

    def _ended(self, box: Sandbox) -> None:
        """Handle a sandbox whose first process has ended by itself."""
        if box.state != "ready" or box.container is None:
            return
        if box.container.end_cause is not None:
            box.reason, box.fault, box.message = box.container.end_cause
        elif box.container.killed and box.container.cgroup.out_of_memory():
            box.reason, box.fault, box.message = "oom", "workload", "the kernel killed the agent because memory ran out"
        elif box.container.death == _ENDED_BY_ITSELF:
            box.reason, box.fault, box.message = "finished", "workload", "the command that the sandbox was created for has ended"
        else:
            # SIGKILL to the first process can only come from outside of its pid namespace. Code in the sandbox may cause any other end.
            box.reason, box.fault = "exited", "infrastructure" if box.container.death == _KILLED_FROM_OUTSIDE else "workload"
            box.message = f"the agent ended with {box.container.death}"
        box.state = "failed"
        # Recorded as failed before it is removed from the live ones, so that `get` always has an answer.
        self._remember_failure(box.to_map())
        self._own(self._clean_up(box), f"clean up {box.request.sandbox_id}")

    def _end_without_room(self, disk: Disk) -> None:
        """End the sandbox of *disk*: the machine cannot store what it has written."""
        for box in self._live.values():
            if box.container is not None and box.container.disk is disk:
                message = "the machine's data folder is full, and it could not store what this sandbox had written"
                box.container.kill("disk-full", "infrastructure", message)

    async def _look_at_sockets(self) -> None:
        """End sandboxes whose sockets hold more of the kernel's memory than their share, where no control group limits it."""
        memory = socket_memory.MachineMemory()
        while True:
            await asyncio.sleep(socket_memory.LOOK_S)
            if not memory.has_shrunk():
                continue
            for box in list(self._live.values()):
                if box.container is None or box.state != "ready":
                    continue
                held = socket_memory.held(box.container.pid, box.container.cgroup)
                if held > socket_memory.allowed(box.request.limits.memory_bytes):
                    log.warning("%s: its sockets hold %d MiB of the kernel's memory", box.request.sandbox_id, held >> 20)
                    box.container.kill("oom", "workload", f"its sockets held {held >> 20} MiB of unread data")

    async def _clean_up(self, box: Sandbox) -> None:
        async with box.lock:
            if self._live.get(box.request.sandbox_id) is not box:
                return
            await self._remove(box)
        self._publish("failed", box)

    async def _remove(self, box: Sandbox) -> None:
        await (await self._free(box))

    async def _free(self, box: Sandbox) -> asyncio.Future[None]:
        """End the sandbox and free its id. The result is done when its files are gone too, which does not depend on the caller."""
        sandbox_id = box.request.sandbox_id
        await self._discards.acquire()
        self._leaving.add(box)
        try:
            await self._end(box)
            if box.paused == "disk":
                self._suspended.remove(sandbox_id)
                await self._images.release_held([sandbox_id])
        finally:
            if self._live.get(sandbox_id) is box:  # otherwise another one waits for the id
                del self._live[sandbox_id]
                if box.before is not None and not box.before.freed.is_set():
                    self._live[sandbox_id] = box.before
            discarding = self._own(self._discard(box), f"discard the files of {sandbox_id}")
        return asyncio.shield(discarding)

    async def _discard(self, box: Sandbox) -> None:
        try:
            if box.container:
                await self._containers.destroy(box.container)
        finally:
            box.freed.set()
            self._leaving.discard(box)
            self._discards.release()
        self._snapshots.close_unused()
        await self._images.release(box.image)

    def _own(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run *work* as a task for whose end ``stop`` waits."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._cleanups.add(task)
        task.add_done_callback(self._cleanups.discard)
        return task

    async def _end(self, box: Sandbox) -> None:
        if box.container:
            await self._containers.end(box.container)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(box.socket_path)

    async def _release(self, box: Sandbox) -> None:
        """Release the container of a sandbox that keeps its id."""
        await self._end(box)
        container, box.container = box.container, None
        if container:
            await self._containers.destroy(container)

    def _remember_failure(self, record: dict[str, Any]) -> None:
        self._failed[record["sandbox_id"]] = record
        while len(self._failed) > self._settings.remembered_failures:
            del self._failed[next(iter(self._failed))]

    def _publish(self, kind: str, box: Sandbox) -> None:
        self.events.publish(box.to_map() | {"type": kind})
