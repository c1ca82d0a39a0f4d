"""Pre-pulled images: a DaemonSet for each, whose pods only keep the image on their node.

Owns the creation, status and removal of those DaemonSets. Nothing of the image runs: the bundle's interpreter is started in it and exits;
an idle container of the bundle's own image remains, so that the kubelet's image garbage collection sees the image in use. Later nodes
pull it by themselves. Called by the gateway's image routes and by the controller (``keep``); sandboxes do not depend on it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson
from holdfast_wire.bundle import agent_command
from holdfast_wire.errors import HoldfastError

from gateway.runtimes.base import Image
from gateway.runtimes.kubernetes.api.client import Api, ApiError, refused
from gateway.runtimes.kubernetes.names import COMPONENT, IMAGE, KEPT, MANAGED_BY, PREPULL, PREPULL_SELECTOR, SPEC, prepull_name
from gateway.runtimes.kubernetes.pods import pod_events
from gateway.runtimes.kubernetes.pods.failures import Failure, event_failure
from gateway.runtimes.kubernetes.pods.json_fields import moment
from gateway.runtimes.kubernetes.pods.manifest import Injection, bundle_volume
from gateway.runtimes.kubernetes.pods.profiles import CONFINED, confinement
from gateway.runtimes.kubernetes.pods.status import PodStatus, read_pod
from gateway.runtimes.kubernetes.settings import KubernetesSettings

from .probe_pods import placement

log = logging.getLogger("gateway.kubernetes")

MOST = 32
"""Most pre-pulled images: each takes a pod, and an address, on every node."""
_PULL_S = 1800.0
_LOOK_S, _LOOK_MOST_S = 0.25, 3.0
"""Between two checks of a pull: at first, and at most."""
_PYTHON = [*agent_command()[:-1], "-c"]
_EXIT, _IDLE = "", "import signal; signal.pause()"
_SIZE = {"requests": {"cpu": "1m", "memory": "16Mi"}, "limits": {"cpu": "100m", "memory": "64Mi"}}


class ClusterImages:
    """See ``base.Images``; ``Image.ready`` of ``Image.wanted`` nodes have it."""

    def __init__(
        self, api: Api, settings: KubernetesSettings, injection: Callable[[], Awaitable[Injection]], *, pull_s: float = _PULL_S
    ) -> None:
        self._api = api
        self._settings = settings
        self._injection = injection
        self._pull_s = pull_s
        self._path = f"/apis/apps/v1/namespaces/{settings.namespace}/daemonsets"

    async def list_all(self, owner: str = "", *, steps: bool = False) -> list[Image]:
        return sorted((_image(one) for one in await self._all()), key=lambda image: image.name)

    async def pull(self, name: str, owner: str = "") -> Image:
        """Pull an image to every node that takes sandboxes, now and later, and wait until all present nodes have it.

        A pull that was begun here and cannot succeed is undone; one that takes longer than the limit continues. Raises ``image_not_found``,
        ``image_pull_failed``, ``no_capacity``, ``quota_exceeded``.
        """
        daemon_set, begun = await self._ensure(name, {one["metadata"]["name"]: one for one in await self._all()})
        try:
            async with asyncio.timeout(self._pull_s):
                return await self._wait(daemon_set)
        except TimeoutError:
            text = f"{name} was not on every node within {self._pull_s:g} s; the pull continues"
            raise HoldfastError("image_pull_failed", text) from None
        except ApiError:
            raise
        except HoldfastError:
            if begun:
                await self._delete(daemon_set)
            raise

    async def keep(self, names: Sequence[str]) -> list[Image]:
        """Keep these images on every node, now and later, without waiting; images kept before and no longer listed are removed.

        What ``pull`` pulled is unaffected. An image that cannot be pulled is retried, and logged.
        """
        found = {one["metadata"]["name"]: one for one in await self._all()}
        wanted = {prepull_name(name) for name in names}
        for key in [key for key, one in found.items() if KEPT in (one["metadata"].get("labels") or {}) and key not in wanted]:
            await self._delete(found.pop(key))
        kept = []
        for name in names:
            daemon_set, _ = await self._ensure(name, found, kept=True)
            found[daemon_set["metadata"]["name"]] = daemon_set
            kept.append(_image(daemon_set))
            failure = None if _complete(daemon_set) else await self._failure_of(daemon_set)
            if failure is not None:
                log.warning("%s is not on every node: %s", name, failure.cause.message)
        return kept

    async def remove(self, name: str, owner: str = "") -> None:
        """Stop keeping an image. Nodes remove it when they need the space and nothing uses it."""
        if not await self._delete({"metadata": {"name": prepull_name(name)}}):
            raise HoldfastError("image_not_found", f"{name} is not pre-pulled here", hint="`holdfast image list` shows the images that are")

    async def _ensure(self, name: str, found: Mapping[str, dict[str, Any]], *, kept: bool = False) -> tuple[dict[str, Any], bool]:
        """Its DaemonSet, and whether it is new. One with an outdated pod template is replaced."""
        wanted = daemon_set(name, self._settings, await self._injection())
        present = found.get(wanted["metadata"]["name"])
        if present is None and len(found) >= MOST:
            hint = "remove one with `holdfast image rm`"
            raise HoldfastError("quota_exceeded", f"{MOST} images are pre-pulled already", hint=hint, retryable=False)
        if present is not None:
            if (present["metadata"].get("annotations") or {}).get(SPEC) == wanted["metadata"]["annotations"][SPEC]:
                return present, False
            await self._delete(present)
            kept = kept and KEPT in (present["metadata"].get("labels") or {})
        if kept:
            wanted["metadata"]["labels"] = {**wanted["metadata"]["labels"], KEPT: "pools"}
        try:
            return await self._api.post(self._path, wanted), present is None
        except ApiError as error:
            if error.status != 409:
                raise refused(error) from None
            return await self._api.get(f"{self._path}/{wanted['metadata']['name']}"), False

    async def _wait(self, daemon_set: dict[str, Any]) -> Image:
        pause_s, path, uid = _LOOK_S, f"{self._path}/{daemon_set['metadata']['name']}", daemon_set["metadata"]["uid"]
        while True:
            found = await self._api.find(path)
            if found is None or found["metadata"].get("uid") != uid:
                raise HoldfastError("image_pull_failed", "the image was removed while it was being pulled", fault="caller")
            if _complete(found):
                return _image(found)
            failure = await self._failure_of(found)
            if failure is not None:
                raise failure.error()
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _LOOK_MOST_S)

    async def _failure_of(self, daemon_set: dict[str, Any]) -> Failure | None:
        """The first lasting failure of its pods, by their status or, which shows it ten seconds sooner, by their kubelets' warnings."""
        now, selector = time.time(), f"{PREPULL}={daemon_set['metadata']['labels'][PREPULL]}"
        waiting: dict[str, PodStatus] = {}
        async for pod in self._api.each(self._settings.pods_path, {"labelSelector": selector}, page=self._settings.page):
            owners = {owner.get("uid") for owner in pod["metadata"].get("ownerReferences") or []}
            if daemon_set["metadata"]["uid"] not in owners or pod["metadata"].get("deletionTimestamp"):
                continue
            facts = read_pod(pod)
            found = facts.failed(now, self._settings)
            if found is not None:
                return found
            if facts.placed and not facts.started:
                waiting[facts.uid] = facts
        image = (daemon_set["metadata"].get("annotations") or {}).get(IMAGE, "")
        for warned in await pod_events.all_warnings(self._api, self._settings) if waiting else ():
            of = waiting.get(warned.pod_uid)
            failure = None if of is None else event_failure(warned.reason, warned.message, image, of.created_at)
            if of is not None and failure is not None and replace(of, failure=failure).failed(now, self._settings) is not None:
                return failure
        return None

    async def _all(self) -> list[dict[str, Any]]:
        """All of them: ``_ensure`` limits their number, so one page suffices."""
        return list((await self._api.get(self._path, {"labelSelector": PREPULL_SELECTOR})).get("items") or [])

    async def _delete(self, daemon_set: dict[str, Any]) -> bool:
        """Whether it existed; with a uid, only that one."""
        metadata = daemon_set["metadata"]
        return await self._api.remove(f"{self._path}/{metadata['name']}", uid=metadata.get("uid", ""))


def daemon_set(name: str, settings: KubernetesSettings, injection: Injection) -> dict[str, Any]:
    """The manifest. Its pods go to the same nodes as sandboxes, and are confined in the same way."""
    key = prepull_name(name)
    labels = {MANAGED_BY: "holdfast", COMPONENT: "prepull", PREPULL: key}
    confined = confinement(settings)
    volume, mount, init = bundle_volume(_SIZE, settings, injection)
    common = {"imagePullPolicy": settings.pull_policy, "resources": _SIZE, "securityContext": CONFINED}
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 0,
        "securityContext": {name: value for name, value in confined.pod.items() if not name.startswith("fsGroup")},
        **placement(settings),
        "initContainers": [*init, {"name": "image", "image": name, "command": [*_PYTHON, _EXIT], "volumeMounts": [mount], **common}],
        "containers": [{"name": "idle", "image": settings.bundle_image, "command": [*_PYTHON, _IDLE], **common}],
        "volumes": [volume],
    }
    if confined.own_users:
        spec["hostUsers"] = False
    digest = hashlib.sha256(orjson.dumps(spec, option=orjson.OPT_SORT_KEYS)).hexdigest()[:40]
    metadata: dict[str, Any] = {
        "name": key,
        "namespace": settings.namespace,
        "labels": labels,
        "annotations": {IMAGE: name, SPEC: digest},
    }
    if settings.owner is not None:
        version, kind, owner, uid = settings.owner
        metadata["ownerReferences"] = [{"apiVersion": version, "kind": kind, "name": owner, "uid": uid}]
    template = {"metadata": {"labels": labels, "annotations": {IMAGE: name}}, "spec": spec}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": metadata,
        "spec": {"selector": {"matchLabels": {PREPULL: key}}, "template": template, "revisionHistoryLimit": 1},
    }


def _complete(daemon_set: dict[str, Any]) -> bool:
    """Whether the DaemonSet's controller has processed it and all of its pods run. Also True if no node accepts sandboxes yet."""
    status = daemon_set.get("status") or {}
    seen = int(status.get("observedGeneration") or 0) >= int(daemon_set["metadata"].get("generation") or 1)
    return seen and int(status.get("numberReady") or 0) >= int(status.get("desiredNumberScheduled") or 0)


def _image(daemon_set: dict[str, Any]) -> Image:
    metadata, status = daemon_set["metadata"], daemon_set.get("status") or {}
    return Image(
        (metadata.get("annotations") or {}).get(IMAGE, ""),
        created=moment(metadata.get("creationTimestamp")) or None,
        ready=int(status.get("numberReady") or 0),
        wanted=int(status.get("desiredNumberScheduled") or 0),
    )
