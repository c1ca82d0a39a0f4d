"""The network probe: does the network enforce policies? Two pods that differ in nothing but a policy are compared.

Owns the probe: a listener, a pod with no allowance that must not reach it, and a pod with an allowance for exactly the listener that
must. Only when both behave as expected is the network trusted: a broken one refuses both. The verdict is stored with the listener's
policy (``probe_pods``), so that one controller probes and every replica reads; creates wait for it, and are refused after a leak.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from dataclasses import dataclass
from typing import Any

from holdfast_wire.errors import HoldfastError

from gateway.model.options import Egress
from gateway.runtimes.base import RuntimeUnavailableError
from gateway.runtimes.kubernetes.api.client import Api, ApiError
from gateway.runtimes.kubernetes.names import COMPONENT, ROLE
from gateway.runtimes.kubernetes.network import needs
from gateway.runtimes.kubernetes.pods.json_fields import moment
from gateway.runtimes.kubernetes.pods.profiles import CONFINED
from gateway.runtimes.kubernetes.settings import KubernetesSettings

from .probe_pods import LIFE_S, PROBE_LABELS, isolate, probe_pod, read_verdict, write_verdict

log = logging.getLogger("gateway.kubernetes")

_NAME = "hf-canary"
_VERDICT = "holdfast.dev/canary"
_CONCLUSIVE = "holdfast.dev/canary-conclusive"
_PORT = 8718
_USER = 1000
_TRIES = 20
_WAIT_S = 90.0
_REMEMBERED_S = 1.0
"""How old the verdict of a create may be: this costs one small request a second and replica, while there are creates."""
_CREATE_WAIT_S = 45.0
"""Longest wait of a create for the first verdict. A probe takes 10 to 20 s where nodes have the bundle's image."""
_POLL_S = 0.5
_RETRY_AFTER_S = 5
_PROBE_EVERY_S = 6 * 3600.0
_PROBE_AGAIN_S = 20.0
"""After a probe that found a leak: a network may still be starting, and creates are refused until a probe finds that it was repaired."""
_PROBES, _PROBE_PAUSE_S = 5, 5.0
"""Without a verdict every create waits for one, so an inconclusive probe (no room, an image being pulled) is repeated soon."""
_LISTEN = (
    "import socket\n"
    f"s = socket.create_server(('', {_PORT}), family=socket.AF_INET6, dualstack_ipv6=True) if socket.has_dualstack_ipv6() "
    f"else socket.create_server(('', {_PORT}))\n"
    "while True: s.accept()[0].close()\n"
)
_REACH = """
import socket, sys, time
reached, refused = 0, 0
for n in range({tries}):
    try:
        socket.create_connection(({host!r}, {port}), 2).close()
        reached, refused = reached + 1, 0
        if {enough} and reached:
            sys.exit(40)
    except OSError:
        refused += 1
        if not {enough} and refused == 3:
            break
    time.sleep(0.5)
sys.exit((42 if reached else 41) if refused else 40)
"""
_REACHED, _NOT_REACHED, _REACHED_AT_FIRST = 40, 41, 42
"""Exit status of a probe. Network plugins program a new pod's policies while it starts: the final state counts."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """``holds``: the declared level is enforced. ``leaks``: it is proven not to be; with neither the probe is inconclusive."""

    holds: bool
    detail: str
    at: float
    leaks: bool = False

    @property
    def conclusive(self) -> bool:
        return self.holds or self.leaks


async def known(api: Api, settings: KubernetesSettings) -> Verdict | None:
    """The last verdict, or None. Raises ``ApiError``."""
    return await read_verdict(api, settings, _NAME, Verdict, _VERDICT)


async def found(api: Api, settings: KubernetesSettings) -> Verdict | None:
    """The last conclusive verdict, else the last one. Raises ``ApiError``."""
    return await read_verdict(api, settings, _NAME, Verdict, _CONCLUSIVE, _VERDICT)


async def probe(api: Api, settings: KubernetesSettings, wait_s: float = _WAIT_S) -> Verdict:
    """Probe, and store the verdict. Takes a few seconds and creates three pods, which it removes. Raises ``ApiError``."""
    await _ensure_policies(api, settings)
    await _sweep(api, settings)
    run = secrets.token_hex(4)
    names = [f"{_NAME}-{role}-{run}" for role in ("listener", "closed", "open")]
    pods = settings.pods_path
    try:
        async with asyncio.timeout(wait_s):
            await api.post(pods, _pod(names[0], "listener", _LISTEN, settings))
            listener = await _until(api, f"{pods}/{names[0]}", lambda status: status.get("podIP") if _running(status) else None)
            for name, role in zip(names[1:], ("closed", "open"), strict=True):
                script = _REACH.format(tries=_TRIES, host=listener, port=_PORT, enough=role == "open")
                await api.post(pods, _pod(name, role, script, settings))
            closed, opened = [await _until(api, f"{pods}/{name}", _exit_code) for name in names[1:]]
        verdict = _judge(int(closed), int(opened), time.time())
    except TimeoutError:
        verdict = Verdict(False, f"the probe did not finish within {wait_s:g} s", time.time())
    finally:
        for name in names:
            with contextlib.suppress(ApiError):  # the pods end by themselves (activeDeadlineSeconds)
                await api.remove(f"{pods}/{name}", 0)
    await store_verdict(api, settings, verdict)
    return verdict


async def store_verdict(api: Api, settings: KubernetesSettings, verdict: Verdict) -> None:
    """Store a verdict where every replica reads it. Raises ``ApiError``."""
    await _ensure_policies(api, settings)
    # An inconclusive probe, on a full cluster for example, does not overwrite a conclusive verdict.
    names = (_VERDICT, _CONCLUSIVE) if verdict.conclusive else (_VERDICT,)
    await write_verdict(api, settings, _NAME, verdict, *names)


def _judge(closed: int, opened: int, now: float) -> Verdict:
    if opened != _REACHED:
        return Verdict(False, "a pod that is allowed to reach the listener did not: the probe is inconclusive", now)
    if closed == _REACHED:
        return Verdict(False, "a pod that is not allowed to reach the listener did: policies are not enforced", now, leaks=True)
    if closed in (_NOT_REACHED, _REACHED_AT_FIRST):
        late = " (after its first moments: policies of a new pod come into force late here)" if closed == _REACHED_AT_FIRST else ""
        return Verdict(True, f"a pod that is not allowed to reach the listener did not{late}, one that is did", now)
    return Verdict(False, f"the probe ended with status {closed}", now)


async def _sweep(api: Api, settings: KubernetesSettings) -> None:
    """Remove what a killed prober left: such pods end by themselves, but their objects would remain."""
    probes = ",".join(f"{name}={value}" for name, value in PROBE_LABELS.items())
    async for pod in api.each(settings.pods_path, {"labelSelector": probes}, page=settings.page):
        if time.time() - moment(pod["metadata"].get("creationTimestamp")) > LIFE_S:
            with contextlib.suppress(ApiError):
                await api.remove(f"{settings.pods_path}/{pod['metadata']['name']}", 0)


async def _ensure_policies(api: Api, settings: KubernetesSettings) -> None:
    """For probe pods only: the listener accepts their connections, the open one may connect; the closed one is under default-deny."""
    probes = {"podSelector": {"matchLabels": {COMPONENT: "canary"}}}
    listener, opened = ({"matchLabels": {COMPONENT: "canary", ROLE: role}} for role in ("listener", "open"))
    ports = [{"protocol": "TCP", "port": _PORT}]
    accept = {"podSelector": listener, "policyTypes": ["Ingress"], "ingress": [{"from": [probes], "ports": ports}]}
    reach = {"podSelector": opened, "policyTypes": ["Egress"], "egress": [{"to": [{"podSelector": listener}], "ports": ports}]}
    await isolate(api, settings, _NAME, accept)
    await isolate(api, settings, f"{_NAME}-open", reach)


def _pod(name: str, role: str, script: str, settings: KubernetesSettings) -> dict[str, Any]:
    user = {"runAsNonRoot": True, "runAsUser": settings.user or _USER, "seccompProfile": {"type": "RuntimeDefault"}}
    return probe_pod(name, role, script, settings, user, CONFINED)


async def _until(api: Api, path: str, look: Any) -> Any:
    while True:
        found = look((await api.get(path)).get("status") or {})
        if found is not None:
            return found
        await asyncio.sleep(0.5)


def _running(status: dict[str, Any]) -> bool:
    return any("running" in (one.get("state") or {}) for one in status.get("containerStatuses") or [])


def _exit_code(status: dict[str, Any]) -> int | None:
    for one in status.get("containerStatuses") or []:
        ended = (one.get("state") or {}).get("terminated")
        if ended:
            return int(ended.get("exitCode", -1))
    return -1 if status.get("phase") == "Failed" else None


class EnforcementGuard:
    """Whether network isolation is trusted: refuses sandboxes that must be isolated while isolation has not been proven.

    Declaring isolation does not provide it, so without a verdict they wait for one, for a bounded time. The controller probes; gateways
    read its verdict at most a second after it was written.
    """

    def __init__(self, api: Api, settings: KubernetesSettings) -> None:
        self._api = api
        self._settings = settings
        self._lock = asyncio.Lock()
        self._verdict: Verdict | None = None
        self._asked_at = float("-inf")

    async def check(self, egress: Egress, wait_s: float = _CREATE_WAIT_S) -> None:
        """Return once a probe has shown that the restrictions of this egress, if it has any, are enforced.

        Raises ``unsupported`` if a probe has shown that they are not, ``RuntimeUnavailableError`` if there is no verdict in time, and
        ``ApiError`` if no verdict is known and none can be read.
        """
        if self._settings.enforcement == "none" or needs(egress) == "none":
            return
        clock = asyncio.get_running_loop().time
        end = clock() + min(wait_s, _CREATE_WAIT_S)
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

    async def _newest(self) -> Verdict | None:
        """A recent verdict; the last known one while the API server is down."""
        async with self._lock:
            clock = asyncio.get_running_loop().time
            stale_s = _REMEMBERED_S if self._verdict is not None and self._verdict.conclusive else min(_POLL_S / 2, _REMEMBERED_S)
            if clock() - self._asked_at >= stale_s:
                try:
                    self._verdict = await found(self._api, self._settings)
                except ApiError as error:
                    if self._verdict is None or not self._verdict.conclusive:
                        raise
                    log.info("the verdict of the network probe cannot be read: %s", error.message)
                self._asked_at = clock()
            return self._verdict

    async def probe_when_due(self) -> Verdict | None:
        """Probe if that is due; returns the verdict of a new probe, else None. Called by the acting controller."""
        if self._settings.enforcement == "none":
            return None
        last = await found(self._api, self._settings)
        known = last is not None and last.conclusive
        if last is not None and known and time.time() - last.at < (_PROBE_EVERY_S if last.holds else _PROBE_AGAIN_S):
            return None
        for _ in range(_PROBES):
            verdict = await self._probe()
            if known or verdict.conclusive:
                break
            await asyncio.sleep(_PROBE_PAUSE_S)
        return verdict

    async def leaks(self, probed: Verdict | None) -> bool:
        """Whether sandboxes are to be ended because two probes in a row found that nothing isolates them.

        One such probe refuses creates; ending running sandboxes needs a second. ``probed`` is what ``probe_when_due`` answered.
        """
        if probed is None or not probed.leaks:
            return False
        return (await self._probe()).leaks

    async def _probe(self) -> Verdict:
        verdict = await probe(self._api, self._settings)
        log.log(logging.INFO if verdict.holds else logging.ERROR, "network enforcement: %s", verdict.detail)
        if verdict.conclusive:
            self._verdict, self._asked_at = verdict, asyncio.get_running_loop().time()
        return verdict
