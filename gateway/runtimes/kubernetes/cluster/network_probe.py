"""The network probe: does the network enforce policies? Two pods that differ in nothing but a policy are compared.

Owns the probe: a listener, a pod with no allowance that must not reach it, and a pod with an allowance for exactly the listener that
must. Only when both behave as expected is the network trusted: a broken one refuses both. The verdict is stored with the listener's
policy (``probe_pods``), so that one controller probes and every replica reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from dataclasses import asdict, dataclass
from typing import Any

from gateway.runtimes.kubernetes.api.client import Api, ApiError
from gateway.runtimes.kubernetes.names import COMPONENT, ROLE
from gateway.runtimes.kubernetes.pods.json_fields import moment
from gateway.runtimes.kubernetes.pods.profiles import CONFINED
from gateway.runtimes.kubernetes.settings import KubernetesSettings

from .probe_pods import CANARIES, LIFE_S, isolate, probe_pod, read_verdict, store_verdict

_NAME = "hf-canary"
_VERDICT = "holdfast.dev/canary"
_CONCLUSIVE = "holdfast.dev/canary-conclusive"
_PORT = 8718
_USER = 1000
_TRIES = 20
_WAIT_S = 90.0
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
    """The last verdict, None where there is none. Raises ``ApiError``."""
    return await _noted(api, settings, _VERDICT)


async def found(api: Api, settings: KubernetesSettings) -> Verdict | None:
    """The last conclusive verdict, else the last one. Raises ``ApiError``."""
    return await _noted(api, settings, _CONCLUSIVE, _VERDICT)


async def _noted(api: Api, settings: KubernetesSettings, *names: str) -> Verdict | None:
    stored = await read_verdict(api, settings, _NAME, *names)
    try:
        return Verdict(**stored) if stored is not None else None
    except TypeError:
        return None


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
    await note(api, settings, verdict)
    return verdict


async def note(api: Api, settings: KubernetesSettings, verdict: Verdict) -> None:
    """Store a verdict where every replica reads it. Raises ``ApiError``."""
    await _ensure_policies(api, settings)
    # An inconclusive probe, on a full cluster for example, does not overwrite a conclusive verdict.
    names = (_VERDICT, _CONCLUSIVE) if verdict.conclusive else (_VERDICT,)
    await store_verdict(api, settings, _NAME, asdict(verdict), *names)


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
    canaries = ",".join(f"{name}={value}" for name, value in CANARIES.items())
    async for pod in api.each(settings.pods_path, {"labelSelector": canaries}, page=settings.page):
        if time.time() - moment(pod["metadata"].get("creationTimestamp")) > LIFE_S:
            with contextlib.suppress(ApiError):
                await api.remove(f"{settings.pods_path}/{pod['metadata']['name']}", 0)


async def _ensure_policies(api: Api, settings: KubernetesSettings) -> None:
    """For probe pods only: the listener accepts their connections, the open one may connect; the closed one is under default-deny."""
    canaries = {"podSelector": {"matchLabels": {COMPONENT: "canary"}}}
    listener, opened = ({"matchLabels": {COMPONENT: "canary", ROLE: role}} for role in ("listener", "open"))
    ports = [{"protocol": "TCP", "port": _PORT}]
    accept = {"podSelector": listener, "policyTypes": ["Ingress"], "ingress": [{"from": [canaries], "ports": ports}]}
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
