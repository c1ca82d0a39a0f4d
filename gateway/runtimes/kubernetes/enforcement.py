"""Trust in the declared enforcement level: what the last probe found, remembered for a while, and when to probe again.

Owns the refusal of sandboxes that ask to be kept from the network where a probe has seen that they would not be. A probe that proves
nothing, or was never made, refuses nobody: the declaration stands, and the doctor tells.
"""

from __future__ import annotations

import asyncio
import logging
import time

from holdfast_wire.errors import HoldfastError

from gateway.runtimes.options import Egress

from . import canary
from .client import Api, ApiError
from .network import needs
from .settings import KubernetesSettings

log = logging.getLogger("gateway.kubernetes")

_REMEMBERED_S = 60.0
_PROBE_EVERY_S = 6 * 3600.0
_PROBE_AGAIN_S = 300.0
"""After a probe that did not hold: a network may still be coming up."""


class EnforcementGuard:
    """See the module."""

    def __init__(self, api: Api, settings: KubernetesSettings) -> None:
        self._api = api
        self._settings = settings
        self._lock = asyncio.Lock()
        self._verdict: canary.Verdict | None = None
        self._asked_at = float("-inf")

    async def check(self, egress: Egress) -> None:
        """Raise ``unsupported`` where a probe has shown that a sandbox would not be held to this."""
        if self._settings.enforcement == "none" or needs(egress) == "none":
            return
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if now - self._asked_at >= _REMEMBERED_S:
                self._asked_at = now
                try:
                    self._verdict = await canary.known(self._api, self._settings)
                except ApiError as error:
                    log.info("what the canary found cannot be read: %s", error)
        if self._verdict is not None and self._verdict.leaks:
            raise HoldfastError(
                "unsupported",
                "this cluster is declared to enforce network policies and does not: a sandbox cannot be kept from the network",
                hint="mend the cluster's network; `holdfast doctor` tells what the probe saw",
            )

    async def probe_when_due(self) -> canary.Verdict | None:
        """Probe where that was not done lately; the verdict of a probe made now. Called by the acting controller."""
        if self._settings.enforcement == "none":
            return None
        last = await canary.known(self._api, self._settings)
        wait_s = _PROBE_EVERY_S if last is not None and last.holds else _PROBE_AGAIN_S
        if last is not None and time.time() - last.at < wait_s:
            return None
        verdict = await canary.probe(self._api, self._settings)
        log.log(logging.INFO if verdict.holds else logging.ERROR, "network enforcement: %s", verdict.detail)
        return verdict
