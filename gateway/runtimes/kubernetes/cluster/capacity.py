"""The capacity of the cluster: what its nodes have available, and what the pods of sandboxes request.

Owns a cached answer: it lists all nodes and pods, so it is computed at most every few seconds. Where nodes may not be read (no cluster
role), only the requested amounts are known.
"""

from __future__ import annotations

import asyncio
import contextlib
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
        """The largest number of cores and the largest memory of any node; None if nodes may not be read or there are none.

        Raises ``ApiError``.
        """
        clock = asyncio.get_running_loop().time
        async with self._lock:
            if clock() >= self._largest_until:
                nodes = await self._nodes() or []
                cores, memory = max((one[0] for one in nodes), default=0.0), max((one[1] for one in nodes), default=0)
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
        found = await self._nodes()
        nodes = None if found is None else [one for one in found if one[2]]
        asked_cores, asked_memory, pods = 0.0, 0, 0
        async for pod in self._each(self._settings.pods_path, SELECTOR):
            if (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded"):
                continue
            pods += 1
            for container in (pod.get("spec") or {}).get("containers") or []:
                cores, memory = _amounts((container.get("resources") or {}).get("requests"))
                asked_cores += cores
                asked_memory += memory
        return {
            "sandboxes": pods,
            "nodes": None if nodes is None else len(nodes),
            "cpu_total": None if nodes is None else round(sum(one[0] for one in nodes), 3),
            "memory_total": None if nodes is None else sum(one[1] for one in nodes),
            "cpu_requested": round(asked_cores, 3),
            "memory_requested": asked_memory,
        }

    async def _nodes(self) -> list[tuple[float, int, bool]] | None:
        """Cores and bytes of each node, and whether pods are scheduled there; None where nodes may not be read."""
        try:
            return [
                (*_amounts((node.get("status") or {}).get("allocatable")), not (node.get("spec") or {}).get("unschedulable"))
                async for node in self._each("/api/v1/nodes")
            ]
        except ApiError as error:
            if error.status != 403:
                raise
            return None

    def _each(self, path: str, selector: str = "") -> AsyncIterator[dict[str, Any]]:
        """From the server's cache."""
        return self._api.each(path, {"resourceVersion": "0", "labelSelector": selector}, page=self._settings.page)


def _amounts(resources: dict[str, Any] | None) -> tuple[float, int]:
    """Cores and bytes of memory; what cannot be read counts as 0."""
    cores, memory = 0.0, 0
    with contextlib.suppress(HoldfastError):
        cores = parse_cpu((resources or {}).get("cpu") or "0")
    with contextlib.suppress(HoldfastError):
        memory = parse_bytes((resources or {}).get("memory") or "0")
    return cores, memory
