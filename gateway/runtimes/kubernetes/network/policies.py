"""The egress policies of the namespace: created before the first sandbox that needs one, collected when unused for long.

Owns their life cycle. A policy carries the time of its last assignment to a sandbox, which is renewed, so that collection in one process
and a create in another do not conflict: a recently used policy is never collected, and a deletion names the version it judged.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from gateway.model.options import Egress
from gateway.runtimes.kubernetes.api.client import Api
from gateway.runtimes.kubernetes.names import EGRESS, SELECTOR, USED_AT
from gateway.runtimes.kubernetes.settings import KubernetesSettings

from .policy_manifests import manifest

log = logging.getLogger("gateway.kubernetes")

_RENEW_S = 300.0
_UNUSED_S = 1800.0
"""A policy that was not assigned for this long, and that no pod carries, is removed."""
_REMEMBERED = 4096


class Policies:
    """See the module."""

    def __init__(self, api: Api, settings: KubernetesSettings) -> None:
        self._api = api
        self._settings = settings
        self._used: dict[str, float] = {}
        """When this replica last wrote a policy's time of use, by name."""
        self._writing: dict[str, asyncio.Lock] = {}

    async def ensure(self, egress: Egress) -> None:
        """Create the policy that ``egress`` needs. Raises ``ApiError`` and what ``policy_manifests.manifest`` raises."""
        wanted = manifest(egress, self._settings)
        if wanted is None:
            return
        name = wanted["metadata"]["name"]
        async with self._writing.setdefault(name, asyncio.Lock()):
            now = time.time()
            if now - self._used.get(name, 0.0) < _RENEW_S:
                return
            wanted["metadata"]["annotations"] = {USED_AT: str(int(now))}
            path = _path(wanted["kind"], self._settings)
            if not await self._api.ensure(path, wanted):
                await self._api.patch(f"{path}/{name}", {"metadata": {"annotations": wanted["metadata"]["annotations"]}})
            if len(self._used) >= _REMEMBERED:
                self._used.clear()
                self._writing.clear()
            self._used[name] = now

    async def collect(self, now: float, unused_s: float = _UNUSED_S) -> int:
        """Remove the policies that no sandbox needs, and return how many. Called periodically by the controller. Raises ``ApiError``."""
        kinds = ["NetworkPolicy"] + (["CiliumNetworkPolicy"] if self._settings.enforcement == "fqdn" else [])
        old: list[tuple[str, dict[str, Any]]] = []
        for kind in kinds:
            path = _path(kind, self._settings)
            found = await self._api.get(path, {"labelSelector": f"{EGRESS}"})
            for one in found.get("items") or []:
                used = (one["metadata"].get("annotations") or {}).get(USED_AT, "0")
                if not used.isdecimal() or now - int(used) > unused_s:
                    old.append((path, one["metadata"]))
        removed = 0
        for path, metadata in old:
            key = metadata["labels"][EGRESS]
            query = {"limit": "1", "labelSelector": f"{SELECTOR},{EGRESS}={key}"}
            carried = await self._api.get(self._settings.pods_path, query, metadata_only=True)
            if carried.get("items"):
                continue
            removed += await self._api.remove(f"{path}/{metadata['name']}", uid=metadata["uid"], version=metadata["resourceVersion"])
        if removed:
            log.info("%d unused egress policies were removed", removed)
        return removed


def _path(kind: str, settings: KubernetesSettings) -> str:
    if kind == "CiliumNetworkPolicy":
        return f"/apis/cilium.io/v2/namespaces/{settings.namespace}/ciliumnetworkpolicies"
    return settings.policies_path
