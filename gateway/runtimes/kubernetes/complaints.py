"""What the kubelet says about a pod that does not come up: events, for what the pod's own status never tells.

Owns the asking and which complaints end a create: a volume whose secret or config map is not there keeps a pod waiting for ever without a
word in its status, and that an image cannot be pulled stands in an event ten seconds before it does there. Only pods that are slow are
looked after: all together twice a second (``births``), and each by itself now and then. Without the right to read events nothing is known.
Called by ``creating`` and ``births``.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from .client import Api, ApiError
from .facts import Facts, Trouble, event_trouble, no_users
from .settings import KubernetesSettings

log = logging.getLogger("gateway.kubernetes")

_MOST = 50
_MESSAGE = 2000
_NO_SANDBOX = "FailedCreatePodSandBox"
_REASONS = ("Failed", "InspectFailed", "FailedMount", _NO_SANDBOX)
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class Complaint:
    """The newest that is worth telling, and the trouble where it is one that waiting will not mend."""

    text: str = ""
    trouble: Trouble | None = None


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning about a pod that may end its create."""

    pod_uid: str
    reason: str
    message: str


async def warnings(api: Api, pods: str, page: int) -> list[Warned]:
    """Those of all pods of the namespace whose path is given. Raises ``ApiError``."""
    path = f"{pods.rpartition('/')[0]}/events"
    query = {"fieldSelector": "type=Warning,involvedObject.kind=Pod", "limit": str(page)}
    found: list[dict[str, Any]] = []
    while True:
        body = await api.get(path, query)
        found += body.get("items") or []
        query["continue"] = str((body.get("metadata") or {}).get("continue") or "")
        if not query["continue"]:
            break
    wanted = [event for event in sorted(found, key=_seen_at) if event.get("reason") in _REASONS]
    return [
        Warned(str((event.get("involvedObject") or {}).get("uid") or ""), str(event["reason"]), str(event.get("message") or "")[:_MESSAGE])
        for event in wanted
    ]


def trouble_of(facts: Facts, reason: str, message: str) -> Trouble | None:
    """What a kubelet's warning about this pod means for its create."""
    trouble = no_users(message) if facts.own_users and reason == _NO_SANDBOX else None
    return trouble or event_trouble(reason, message, facts.record.image if facts.record is not None else "", facts.created_at)


async def ask(api: Api, settings: KubernetesSettings, facts: Facts) -> Complaint:
    """What is complained of about this very pod. Never raises for an API server that refuses or is away."""
    events = await _events(api, settings, facts)
    for event in reversed(events):
        trouble = trouble_of(facts, str(event.get("reason") or ""), str(event.get("message") or ""))
        if trouble is not None:
            return Complaint(trouble.cause.message, trouble)
    text = "".join(c if c.isprintable() else " " for c in str(events[-1].get("message") or ""))[:_SHOWN] if events else ""
    return Complaint(f"{events[-1].get('reason')}: {text}" if events else "")


async def warnings_of(api: Api, settings: KubernetesSettings, facts: Facts) -> list[str]:
    """The messages of what is complained of about this pod, the newest last. As quiet as ``ask``."""
    return [str(event.get("message") or "") for event in await _events(api, settings, facts)]


async def _events(api: Api, settings: KubernetesSettings, facts: Facts) -> list[dict[str, Any]]:
    selector = f"involvedObject.uid={facts.uid},type=Warning"
    try:
        found = await api.get(f"/api/v1/namespaces/{settings.namespace}/events", {"fieldSelector": selector, "limit": str(_MOST)})
    except ApiError as error:
        log.info("events cannot be read: %s", error)
        return []
    return sorted(found.get("items") or [], key=_seen_at)


def _seen_at(event: dict[str, Any]) -> str:
    """RFC 3339 in UTC, so that texts sort as moments do."""
    return str(event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp") or "")
