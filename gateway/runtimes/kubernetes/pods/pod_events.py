"""Events of pods that do not start: they have causes that the pod's status lacks.

Owns the queries, and which events fail a create. A volume whose secret or config map is missing keeps a pod waiting for ever with nothing
in its status, and a failed image pull appears in an event ten seconds before it appears in the status. One watch delivers the warnings of
all pods (``pod_watch``); the events of a pod that stays slow are queried now and then. Without the right to read events this reports
nothing. Called by ``creation`` and ``pod_watch``, and by ``cluster.images`` for the pods that pull an image in advance.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from gateway.runtimes.kubernetes.api.client import Api, ApiError
from gateway.runtimes.kubernetes.settings import KubernetesSettings

from .failures import Failure, event_failure, user_namespace_failure
from .status import PodStatus

log = logging.getLogger("gateway.kubernetes")

WARNINGS = "type=Warning,involvedObject.kind=Pod"
"""Field selector of the events that ``read_warning`` reads."""
_MOST = 50
_MOST_OF_ALL = 1000
_MESSAGE = 2000
_NO_SANDBOX = "FailedCreatePodSandBox"
_REASONS = ("Failed", "InspectFailed", "ErrImageNeverPull", "FailedMount", _NO_SANDBOX)
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class PodEvent:
    """The newest event worth reporting, and the failure, where waiting will not resolve it."""

    text: str = ""
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning about a pod that may end its create. ``name`` and ``uid`` are the event's own."""

    name: str
    uid: str
    pod: str
    pod_uid: str
    reason: str
    message: str


def read_warning(event: dict[str, Any]) -> Warned | None:
    """A warning from the API server's JSON; None if it does not concern a create."""
    metadata, pod = event.get("metadata") or {}, event.get("involvedObject") or {}
    if event.get("reason") not in _REASONS:
        return None
    return Warned(
        name=str(metadata.get("name") or ""),
        uid=str(metadata.get("uid") or ""),
        pod=str(pod.get("name") or ""),
        pod_uid=str(pod.get("uid") or ""),
        reason=str(event["reason"]),
        message=str(event.get("message") or "")[:_MESSAGE],
    )


def failure_of(facts: PodStatus, reason: str, message: str) -> Failure | None:
    """What a kubelet's warning about this pod means for its create."""
    failure = user_namespace_failure(message) if facts.own_users and reason == _NO_SANDBOX else None
    return failure or event_failure(reason, message, facts.record.image if facts.record is not None else "", facts.created_at)


async def ask(api: Api, settings: KubernetesSettings, facts: PodStatus) -> PodEvent:
    """The warnings about exactly this pod. Never raises: an API server that refuses or is down yields nothing."""
    events = await _events(api, settings, facts)
    for event in reversed(events):
        failure = failure_of(facts, str(event.get("reason") or ""), str(event.get("message") or ""))
        if failure is not None:
            return PodEvent(failure.cause.message, failure)
    text = "".join(c if c.isprintable() else " " for c in str(events[-1].get("message") or ""))[:_SHOWN] if events else ""
    return PodEvent(f"{events[-1].get('reason')}: {text}" if events else "")


async def warnings_of(api: Api, settings: KubernetesSettings, facts: PodStatus) -> list[str]:
    """The messages of the warnings about this pod, the newest last. Never raises, as ``ask``."""
    return [str(event.get("message") or "") for event in await _events(api, settings, facts)]


async def all_warnings(api: Api, settings: KubernetesSettings) -> list[Warned]:
    """The latest warnings about pods of the namespace. Never raises, as ``ask``."""
    events = await _found(api, settings, WARNINGS, _MOST_OF_ALL)
    return [warned for warned in map(read_warning, events) if warned is not None]


async def _events(api: Api, settings: KubernetesSettings, facts: PodStatus) -> list[dict[str, Any]]:
    return await _found(api, settings, f"involvedObject.uid={facts.uid},type=Warning", _MOST)


async def _found(api: Api, settings: KubernetesSettings, selector: str, most: int) -> list[dict[str, Any]]:
    try:
        found = await api.get(f"/api/v1/namespaces/{settings.namespace}/events", {"fieldSelector": selector, "limit": str(most)})
    except ApiError as error:
        log.info("events cannot be read: %s", error.message)
        return []
    return sorted(found.get("items") or [], key=_seen_at)


def _seen_at(event: dict[str, Any]) -> str:
    """RFC 3339 in UTC, so that texts sort as moments do."""
    return str(event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp") or "")
