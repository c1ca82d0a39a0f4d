"""The actions that make records and runtime agree: a pure function of both lists.

Owns the conditions under which a sandbox may be ended. It is removed or declared lost only when the store shows that and is known to be
complete, when it is older than the grace period, when the previous pass saw the same, and at most a tenth of all in one pass (but at
least one). A sandbox that the store does not know is never removed for that: its record is written again. One exception: a runtime that
reports an empty start at some time has lost every sandbox that was ready before, which is recorded at once. Called by ``reconciler``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gateway.model.records import Cause, Paused, Record, Tombstone
from gateway.runtimes.base import SandboxStatus

_SHARE = 10
_PENDING_GRACES = 5
"""A sandbox that is being created is given up when no replica has renewed that for this many times the grace period."""

NODE_LOST = Cause("node-lost", "infrastructure", "the runtime no longer has the sandbox")
CREATE_LOST = Cause("create-lost", "infrastructure", "the sandbox was never created: the gateway replica that was creating it has ended")


@dataclass(frozen=True, slots=True)
class MarkReady:
    """Record that a sandbox is ready: the runtime has it, but the replica that created it did not record that."""

    sandbox_id: str
    incarnation: str
    endpoint: str


@dataclass(frozen=True, slots=True)
class MarkFailed:
    """Record that a sandbox has ended without a request."""

    sandbox_id: str
    incarnation: str
    cause: Cause


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Write the record of a sandbox again, which the store has lost, in whatever state the sandbox is."""

    sandbox: SandboxStatus


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove from the runtime a sandbox that has ended according to the store."""

    sandbox_id: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class MarkPaused:
    """Record whether a sandbox is paused: the gateway that paused or resumed it has ended before it did."""

    sandbox_id: str
    incarnation: str
    paused: Paused


Action = MarkPaused | MarkReady | MarkFailed | Rebuild | Remove


@dataclass(frozen=True, slots=True)
class Plan:
    """``actions`` are due now; ``suspects`` become actions if the next pass sees the same."""

    actions: list[Action]
    suspects: frozenset[Action]


def plan(
    records: Mapping[str, Record],
    statuses: Iterable[SandboxStatus],
    tombstones: Mapping[str, Tombstone],
    *,
    now: float,
    grace_s: float,
    whole: bool,
    suspects: frozenset[Action] = frozenset(),
    began_at: float | None = None,
) -> Plan:
    """``whole``: the store is known to be complete. ``suspects`` are the previous pass's. ``began_at``: see ``Synced``."""
    actions: list[Action] = []
    doubtful: list[Action] = []
    there = {(sandbox.sandbox_id, sandbox.incarnation): sandbox for sandbox in statuses}
    ids = {sandbox_id for sandbox_id, _ in there}
    for sandbox in there.values():
        _judge_sandbox(sandbox, records.get(sandbox.sandbox_id), tombstones.get(sandbox.sandbox_id), now, grace_s, actions, doubtful)
    for record in records.values():
        its = there.get((record.sandbox_id, record.incarnation))
        if its is None or (record.status == "pending" and its.adopted):
            if record.sandbox_id not in ids and record.status == "ready" and began_at is not None and (record.ready_at or now) < began_at:
                actions.append(MarkFailed(record.sandbox_id, record.incarnation, NODE_LOST))
            else:
                _judge_absent(record, now, grace_s, doubtful)
    if not whole:
        return Plan(actions, frozenset())
    certain = [action for action in doubtful if action in suspects]
    most = max(1, max(len(records), len(there)) // _SHARE)
    return Plan(actions + certain[:most], frozenset(doubtful) - frozenset(certain[:most]))


def _judge_sandbox(
    sandbox: SandboxStatus,
    record: Record | None,
    tombstone: Tombstone | None,
    now: float,
    grace_s: float,
    actions: list[Action],
    doubtful: list[Action],
) -> None:
    over = False  # whether the sandbox has ended according to the store
    if record is None:
        over = tombstone is not None and tombstone.incarnation == sandbox.incarnation
        if not over:
            actions.append(Rebuild(sandbox))
    elif record.incarnation != sandbox.incarnation:
        over = now - record.created_at > grace_s
    elif record.status == "failed":
        over = True
    elif sandbox.state == "failed":
        actions.append(MarkFailed(record.sandbox_id, record.incarnation, sandbox.cause or NODE_LOST))
    elif record.status == "pending" and sandbox.state == "ready" and not sandbox.adopted:
        actions.append(MarkReady(record.sandbox_id, record.incarnation, sandbox.endpoint))
    elif record.status == "ready" and sandbox.state == "ready" and sandbox.paused != record.paused:
        doubtful.append(MarkPaused(record.sandbox_id, record.incarnation, sandbox.paused))
    if over and now - sandbox.created_at > grace_s:
        doubtful.append(Remove(sandbox.sandbox_id, sandbox.incarnation))


def _judge_absent(record: Record, now: float, grace_s: float, doubtful: list[Action]) -> None:
    if record.status == "ready" and now - max(record.created_at, record.ready_at or 0.0) > grace_s:
        doubtful.append(MarkFailed(record.sandbox_id, record.incarnation, NODE_LOST))
    elif record.status == "pending" and now - max(record.created_at, record.active_at or 0.0) > _PENDING_GRACES * grace_s:
        doubtful.append(MarkFailed(record.sandbox_id, record.incarnation, CREATE_LOST))
