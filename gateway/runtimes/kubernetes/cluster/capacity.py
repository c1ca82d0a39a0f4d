"""What the cluster has and what sandboxes request of it: nodes' allocatable against our pods' requests.

Owns a cached answer: it lists all nodes and pods, so it is computed at most every few seconds. Where nodes may not be read (no cluster
role), only the requested amounts are known.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from holdfast_wire.errors import HoldfastError
from holdfast_wire.rest import parse_bytes, parse_cpu

from gateway.runtimes.kubernetes.api.client import Api, ApiError
from gateway.runtimes.kubernetes.names import SELECTOR
from gateway.runtimes.kubernetes.settings import KubernetesSettings

_GOOD_FOR_S = 10.0
_NODES_GOOD_FOR_S = 60.0


class Capacity:
    """See the module."""

    def __init__(self, api: Api, settings: KubernetesSettings) -> None:
        self._api = api
        self._settings = settings
        self._lock = asyncio.Lock()
        self._known: dict[str, Any] = {}
        self._good_until = 0.0
        self._largest: tuple[float, int] | None = None
        self._largest_until = 0.0

    async def largest(self) -> tuple[float, int] | None:
        """Cores and bytes of the largest node, each for itself; None where nodes may not be read or there is none. Raises ``ApiError``."""
        clock = asyncio.get_running_loop().time
        async with self._lock:
            if clock() >= self._largest_until:
                cores, memory = 0.0, 0
                try:
                    async for node in self._each("/api/v1/nodes"):
                        allocatable = (node.get("status") or {}).get("allocatable") or {}
                        cores = max(cores, _cores(allocatable.get("cpu")))
                        memory = max(memory, _bytes(allocatable.get("memory")))
                except ApiError as error:
                    if error.status != 403:
                        raise
                self._largest = (cores, memory) if cores and memory else None
                self._largest_until = clock() + _NODES_GOOD_FOR_S
            return self._largest

    async def stats(self) -> dict[str, Any]:
        """``nodes``, ``cpu_total``, ``memory_total`` (None where nodes may not be read), ``cpu_requested``, … Raises ``ApiError``."""
        clock = asyncio.get_running_loop().time
        async with self._lock:
            if clock() >= self._good_until:
                self._known = await self._look()
                self._good_until = clock() + _GOOD_FOR_S
            return dict(self._known)

    async def _look(self) -> dict[str, Any]:
        nodes: int | None = 0
        cores, memory = 0.0, 0
        try:
            async for node in self._each("/api/v1/nodes"):
                if (node.get("spec") or {}).get("unschedulable"):
                    continue
                allocatable = (node.get("status") or {}).get("allocatable") or {}
                nodes = (nodes or 0) + 1
                cores += _cores(allocatable.get("cpu"))
                memory += _bytes(allocatable.get("memory"))
        except ApiError as error:
            if error.status != 403:
                raise
            nodes = None
        asked_cores, asked_memory, pods = 0.0, 0, 0
        async for pod in self._each(self._settings.pods_path, SELECTOR):
            if (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded"):
                continue
            pods += 1
            for container in (pod.get("spec") or {}).get("containers") or []:
                requests = (container.get("resources") or {}).get("requests") or {}
                asked_cores += _cores(requests.get("cpu"))
                asked_memory += _bytes(requests.get("memory"))
        return {
            "sandboxes": pods,
            "nodes": nodes,
            "cpu_total": None if nodes is None else round(cores, 3),
            "memory_total": None if nodes is None else memory,
            "cpu_requested": round(asked_cores, 3),
            "memory_requested": asked_memory,
        }

    def _each(self, path: str, selector: str = "") -> AsyncIterator[dict[str, Any]]:
        """From the server's cache."""
        return self._api.each(path, {"resourceVersion": "0", "labelSelector": selector}, page=self._settings.page)


def _cores(text: Any) -> float:
    try:
        return parse_cpu(text) if text else 0.0
    except HoldfastError:
        return 0.0


def _bytes(text: Any) -> int:
    try:
        return parse_bytes(text) if text else 0
    except HoldfastError:
        return 0
