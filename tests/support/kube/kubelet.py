"""A kubelet and a scheduler for the fake API server: pods become Ready and run a real session agent each.

Owns the life of a pod as the API server shows it: scheduled, image pulled, container started, ended, removed. Every pod gets its own
address in 127.0.0.0/8, so that all agents listen on the same agreed port. The image's name selects a failure (``PULLS``).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Protocol

from holdfast_wire.bundle import AGENT_PORT

from .objects import Entry, Object, stamp
from .server import FakeApi

REPOSITORY = Path(__file__).resolve().parents[3]
PULLS = {
    "unknown-image": (
        "ErrImagePull",
        "rpc error: code = NotFound desc = docker.io/library/unknown-image:latest: not found",
    ),
    "bad image": ("InvalidImageName", "couldn't parse image reference"),
    "slow-registry": ("ErrImagePull", "failed to pull: dial tcp 10.0.0.1:443: i/o timeout"),
    "needs-secret": ("CreateContainerConfigError", 'secret "missing" not found'),
}
_addresses = itertools.count((os.getpid() % 4000 << 12) + 2)
"""Every process of the tests uses its own addresses."""
_PROBE_S = 0.02
NO_LOADER = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: unable to start "
    'container process: error during container init: exec: "/.holdfast/lib/ld.so": stat /.holdfast/lib/ld.so: no such file or directory'
)
"""As containerd 2.1: an image volume contains the whole image although a part was requested, so the requested paths are missing."""
NOT_ID_MAPPED = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: unable to start "
    "container process: error during container init: failed to fulfil mount request: failed to set MOUNT_ATTR_IDMAP on "
    "/run/containerd/io.containerd.grpc.v1.cri/image-volumes/df59/2c91: invalid argument (maybe the filesystem used doesn't support "
    "idmap mounts on this kernel?)"
)
"""As containerd before 2.1.7 and 2.2.2: an image volume cannot be mounted in a user namespace (containerd/containerd issue 12812)."""


class Agent(Protocol):
    """The program that runs in a pod."""

    async def start(self) -> None: ...
    async def ended(self) -> int: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...


class ProcessAgent:
    """``python -m session_agent`` with the container's environment."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        await self.spawn(sys.executable, "-m", "session_agent")

    async def spawn(self, *argv: str) -> None:
        keep = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        path = os.pathsep.join(str(part) for part in (REPOSITORY, REPOSITORY / "schemas"))
        self._process = await asyncio.create_subprocess_exec(
            *argv, env={**keep, "PYTHONPATH": path, **self._environment}, start_new_session=True
        )

    async def ended(self) -> int:
        assert self._process is not None
        return await self._process.wait()

    def stop(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)


class Kubelet:
    """One node that takes every pod which fits into ``cores``."""

    def __init__(self, api: FakeApi, cores: float = 64.0, agent: Any = ProcessAgent) -> None:
        self.api = api
        self.cores = cores
        self.agents: dict[str, Any] = {}
        """By pod uid."""
        self.frozen = False
        """The node does not answer: it does not act on changes of its pods."""
        self.agent = agent
        self.no_volumes = ""
        """Why containers with an image volume do not start: ``NO_LOADER`` or, of pods with a user namespace, ``NOT_ID_MAPPED``."""
        self.no_users = ""
        """Why the node creates no user namespaces; reported in repeated events, as kubelets do."""
        self._lives: dict[str, asyncio.Task[None]] = {}

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator[Kubelet]:
        self.api.pods.on_write.append(self._on_write)
        try:
            yield self
        finally:
            self.api.pods.on_write.remove(self._on_write)
            for life in list(self._lives.values()):
                life.cancel()
            await asyncio.gather(*self._lives.values(), return_exceptions=True)

    def _warn(self, uid: str, message: str) -> None:
        name = f"event-{len(self.api.stores['events'].names())}"
        body = {"reason": "FailedCreatePodSandBox", "message": message, "type": "Warning", "involvedObject": {"uid": uid}}
        self.api.stores["events"].create({"metadata": {"name": name}, "lastTimestamp": stamp(), **body})

    def end(self, name: str, *, reason: str = "Error", code: int = 137, message: str = "", pod: dict[str, Any] | None = None) -> None:
        """A container's end as a kubelet reports it; ``pod`` is merged into the pod's status (for example for an eviction)."""
        ended = {"terminated": {"reason": reason, "exitCode": code, "message": message, "finishedAt": stamp()}}
        phase = "Succeeded" if code == 0 else "Failed"
        status = {"phase": phase, "containerStatuses": [{"name": "sandbox", "state": ended}], **(pod or {})}
        self._status(name, status)

    def _on_write(self, entry: Entry) -> None:
        metadata = entry.object["metadata"]
        uid = metadata["uid"]
        if (metadata.get("labels") or {}).get("app.kubernetes.io/component") in ("canary", "prepull"):
            return  # `probe_pods` or a test simulates the former, `daemons` the latter
        if entry.kind == "ADDED":
            self._lives[uid] = asyncio.get_running_loop().create_task(self._live(entry.object), name=f"pod {metadata['name']}")
            self._lives[uid].add_done_callback(lambda _: self._lives.pop(uid, None))
        elif entry.kind == "DELETED":
            if uid in self.agents:
                self.agents[uid].kill()
            elif uid in self._lives:
                self._lives[uid].cancel()
        elif metadata.get("deletionTimestamp") and uid in self.agents and not self.frozen:
            self.agents[uid].stop()

    async def _live(self, pod: Object) -> None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        container = pod["spec"]["containers"][0]
        if _cores(container) > self.cores:
            message = "0/1 nodes are available: 1 Insufficient cpu."
            condition = {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": message,
                "lastTransitionTime": stamp(),
            }
            self._status(name, {"phase": "Pending", "conditions": [condition]})
            return
        self.api.pods.update(name, lambda body: body["spec"].update(nodeName="node-1"))
        scheduled = {"type": "PodScheduled", "status": "True"}
        pull_error = PULLS.get(container["image"])
        if pull_error is not None:
            waiting = {"waiting": {"reason": pull_error[0], "message": pull_error[1]}}
            pulling = [{"name": "sandbox", "image": container["image"], "state": waiting}]
            self._status(name, {"phase": "Pending", "conditions": [scheduled], "containerStatuses": pulling})
            return
        if self.no_users and pod["spec"].get("hostUsers") is False:
            self._warn(uid, f"Failed to create pod sandbox: {self.no_users}")
            return
        if self.no_volumes and any("image" in volume for volume in pod["spec"].get("volumes", ())):
            self.end(name, reason="StartError", code=128, message=self.no_volumes)
            return
        number = next(_addresses)
        address = f"127.{1 + (number >> 16) % 250}.{(number >> 8) % 256}.{number % 256}"
        agent = self.agents[uid] = self.agent(_environment(container, pod, address))
        try:
            await agent.start()
            running = {"name": "sandbox", "state": {"running": {"startedAt": stamp()}}, "ready": False}
            self._status(name, {"phase": "Running", "podIP": address, "conditions": [scheduled], "containerStatuses": [running]})
            if await _listens(address, agent) and self._runs(name, uid):
                conditions = [scheduled, {"type": "Ready", "status": "True"}]
                self._status(name, {"conditions": conditions, "containerStatuses": [{**running, "ready": True}]})
            code = await agent.ended()
            found = self._find(name, uid)
            if found is None:
                return
            if found["metadata"].get("deletionTimestamp"):
                if self._runs(name, uid):
                    self.end(name, reason="Completed" if code == 0 else "Error", code=code if code >= 0 else 128 - code)
                # A kubelet removes an ended pod without grace, which a watch shows before the pod is gone.
                self.api.pods.update(name, lambda body: body["metadata"].update(deletionGracePeriodSeconds=0))
                self.api.pods.remove(name, grace=0)
            elif self._runs(name, uid):
                self.end(name, code=code if code >= 0 else 128 - code)
        finally:
            agent.kill()
            with contextlib.suppress(asyncio.CancelledError):
                await agent.ended()
            self.agents.pop(uid, None)

    def _find(self, name: str, uid: str) -> Object | None:
        found = self.api.pods.get(name) if name in self.api.pods.names() else None
        return found if found is not None and found["metadata"]["uid"] == uid else None

    def _runs(self, name: str, uid: str) -> bool:
        found = self._find(name, uid)
        return found is not None and found["status"].get("phase") == "Running"

    def _status(self, name: str, status: dict[str, Any]) -> None:
        """Conditions are merged by their type, as by a kubelet's patch, because other components write conditions too."""

        def merge(body: Object) -> None:
            known = {one["type"]: one for one in body["status"].get("conditions", [])}
            reported = {one["type"]: one for one in status.get("conditions", [])}
            body["status"].update(status | {"conditions": list((known | reported).values())})

        self.api.pods.update(name, merge)


async def _listens(address: str, agent: Agent) -> bool:
    """The startup probe: True as soon as the agent listens, False if it ended before."""
    ended = asyncio.ensure_future(agent.ended())
    try:
        while not ended.done():
            try:
                _, writer = await asyncio.open_connection(address, AGENT_PORT)
            except OSError:
                await asyncio.wait([ended], timeout=_PROBE_S)
            else:
                writer.close()
                return True
        return False
    finally:
        ended.cancel()


def _environment(container: Object, pod: Object, address: str) -> dict[str, str]:
    found = {}
    for one in container["env"]:
        if "valueFrom" in one:
            assert one["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.uid"}}
            found[one["name"]] = pod["metadata"]["uid"]
        else:
            found[one["name"]] = one["value"].replace("$$", "$")
    return {**found, "HOLDFAST_AGENT_LISTEN": f"tcp://{address}:{AGENT_PORT}"}


def _cores(container: Object) -> float:
    return float(container["resources"]["requests"]["cpu"].removesuffix("m")) / 1000
