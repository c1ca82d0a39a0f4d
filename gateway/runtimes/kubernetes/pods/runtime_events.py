"""From pods and their changes to what the runtime tells: sandboxes present, and events.

Pure. Owns the rule that each fact of a sandbox is told once: ready once, leaving once, away once, by comparing two looks at its pod.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Literal

from gateway.model.records import Cause
from gateway.runtimes.base import BecameReady, Event, Leaving, Present, WentAway
from gateway.runtimes.kubernetes.names import pod_name
from gateway.runtimes.kubernetes.settings import KubernetesSettings

from .creation import endpoint_of
from .status import DELETED, Facts, Trouble, gone_cause

_READY_TIMEOUT = "holdfast/ready_timeout_s"
_SKEW_S = 30.0
"""How much later it is that nobody makes a pod any more: clocks differ, and whoever makes it is to say why it is late. Till then what
limits a sandbox is its record, on the store's clock; this is for pods that have none."""
_LATE = Cause("ready-timeout", "infrastructure", "it never became ready")


def present_of(facts: Facts, now: float, settings: KubernetesSettings) -> Present | None:
    """The sandbox a pod is; None once it goes because we said so, and for pods that are not ours."""
    record = facts.record
    if record is None or facts.asked:
        return None
    trouble = _failed(facts, now, settings)
    if facts.pool and facts.profile != settings.sandbox_profile:
        trouble = Trouble(
            "sandbox_failed", Cause("deleted", "infrastructure", f"a spare of the profile {facts.profile}, no longer in force")
        )
    if trouble is None and not (facts.started and facts.ip):
        late_s = _number(record.labels.get(_READY_TIMEOUT))
        if late_s is not None and now - facts.created_at >= late_s + _SKEW_S:
            trouble = Trouble("create_timeout", _LATE)
    return Present(
        sandbox_id=record.sandbox_id,
        incarnation=record.incarnation,
        owner=record.owner,
        image=record.image,
        endpoint=endpoint_of(facts) if facts.ip else "",
        created_at=facts.created_at,
        cores=record.cores,
        memory_bytes=record.memory_bytes,
        labels=record.labels,
        state=_state(facts) if trouble is None else "failed",
        cause=None if trouble is None else trouble.cause,
        egress=record.egress,
        options=record.options,
        adopted=facts.name != pod_name(record.sandbox_id),
    )


def _state(facts: Facts) -> Literal["starting", "ready"]:
    """The kubelet says that the agent listens up to a second after whoever made it knows: it is there before, and may yet fail."""
    return "ready" if is_ready(facts) else "starting"


def is_ready(facts: Facts) -> bool:
    """It has an address, and its agent listens there (the startup probe)."""
    return facts.ready and bool(facts.ip)


def on_change(now_facts: Facts, before: Facts | None, settings: KubernetesSettings) -> list[Event]:
    """What is new in the later of two looks at the same pod."""
    record = now_facts.record
    if record is None or now_facts.asked:
        return []
    now = time.time()
    events: list[Event] = []
    id_, incarnation = record.sandbox_id, record.incarnation
    trouble, was = _failed(now_facts, now, settings), None if before is None else before.ended()
    if trouble is not None:
        return [] if was is not None else [WentAway(id_, incarnation, trouble.cause)]
    adopted = before is not None and before.record is not None and before.record.sandbox_id != id_
    if is_ready(now_facts) and (adopted or before is None or not is_ready(before)):
        events.append(BecameReady(id_, incarnation))
    if _leaving(now_facts) and (before is None or not _leaving(before)):
        cause = now_facts.disruption or replace(DELETED, message="its pod is being deleted by somebody else")
        events.append(Leaving(id_, incarnation, cause, now_facts.deadline or now + settings.grace_s))
    return events


def carried(now: Facts, before: Facts) -> Facts:
    """``now`` with what only the look before shows: a kubelet removes what has ended without grace, whatever grace our delete had."""
    return replace(now, asked=True) if before.asked and not now.asked else now


def on_vanish(last: Facts, before: Facts | None = None) -> list[Event]:
    """A pod is gone; ``before`` is the look before the last. One that had ended before was told then.

    A kubelet removes what has ended without grace, whatever grace the delete had: whether that was ours is seen in the look before.
    """
    if before is not None and before.uid == last.uid and before.asked:
        last = replace(last, asked=True)
    if last.record is None or (last.ended() is not None and not last.asked and (before is None or before.ended() is not None)):
        return []
    if last.trouble is not None and last.trouble.kind == "bundle" and not last.started:
        return []  # its maker removed it, and makes the same sandbox again
    return [WentAway(last.record.sandbox_id, last.record.incarnation, gone_cause(last))]


def _leaving(facts: Facts) -> bool:
    return facts.disruption is not None or facts.deadline is not None


def _failed(facts: Facts, now: float, settings: KubernetesSettings) -> Trouble | None:
    return facts.failed(now, pull_patience_s=settings.pull_patience_s, schedule_patience_s=settings.unschedulable_patience_s)


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None
