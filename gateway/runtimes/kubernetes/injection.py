"""How the bundle gets into pods where the deployment leaves it open: as an image volume where that is sure to work, else by a container.

Owns the finding out, and how long an answer is good. The version alone does not tell: the server knows image volumes from 1.31 and parts
of them from 1.33, but takes them unasked only from 1.35 (KEP-4639); and containerd before 2.2 mounts the whole image where a part was
asked for, without a word (awslabs/amazon-eks-ami issue 2625). Called by ``runtime`` for pods and ``doctor`` to tell.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Any

from gateway.runtimes.base import Order
from gateway.runtimes.options import Egress

from .client import Api, ApiError, ApiUnreachableError
from .manifest import Injection, pod
from .settings import KubernetesSettings

_GOOD_FOR_S = 600.0
"""Nodes of another kind may join."""
_FIRST, _SURE = (1, 33), (1, 36)
"""From the former on it can be; from the latter on it is believed also where nodes may not be looked at."""
_RUNTIMES = {"containerd": (2, 2), "cri-o": (1, 33)}
"""The first of each that mounts a part of an image."""


@dataclass(frozen=True, slots=True)
class Found:
    """The way, and why."""

    way: Injection
    why: str


class Injecting:
    """See the module."""

    def __init__(self, api: Api, settings: KubernetesSettings) -> None:
        self._api = api
        self._settings = settings
        self._found: Found | None = None
        self._good_until = 0.0
        self._lock = asyncio.Lock()

    async def way(self) -> Injection:
        """As the deployment says, or as it was found out. Raises ``ApiError``."""
        if self._settings.bundle_injection != "auto":
            return self._settings.bundle_injection
        clock = asyncio.get_running_loop().time
        async with self._lock:
            if self._found is None or clock() >= self._good_until:
                self._found = await find_out(self._api, self._settings)
                self._good_until = clock() + _GOOD_FOR_S
            return self._found.way


async def find_out(api: Api, settings: KubernetesSettings) -> Found:
    """Raises ``ApiError`` where the server does not answer as it should."""
    version = version_of(await api.get("/version"))
    if version < _FIRST:
        return Found("init", "image volumes of this kind need Kubernetes 1.33")
    refusal = await _refusal(api, settings)
    if refusal:
        return Found("init", f"the server takes no image volumes: {refusal[:200]}")
    old = await _old_runtime(api, settings)
    if old is None:
        if version >= _SURE:
            return Found("image", "")
        return Found("init", "there is no node to be looked at, so their container runtime is not known")
    return Found("init", f"{old} mounts no part of an image") if old else Found("image", "")


async def _refusal(api: Api, settings: KubernetesSettings) -> str:
    """What the server says to a pod with an image volume that is not really made; empty where it would take it."""
    order = Order("injection-probe", "0" * 16, "0" * 64, "", settings.bundle_image, 0.01, 64 << 20, egress=Egress("internet"))
    body = pod(order, settings, "image", "probe")
    try:
        await api.call("POST", f"/api/v1/namespaces/{settings.namespace}/pods", {"dryRun": "All"}, body=body)
    except ApiError as error:
        if isinstance(error, ApiUnreachableError):
            raise
        return error.message if error.status in (400, 403, 422) and "volume" in error.message else ""  # a quota, say, tells nothing of them
    return ""


async def _old_runtime(api: Api, settings: KubernetesSettings) -> str | None:
    """A node's container runtime that cannot; empty where all of the first page can, None where none is there to be looked at."""
    selector = ",".join(f"{name}={value}" for name, value in (("kubernetes.io/os", "linux"), *settings.node_selector))
    try:
        found = await api.get("/api/v1/nodes", {"labelSelector": selector, "limit": str(settings.page), "resourceVersion": "0"})
    except ApiError as error:
        if error.status != 403:
            raise
        return None
    nodes = found.get("items") or []
    for node in nodes:
        text = str(((node.get("status") or {}).get("nodeInfo") or {}).get("containerRuntimeVersion") or "")
        if text and not _mounts_parts(text):
            return text
    return "" if nodes else None


def _mounts_parts(text: str) -> bool:
    """``containerd://2.2.1`` does."""
    match = re.fullmatch(r"([a-z-]+)://v?(\d+)\.(\d+).*", text)
    least = _RUNTIMES.get(match[1]) if match else None
    return match is not None and least is not None and (int(match[2]), int(match[3])) >= least


def version_of(answer: dict[str, Any]) -> tuple[int, int]:
    """``(1, 33)`` of ``/version``; what cannot be read is old."""
    numbers = [re.match(r"\d+", str(answer.get(name) or "")) for name in ("major", "minor")]
    return (int(numbers[0][0]), int(numbers[1][0])) if numbers[0] and numbers[1] else (0, 0)
