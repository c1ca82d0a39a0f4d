"""From pods and their changes to the runtime's answers: statuses of sandboxes, and events.

Pure. Owns the rule that each event of a sandbox is sent once (leaving, gone), by comparing two states of its pod.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Literal

from gateway.model.records import Cause
from gateway.runtimes.base import EndAnnounced, Event, SandboxEnded, SandboxStatus
from gateway.runtimes.kubernetes.names import pod_name
from gateway.runtimes.kubernetes.settings import KubernetesSettings

from .creation import endpoint_of
from .failures import Failure
from .status import DELETED, PodStatus, gone_cause

_SKEW_S = 30.0
"""Margin after a pod's ready timeout: clocks differ, and the replica that creates the pod should report why it is late. The record's
own timeout, on the store's clock, comes first; this one is for pods without a record."""
_LATE = Cause("ready-timeout", "infrastructure", "the sandbox was not ready in time")


def status_of(facts: PodStatus, now: float, settings: KubernetesSettings) -> SandboxStatus | None:
    """The status of the sandbox in a pod; None once it is being deleted by us, and for pods that are not ours."""
    record = facts.record
    if record is None or facts.deletion_requested:
        return None
    failure = facts.failed(now, settings)
    if facts.pool and facts.profile != settings.sandbox_profile:
        failure = Failure(
            "sandbox_failed", Cause("deleted", "infrastructure", f"a spare of the profile {facts.profile}, no longer in force")
        )
    if failure is None and not (facts.started and facts.ip) and now - facts.created_at >= record.ready_timeout_s + _SKEW_S:
        failure = Failure("create_timeout", _LATE)
    # The kubelet reports the passed startup probe up to a second after the creator has reached the agent.
    state: Literal["starting", "ready"] = "ready" if facts.ready and facts.ip else "starting"
    return SandboxStatus(
        record,
        endpoint=endpoint_of(facts) if facts.ip else "",
        created_at=facts.created_at,
        state=state if failure is None else "failed",
        cause=None if failure is None else failure.cause,
        adopted=facts.name != pod_name(record.sandbox_id),
    )


def on_change(now_facts: PodStatus, before: PodStatus | None, settings: KubernetesSettings) -> list[Event]:
    """The events between two states of the same pod."""
    record = now_facts.record
    if record is None or now_facts.deletion_requested:
        return []
    now = time.time()
    id_, incarnation = record.sandbox_id, record.incarnation
    failure, was = now_facts.failed(now, settings), None if before is None else before.ended()
    if failure is not None:
        return [] if was is not None else [SandboxEnded(id_, incarnation, failure.cause)]
    if not _leaving(now_facts) or (before is not None and _leaving(before)):
        return []
    cause = now_facts.disruption or replace(DELETED, message="the sandbox's pod is being deleted by another client")
    return [EndAnnounced(id_, incarnation, cause, now_facts.deadline or now + settings.grace_s)]


def carried(now: PodStatus, before: PodStatus) -> PodStatus:
    """``now``, with the grace period of the previous state: a kubelet removes ended pods with grace 0, whatever our delete named."""
    return replace(now, deletion_requested=True) if before.deletion_requested and not now.deletion_requested else now


def on_vanish(last: PodStatus, before: PodStatus | None = None) -> list[Event]:
    """The events of a deleted pod; ``before`` is the state before the last. A pod that had ended before was reported then."""
    if last.record is None or (last.ended() is not None and not last.deletion_requested and (before is None or before.ended() is not None)):
        return []
    if last.failure is not None and last.failure.kind == "bundle" and not last.started:
        return []  # the replica that created the pod removed it, and creates the sandbox again
    return [SandboxEnded(last.record.sandbox_id, last.record.incarnation, gone_cause(last))]


def _leaving(facts: PodStatus) -> bool:
    return facts.disruption is not None or facts.deadline is not None
