"""The condition of the service: whether its parts answer, what the runtime has left, and the values that are read for its metrics.

Owns which parts a gateway needs and what fixes each. Called by faces.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Any, Final

from holdfast_wire.errors import HoldfastError

from gateway.identity.principal import Principal
from gateway.placement.errors import RebuildingError
from gateway.runtimes.base import OwnMachine, capabilities
from gateway.turns import turns

from .service import Gateway

log = logging.getLogger("gateway")

_READY_S: Final = 1.0
_SCRAPE_S: Final = 0.5
"""As above, for metrics: one that is away must not cost the others their scrape."""
_START_S: Final = 10.0
"""How long after its start a gateway that is not ready yet is no reason for a warning: the processes of one machine start together."""
_FIXES: Final = {
    "placement": "start Redis, or set HOLDFAST_REDIS_URL to a running one; while records are being rebuilt, check that a controller runs",
    "runtime": "start the node (`holdfast up` does), or set HOLDFAST_NODE_SOCKET",
}


async def unavailable(gateway: Gateway) -> dict[str, str]:
    """The parts that creates need and that do not answer, each with its problem. A change is logged."""
    away = {name: text for name, text in (await _parts(gateway)).items() if text}
    if gateway.attached.draining:
        away["gateway"] = "shutting down"
    starting = bool(away) and not gateway.was_ready and time.monotonic() < gateway.started_at + _START_S
    if (set(away), starting) != gateway.logged_readiness:  # probes come every second: only changes are logged
        gateway.logged_readiness = (set(away), starting)
        parts = "; ".join(f"{name}: {text}" for name, text in away.items())
        if starting:
            log.info("starting; still missing: %s", parts)
        elif away:
            log.warning("not ready: %s", parts)
        else:
            log.info("ready")
    gateway.was_ready |= not away
    return away


async def diagnose(gateway: Gateway, principal: Principal) -> list[dict[str, Any]]:
    """Problems of this installation and how to fix them, the runtime's and the gateway's own: name, ok, detail, fix."""
    away = await _parts(gateway)
    checks: list[dict[str, Any]] = [
        {"name": name, "ok": not text, "detail": text or "answers", "fix": _FIXES[name] if text else ""} for name, text in away.items()
    ]
    can = ", ".join(capabilities(gateway.runtime)) or "nothing beyond creating sandboxes"
    checks.append({"name": "capabilities", "ok": True, "detail": f"the runtime has {can}", "fix": ""})
    if not away["runtime"]:
        checks += await gateway.runtime.doctor()
    return checks


async def capacity(gateway: Gateway, principal: Principal) -> dict[str, Any]:
    """See ``Runtime.stats``."""
    return await gateway.runtime.stats()


async def rendered_metrics(gateway: Gateway) -> bytes | str:
    """All metrics of this replica, in Prometheus' text format."""
    gateway.metrics.gauge("attached_sessions", len(gateway.attached))
    gateway.metrics.gauge("creates_waiting", gateway.admission.waiting)
    gateway.metrics.gauge("creates_running", gateway.admission.running)
    gateway.metrics.gauge("dials_waiting", gateway.dials.waiting)
    gateway.metrics.gauge("turns_waiting", turns().waiting)
    if gateway.audit.is_on:
        gateway.metrics.gauge("audit_waiting", gateway.audit.waiting)
    away = await _parts(gateway, _SCRAPE_S)
    gateway.metrics.gauge("placement_available", int(not away["placement"]))
    gateway.metrics.gauge("runtime_available", int(not away["runtime"]))
    with contextlib.suppress(HoldfastError):  # the other metrics are reported even if the runtime does not answer
        if isinstance(gateway.runtime, OwnMachine) and not away["runtime"]:
            for state, count in (await gateway.runtime.spares()).items():
                gateway.metrics.gauge("node_spares", count, state=state)
            for state, size in (await gateway.runtime.room()).items():
                gateway.metrics.gauge("node_disk_bytes", size, state=state)
    return gateway.metrics.render()


async def _parts(gateway: Gateway, limit_s: float = _READY_S) -> dict[str, str]:
    """Each part that the gateway needs, with its problem or an empty text."""

    async def answers(part: Any) -> str:
        try:
            async with asyncio.timeout(limit_s):
                await part
        except HoldfastError as error:
            return error.message
        except TimeoutError:
            return f"no answer within {limit_s:g} s"
        return ""

    placement, runtime = await asyncio.gather(answers(_records(gateway)), answers(gateway.runtime.ping()))
    return {"placement": placement, "runtime": runtime}


async def _records(gateway: Gateway) -> None:
    await gateway.store.ping()
    if await gateway.store.marker() is None:
        raise RebuildingError
