"""What nodes provide, as seen by probe pods: a user namespace of the pod, and the bundle as an image volume.

Owns two probe pods, which are configured as sandboxes are and report what they find, and the verdict, stored in an annotation of the
policy that isolates them: the acting controller probes, and every gateway reads. Versions prove neither: a kubelet, a container runtime
or a file system may lack what the API server accepts. Called by ``runtime``, ``injection`` and ``doctor``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import orjson
from holdfast_wire.bundle import MOUNT

from gateway.runtimes.kubernetes.api.client import Api, ApiError
from gateway.runtimes.kubernetes.names import BUNDLE_VOLUME, COMPONENT, ROLE
from gateway.runtimes.kubernetes.pods.failures import needs_users
from gateway.runtimes.kubernetes.pods.pod_events import warnings_of
from gateway.runtimes.kubernetes.pods.profiles import confinement, no_user_namespaces
from gateway.runtimes.kubernetes.pods.status import read_pod
from gateway.runtimes.kubernetes.settings import KubernetesSettings

from .probe_pods import isolate, probe_pod, read_verdict, write_verdict

log = logging.getLogger("gateway.kubernetes")

NAME = "hf-canary-nodes"
VERDICT = "holdfast.dev/nodes"
_VOLUME_AT = "/probe"
_WAIT_S = 60.0
_LOOK_S = 0.5
_MESSAGE = 600
"""A container runtime names the cause at the end of a long message."""
_REMEMBERED_S, _LOOK_AGAIN_S = 60.0, 2.0
"""How long a gateway uses a verdict; a missing or negative one is read again sooner."""
_PROBE_EVERY_S, _PROBE_AGAIN_S = 6 * 3600.0, 60.0
"""Nodes of another kind may join; after an incomplete or negative verdict it is probed again sooner."""
_SCRIPT = f"""
import json, os
with open("/proc/self/uid_map") as file:
    uid_map = file.read(4096)
found = {{"uid_map": uid_map, "volume": os.access("{_VOLUME_AT}/lib/ld.so", os.X_OK)}}
with open("/dev/termination-log", "w") as file:
    file.write(json.dumps(found))
"""
_ALL_IDS = 2**32 - 1


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """``users``: a pod under this profile gets a user namespace; ``volume``: a part of an image can be mounted. None: unknown."""

    profile: str
    at: float
    users: bool | None = None
    users_why: str = ""
    volume: bool | None = None
    volume_why: str = ""


async def known(api: Api, settings: KubernetesSettings) -> NodeVerdict | None:
    """The last verdict under the current profile, or None. Raises ``ApiError``."""
    seen = await read_verdict(api, settings, NAME, NodeVerdict, VERDICT)
    return seen if seen is not None and seen.profile == settings.sandbox_profile else None


async def probe(api: Api, settings: KubernetesSettings, wait_s: float = _WAIT_S) -> NodeVerdict:
    """Probe, and store the verdict. Takes a few seconds and creates at most two pods, which it removes. Raises ``ApiError``.

    An inconclusive probe (no room, a quota) does not overwrite what was known, unless that refuses sandboxes. Where the API server fails
    one of the pods, the verdict of the other is stored, and the probe is still due.
    """
    await _ensure_policy(api, settings)
    last = await known(api, settings) or NodeVerdict(settings.sandbox_profile, 0.0)
    if settings.bundle_injection != "auto":
        last = replace(last, volume=None, volume_why="")
    users, volume = await asyncio.gather(
        _look(api, settings, False, wait_s) if settings.sandbox_profile == "userns" else _not_asked(),
        _look(api, settings, True, wait_s) if settings.bundle_injection == "auto" else _not_asked(),
        return_exceptions=True,
    )
    failed = next((one for one in (users, volume) if isinstance(one, BaseException)), None)
    seen = replace(last, at=time.time() if failed is None else last.at)
    if not isinstance(users, BaseException) and (users[0] is not None or not last.users):
        seen = replace(seen, users=users[0], users_why=users[1])
    if not isinstance(volume, BaseException) and (volume[0] is not None or last.volume is None):
        seen = replace(seen, volume=volume[0], volume_why=volume[1])
    await write_verdict(api, settings, NAME, seen, VERDICT)
    if failed is not None:
        raise failed
    return seen


class NodeProbes:
    """The last verdict about the nodes, cached for a while."""

    def __init__(self, api: Api, settings: KubernetesSettings) -> None:
        self._api = api
        self._settings = settings
        self._lock = asyncio.Lock()
        self._seen: NodeVerdict | None = None
        self._good_until = float("-inf")

    async def check(self) -> None:
        """Raise ``unsupported`` where a probe has seen that nodes cannot run sandboxes of this profile."""
        if self._settings.sandbox_profile != "userns":
            return
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if now >= self._good_until:
                try:
                    self._seen = await known(self._api, self._settings)
                except ApiError as error:
                    log.info("the verdict of the node probes cannot be read: %s", error.message)
                good = self._seen is not None and self._seen.users
                self._good_until = now + (_REMEMBERED_S if good else _LOOK_AGAIN_S)
        if self._seen is not None and self._seen.users is False:
            raise no_user_namespaces(self._seen.users_why)

    async def probe_when_due(self) -> NodeVerdict | None:
        """Probe if that is due; returns the verdict of a new probe, else None. Called by the acting controller. Raises ``ApiError``."""
        settings = self._settings
        if settings.sandbox_profile != "userns" and settings.bundle_injection != "auto":
            return None
        last = await known(self._api, settings)
        sure = last is not None and last.users is not False and (last.users is not None or settings.sandbox_profile != "userns")
        wait_s = _PROBE_EVERY_S if sure and last is not None and last.volume is not None else _PROBE_AGAIN_S
        if last is not None and time.time() - last.at < wait_s:
            return None
        seen = await probe(self._api, settings)
        if seen.users is False:
            log.error("sandbox profile %s: no user namespaces: %s", settings.sandbox_profile, seen.users_why)
        log.info("nodes: user namespace %s, image volume %s", _word(seen.users, seen.users_why), _word(seen.volume, seen.volume_why))
        return seen

    async def reject_volumes(self, why: str) -> None:
        """A sandbox did not find the bundle in its image volume: store that for all, until the next probe. Never raises ``ApiError``."""
        try:
            await _ensure_policy(self._api, self._settings)
            last = await known(self._api, self._settings) or NodeVerdict(self._settings.sandbox_profile, 0.0)
            seen = replace(last, volume=False, volume_why=why[:_MESSAGE])
            await write_verdict(self._api, self._settings, NAME, seen, VERDICT)
        except ApiError as error:
            log.warning("the verdict that image volumes do not work could not be stored: %s", error.message)


def _word(verdict: bool | None, why: str) -> str:
    return f"{'not known' if verdict is None else 'yes' if verdict else 'no'}{f' ({why})' if why else ''}"


async def _not_asked() -> tuple[bool | None, str]:
    return None, ""


async def _look(api: Api, settings: KubernetesSettings, volume: bool, wait_s: float) -> tuple[bool | None, str]:
    """One probe pod's verdict, and its reason."""
    pods = settings.pods_path
    name = f"{NAME}-{'volume' if volume else 'users'}-{secrets.token_hex(4)}"
    try:
        pod = await api.post(pods, node_probe_pod(name, settings, volume))
    except ApiError as error:
        if error.is_temporary:
            raise
        refused = volume and error.status in (400, 422) and "volume" in error.text
        return False if refused else None, f"the API server refused the probe: {error.text[:_MESSAGE]}"
    try:
        if not volume and pod["spec"].get("hostUsers") is not False:
            return False, "the API server drops hostUsers: its feature gate UserNamespacesSupport is off"
        judge = _volume_of if volume else _users_of
        async with asyncio.timeout(wait_s):
            while True:
                verdict = judge(pod) or (None if volume else await _refusal(api, settings, pod))
                if verdict is not None:
                    return verdict
                await asyncio.sleep(_LOOK_S)
                pod = await api.get(f"{pods}/{name}")
    except TimeoutError:
        return None, f"the probe was not over within {wait_s:g} s: {read_pod(pod).stage}"
    except ApiError as error:
        if error.status != 404:
            raise
        return None, "the probe was removed before it was over"
    finally:
        with contextlib.suppress(ApiError):  # such a pod has a time limit (activeDeadlineSeconds)
            await api.remove(f"{pods}/{name}", 0)


async def _refusal(api: Api, settings: KubernetesSettings, pod: dict[str, Any]) -> tuple[bool | None, str] | None:
    """The kubelet keeps trying to start a pod whose user namespace it cannot create: only events report it."""
    facts = read_pod(pod)
    if not facts.placed or facts.started:
        return None
    text = next((text for text in await warnings_of(api, settings, facts) if needs_users(text)), None)
    return None if text is None else (False, f"a node refused a probe: {text[:_MESSAGE]}")


def _users_of(pod: dict[str, Any]) -> tuple[bool | None, str] | None:
    return _verdict(
        pod, lambda report: _own_users(str(report.get("uid_map", ""))), "a pod that requested a user namespace is in the node's"
    )


def _volume_of(pod: dict[str, Any]) -> tuple[bool | None, str] | None:
    found = _verdict(pod, lambda report: report.get("volume") is True, "a probe did not find the bundle in its image volume")
    failure = read_pod(pod).failure
    started = failure is None or failure.cause.reason != "start-failed"
    return found if found is None or started else (False, found[1])


def _verdict(pod: dict[str, Any], good: Callable[[dict[str, Any]], bool], why: str) -> tuple[bool | None, str] | None:
    """What a finished pod reported, None while it runs."""
    for one in (pod.get("status") or {}).get("containerStatuses") or []:
        ended = (one.get("state") or {}).get("terminated") or {}
        try:
            report = orjson.loads(ended.get("message") or "")
        except orjson.JSONDecodeError:
            continue
        if isinstance(report, dict):
            return (True, "") if good(report) else (False, why)
    facts = read_pod(pod)
    failure = facts.failure if facts.failure is not None and facts.failure.kind in ("", "bundle") else None
    if failure is None:
        return None
    return False if failure.code == "unsupported" else None, f"the probe failed: {failure.cause.message}"[:_MESSAGE]


def _own_users(uid_map: str) -> bool:
    """Whether ids inside map to other ids outside: the initial namespace maps each id to itself."""
    rows = [tuple(map(int, line.split())) for line in uid_map.splitlines() if len(line.split()) == 3]
    return bool(rows) and (0, 0, _ALL_IDS) not in rows


def node_probe_pod(name: str, settings: KubernetesSettings, volume: bool) -> dict[str, Any]:
    """Configured as sandboxes are in what matters: profile, nodes, runtime class."""
    confined = confinement(settings)
    pod = probe_pod(name, "volume" if volume else "users", _SCRIPT, settings, confined.pod, confined.container)
    if confined.own_users:
        pod["spec"]["hostUsers"] = False
    if volume:
        image = {"reference": settings.bundle_image, "pullPolicy": settings.pull_policy}
        mount = {"name": BUNDLE_VOLUME, "mountPath": _VOLUME_AT, "subPath": MOUNT.lstrip("/"), "readOnly": True}
        pod["spec"]["volumes"] = [{"name": BUNDLE_VOLUME, "image": image}]
        pod["spec"]["containers"][0]["volumeMounts"] = [mount]
    return pod


async def _ensure_policy(api: Api, settings: KubernetesSettings) -> None:
    """The probes may reach nothing; the verdict is stored with this policy."""
    roles = {"key": ROLE, "operator": "In", "values": ["users", "volume"]}
    selector = {"matchLabels": {COMPONENT: "canary"}, "matchExpressions": [roles]}
    await isolate(api, settings, NAME, {"podSelector": selector, "policyTypes": ["Ingress", "Egress"]})
