"""DaemonSets of the fake cluster: a pod for each node; as for the kubelet's pods, the image's name selects a failure.

Owns the controller and these pods' whole life; the kubelet leaves them alone. Nothing runs in them. Nodes that join later get their pod
when ``join`` is called.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from .kubelet import PULLS
from .objects import Entry, Object, stamp
from .rules import check_pod
from .server import FakeApi


class Daemons:
    """The controller. ``held``: image pulls do not end before ``release``."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        self.held = False
        self.slow_status = False
        """A failed pull is reported by an event, and not yet by the status of the pod, as for the first ten seconds on containerd."""
        self._sets = api.stores["daemonsets"]
        self._called: set[asyncio.Handle] = set()

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator[Daemons]:
        self._sets.on_write.append(self._on_write)
        try:
            yield self
        finally:
            self._sets.on_write.remove(self._on_write)
            for call in self._called:
                call.cancel()

    def join(self, node: str) -> None:
        self.api.stores["nodes"].create({"metadata": {"name": node}, "kind": "Node", "spec": {}, "status": {"allocatable": {}}})
        self._all()

    def release(self) -> None:
        self.held = False
        self._all()

    def _on_write(self, entry: Entry) -> None:
        body = entry.object
        if entry.kind == "ADDED":
            self._called.add(asyncio.get_running_loop().call_soon(self._make, body["metadata"]["name"]))
        elif entry.kind == "DELETED":
            for pod in self._pods(body):
                self.api.pods.remove(pod["metadata"]["name"])

    def _all(self) -> None:
        for name in self._sets.names():
            self._make(name)

    def _make(self, name: str) -> None:
        if name not in self._sets.names():
            return
        body = self._sets.get(name)
        nodes = self.api.stores["nodes"].names()
        for node in nodes:
            pod = _pod(body, node)
            if pod["metadata"]["name"] not in self.api.pods.names():
                check_pod(pod, restricted=self.api.restricted)
                self.api.pods.create(pod)
            self.api.pods.update(pod["metadata"]["name"], lambda pod: pod.update(status=self._status(pod)))
        ready = sum(pod["status"]["phase"] == "Running" for pod in self._pods(body))
        status = {"observedGeneration": 1, "desiredNumberScheduled": len(nodes), "numberReady": ready}
        self._sets.update(name, lambda body: body.update(status=status))

    def _pods(self, body: Object) -> list[Object]:
        uid = body["metadata"]["uid"]
        return [pod for pod in self.api.pods.all() if any(one["uid"] == uid for one in pod["metadata"].get("ownerReferences", ()))]

    def _status(self, pod: Object) -> dict[str, Any]:
        first = pod["spec"]["initContainers"][-1]
        pull_error = PULLS.get(first["image"])
        if pull_error is not None and self.slow_status:
            involved = {"kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
            message = f'Failed to pull image "{first["image"]}": {pull_error[1]}'
            warning = {"reason": "Failed", "type": "Warning", "message": message, "involvedObject": involved, "lastTimestamp": stamp()}
            self.api.stores["events"].create({"metadata": {"name": f"event-{len(self.api.stores['events'].names())}"}, **warning})
            pull_error = ("PodInitializing", "")
        if pull_error is None and not self.held:
            running = [{"name": "idle", "state": {"running": {}}, "ready": True}]
            return {"phase": "Running", "containerStatuses": running}
        reason, message = pull_error or ("PodInitializing", "")
        waiting = [{"name": first["name"], "image": first["image"], "state": {"waiting": {"reason": reason, "message": message}}}]
        return {"phase": "Pending", "initContainerStatuses": waiting}


def _pod(body: Object, node: str) -> Object:
    template, owner = body["spec"]["template"], {"kind": "DaemonSet", "name": body["metadata"]["name"], "uid": body["metadata"]["uid"]}
    metadata = {**template["metadata"], "name": f"{body['metadata']['name']}-{node}", "ownerReferences": [owner]}
    return {"kind": "Pod", "metadata": metadata, "spec": {**template["spec"], "nodeName": node}, "status": {"phase": "Pending"}}
