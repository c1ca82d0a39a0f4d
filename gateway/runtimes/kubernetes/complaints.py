"""What the kubelet says about a pod that does not come up: events, for what the pod's own status never tells.

Owns the asking and which complaints end a create: a volume whose secret or config map is not there keeps a pod waiting for ever without a
word in its status. Asked only about pods that are slow, and never needed: without the right to read events nothing is known. Called by
``creating``.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from .client import Api, ApiError
from .facts import Facts, Trouble, missing_object
from .settings import KubernetesSettings

log = logging.getLogger("gateway.kubernetes")

_MOST = 50
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class Complaint:
    """The newest that is worth telling, and the trouble where it is one that waiting will not mend."""

    text: str = ""
    trouble: Trouble | None = None


async def ask(api: Api, settings: KubernetesSettings, facts: Facts) -> Complaint:
    """What is complained of about this very pod. Never raises for an API server that refuses or is away."""
    selector = f"involvedObject.uid={facts.uid},type=Warning"
    try:
        found = await api.get(f"/api/v1/namespaces/{settings.namespace}/events", {"fieldSelector": selector, "limit": str(_MOST)})
    except ApiError as error:
        log.info("events cannot be read: %s", error)
        return Complaint()
    events = sorted(found.get("items") or [], key=_seen_at)
    for event in reversed(events):
        trouble = missing_object(str(event.get("message") or "")) if event.get("reason") == "FailedMount" else None
        if trouble is not None:
            return Complaint(trouble.cause.message, trouble)
    text = "".join(c if c.isprintable() else " " for c in str(events[-1].get("message") or ""))[:_SHOWN] if events else ""
    return Complaint(f"{events[-1].get('reason')}: {text}" if events else "")


def _seen_at(event: dict[str, Any]) -> str:
    """RFC 3339 in UTC, so that texts sort as moments do."""
    return str(event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp") or "")
