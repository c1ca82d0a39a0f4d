"""Whether network isolation is trusted: the last probe's verdict, which creates wait for it, and when to probe again.

Owns the refusal of sandboxes that must be isolated while isolation has not been proven. Without a verdict they wait for one, for a
bounded time: declaring isolation does not provide it. The controller probes (``network_probe``); gateways read its verdict at most a
second after it was written.
"""

from __future__ import annotations

import asyncio
import logging
import time

from holdfast_wire.errors import HoldfastError

from gateway.model.options import Egress
from gateway.runtimes.base import RuntimeUnavailableError
from gateway.runtimes.kubernetes.api.client import Api, ApiError
from gateway.runtimes.kubernetes.network import needs
from gateway.runtimes.kubernetes.settings import KubernetesSettings

from . import network_probe

log = logging.getLogger("gateway.kubernetes")

_REMEMBERED_S = 1.0
"""How old the verdict of a create may be: this costs one small request a second and replica, while there are creates."""
_WAIT_S = 45.0
"""Longest wait of a create for the first verdict. A probe takes 10 to 20 s where nodes have the bundle's image."""
_POLL_S = 0.5
_RETRY_AFTER_S = 5
_PROBE_EVERY_S = 6 * 3600.0
_PROBE_AGAIN_S = 300.0
"""After a probe that found a leak: a network may still be starting."""
_TRIES, _TRY_AGAIN_S = 5, 5.0
"""Without a verdict every create waits for one, so an inconclusive probe (no room, an image being pulled) is repeated soon."""


class EnforcementGuard:
    """See the module."""

    def __init__(self, api: Api, settings: KubernetesSettings) -> None:
        self._api = api
        self._settings = settings
        self._lock = asyncio.Lock()
        self._verdict: network_probe.Verdict | None = None
        self._asked_at = float("-inf")

    async def check(self, egress: Egress, wait_s: float = _WAIT_S) -> None:
        """Return once a probe has shown that this egress is enforced, where that is less than all.

        Raises ``unsupported`` where a probe has shown that it is not, ``RuntimeUnavailableError`` where there is no verdict in time, and
        ``ApiError`` where there is none and none can be read.
        """
        if self._settings.enforcement == "none" or needs(egress) == "none":
            return
        clock = asyncio.get_running_loop().time
        end = clock() + min(wait_s, _WAIT_S)
        while True:
            verdict = await self._newest()
            if verdict is not None and verdict.leaks:
                raise HoldfastError(
                    "unsupported",
                    "this cluster is declared to enforce network policies and does not: a sandbox cannot be isolated from the network",
                    hint="repair the cluster's network; `holdfast doctor` shows what the probe saw",
                )
            if verdict is not None and verdict.holds:
                return
            if clock() >= end:
                why = f"the last probe of it: {verdict.detail}" if verdict is not None else "it has not been probed yet"
                message = f"it is not known yet whether this cluster isolates sandboxes from the network; {why}"
                raise RuntimeUnavailableError(message, made_nothing=True, retry_after_s=_RETRY_AFTER_S)
            await asyncio.sleep(min(_POLL_S, max(end - clock(), 0.0)))

    async def _newest(self) -> network_probe.Verdict | None:
        """A recent verdict; the last known one while the API server is down."""
        async with self._lock:
            clock = asyncio.get_running_loop().time
            stale_s = _REMEMBERED_S if self._verdict is not None and self._verdict.conclusive else min(_POLL_S / 2, _REMEMBERED_S)
            if clock() - self._asked_at >= stale_s:
                try:
                    self._verdict = await network_probe.found(self._api, self._settings)
                except ApiError as error:
                    if self._verdict is None or not self._verdict.conclusive:
                        raise
                    log.info("the verdict of the network probe cannot be read: %s", error.message)
                self._asked_at = clock()
            return self._verdict

    async def probe_when_due(self) -> network_probe.Verdict | None:
        """Probe where that is due; the verdict of a probe made now. Called by the acting controller."""
        if self._settings.enforcement == "none":
            return None
        last = await network_probe.found(self._api, self._settings)
        known = last is not None and last.conclusive
        if last is not None and known and time.time() - last.at < (_PROBE_EVERY_S if last.holds else _PROBE_AGAIN_S):
            return None
        for _ in range(_TRIES):
            verdict = await self._probe()
            if known or verdict.conclusive:
                break
            await asyncio.sleep(_TRY_AGAIN_S)
        return verdict

    async def leaks(self, probed: network_probe.Verdict | None) -> bool:
        """Whether sandboxes are to be ended because two probes in a row found that nothing isolates them.

        One such probe refuses creates; ending running sandboxes needs a second. ``probed`` is what ``probe_when_due`` answered.
        """
        if probed is None or not probed.leaks:
            return False
        return (await self._probe()).leaks

    async def _probe(self) -> network_probe.Verdict:
        verdict = await network_probe.probe(self._api, self._settings)
        log.log(logging.INFO if verdict.holds else logging.ERROR, "network enforcement: %s", verdict.detail)
        if verdict.conclusive:
            self._verdict, self._asked_at = verdict, asyncio.get_running_loop().time()
        return verdict
