"""How the bundle gets into pods if the deployment does not set it: by an image volume if that is known to work, else by an init container.

Owns the detection, and how long its answer is valid. The version alone is not enough: the server knows image volumes from 1.31 and parts
of them from 1.33, but accepts them by default only from 1.35 (KEP-4639); and containerd before 2.2 silently mounts the whole image where
a part was asked for (awslabs/amazon-eks-ami issue 2625). So the result of a probe pod decides (``node_probes``), else the nodes' own
versions, and where neither is known the bundle is copied. Called by ``runtime`` for pods and by ``doctor`` for its report.
"""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import dataclass
from typing import Any

from gateway.model.options import Egress
from gateway.model.records import SandboxSpec
from gateway.runtimes.base import CreateRequest
from gateway.runtimes.kubernetes.api.client import Api, ApiError, ApiUnreachableError
from gateway.runtimes.kubernetes.pods.manifest import Injection, pod
from gateway.runtimes.kubernetes.settings import KubernetesSettings

from .node_probes import NodeProbes, known

log = logging.getLogger("gateway.kubernetes")

_GOOD_FOR_S = 600.0
"""How long a certain result is used: nodes of another kind may join."""
_UNSURE_FOR_S = 5.0
"""How long an uncertain result is used: a probe may be running."""
_FIRST, _LIKELY = (1, 33), (1, 36)
"""From the first version on image volumes can work; from the second on they are used if there is no node yet. A pod that does not find the
bundle is created again (``reject``)."""
_RUNTIMES = {"containerd": (2, 2), "cri-o": (1, 33)}
"""The first version of each runtime that mounts a part of an image."""


@dataclass(frozen=True, slots=True)
class Found:
    """The method of injection, why it was chosen, and whether that is certain."""

    way: Injection
    why: str
    sure: bool = True


class InjectionChoice:
    """See the module."""

    def __init__(self, api: Api, settings: KubernetesSettings, nodes: NodeProbes | None = None) -> None:
        self._nodes = nodes or NodeProbes(api, settings)
        self._api = api
        self._settings = settings
        self._found: Found | None = None
        self._good_until = 0.0
        self._lock = asyncio.Lock()

    async def way(self) -> Injection:
        """As configured, or as detected. Raises ``ApiError``."""
        if self._settings.bundle_injection != "auto":
            return self._settings.bundle_injection
        clock = asyncio.get_running_loop().time
        async with self._lock:
            if self._found is None or clock() >= self._good_until:
                self._found = await detect(self._api, self._settings)
                self._good_until = clock() + (_GOOD_FOR_S if self._found.sure else _UNSURE_FOR_S)
            return self._found.way

    async def reject(self, way: Injection, why: str) -> bool:
        """A pod did not find the bundle that this method should have provided. Whether to create it again, with the bundle copied in."""
        if way != "image" or self._settings.bundle_injection != "auto":
            return False
        log.error("image volumes do not provide the bundle here, so it is copied into pods from now on: %s", why)
        self._found = Found("init", f"a sandbox did not get the bundle from its image volume: {why[-200:]}")
        self._good_until = asyncio.get_running_loop().time() + _GOOD_FOR_S
        await self._nodes.reject_volumes(self._found.why)
        return True


async def detect(api: Api, settings: KubernetesSettings) -> Found:
    """The method that this cluster supports. Raises ``ApiError`` where the server does not answer as expected."""
    version = version_of(await api.get("/version"))
    if version < _FIRST:
        return Found("init", "image volumes of this kind need Kubernetes 1.33")
    refusal = await _refusal(api, settings)
    if refusal:
        return Found("init", f"the server rejects image volumes: {refusal[:200]}")
    runtimes = await _runtimes(api, settings)
    old = next((text for text in runtimes or () if not _mounts_parts(text)), None)
    if old is not None:
        return Found("init", f"{old} cannot mount a part of an image")
    seen = await known(api, settings)
    if seen is not None and seen.volume is not None:
        return Found("image", "") if seen.volume else Found("init", seen.volume_why)
    if runtimes is None:
        return Found("init", "nodes may not be read, and no probe has seen what they mount", sure=False)
    if not runtimes and version < _LIKELY:
        return Found("init", "there is no node yet, so the container runtime is not known", sure=False)
    return Found("image", "", sure=False)


async def _refusal(api: Api, settings: KubernetesSettings) -> str:
    """The server's answer to a dry-run pod with an image volume; empty if it accepts the pod."""
    spec = SandboxSpec("injection-probe", "", "0" * 16, settings.bundle_image, cores=0.01, memory_bytes=64 << 20, egress=Egress("internet"))
    body = pod(CreateRequest(spec, "0" * 64), settings, "image", "probe")
    try:
        await api.call("POST", settings.pods_path, {"dryRun": "All"}, body=body)
    except ApiError as error:
        if isinstance(error, ApiUnreachableError):
            raise
        return error.text if error.status in (400, 403, 422) and "volume" in error.text else ""  # a quota, for one, is unrelated
    return ""


async def _runtimes(api: Api, settings: KubernetesSettings) -> list[str] | None:
    """The container runtimes of the first page of nodes; None if nodes may not be read."""
    selector = ",".join(f"{name}={value}" for name, value in (("kubernetes.io/os", "linux"), *settings.node_selector))
    query = {"labelSelector": selector, "limit": str(settings.page), "resourceVersion": "0"}
    found = await api.find("/api/v1/nodes", query, missing=403)
    if found is None:
        return None
    infos = [(node.get("status") or {}).get("nodeInfo") or {} for node in found.get("items") or []]
    return [str(info["containerRuntimeVersion"]) for info in infos if info.get("containerRuntimeVersion")]


def _mounts_parts(text: str) -> bool:
    """``containerd://2.2.1`` is new enough."""
    match = re.fullmatch(r"([a-z-]+)://v?(\d+)\.(\d+).*", text)
    least = _RUNTIMES.get(match[1]) if match else None
    return match is not None and least is not None and (int(match[2]), int(match[3])) >= least


def version_of(answer: dict[str, Any]) -> tuple[int, int]:
    """``(1, 33)`` of ``/version``; an unreadable version counts as old."""
    numbers = [re.match(r"\d+", str(answer.get(name) or "")) for name in ("major", "minor")]
    return (int(numbers[0][0]), int(numbers[1][0])) if numbers[0] and numbers[1] else (0, 0)
