"""What is to be done so that records and runtime agree: a pure function, called on everything there is.

Owns the rules of evidence. A sandbox is only removed, or called lost, when the store says so and is known to be whole, when it is past
the grace, when the pass before saw the same, and at most a tenth of all in one pass (but at least one). A sandbox the store does not
know is never removed for that: its record is written again. One exception: a runtime that says it began with nothing at some moment
has lost what was ready before, all of it, and that is recorded at once. Called by ``reconciler``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gateway.model.records import Cause, Record, Tombstone
from gateway.runtimes.base import Present

_SHARE = 10
_PENDING_GRACES = 5
"""A sandbox that is being made is given up when nobody has noted for this many times the grace that it still is."""

NODE_LOST = Cause("node-lost", "infrastructure", "the runtime no longer has it")
CREATE_LOST = Cause("create-lost", "infrastructure", "it was never made: whoever was making it is gone")


@dataclass(frozen=True, slots=True)
class MarkReady:
    """The runtime has it; whoever made it did not get to say so."""

    sandbox_id: str
    incarnation: str
    endpoint: str


@dataclass(frozen=True, slots=True)
class MarkFailed:
    """It has ended without being asked to."""

    sandbox_id: str
    incarnation: str
    cause: Cause


@dataclass(frozen=True, slots=True)
class Rebuild:
    """The store lost its record."""

    present: Present


@dataclass(frozen=True, slots=True)
class Remove:
    """Its record has ended; what is left of it in the runtime goes."""

    sandbox_id: str
    incarnation: str


Action = MarkReady | MarkFailed | Rebuild | Remove


@dataclass(frozen=True, slots=True)
class Plan:
    """``actions`` are for now; ``suspects`` are what this pass would do if the next one still thinks so."""

    actions: list[Action]
    suspects: frozenset[Action]


def plan(
    records: Mapping[str, Record],
    presents: Iterable[Present],
    tombstones: Mapping[str, Tombstone],
    *,
    now: float,
    grace_s: float,
    whole: bool,
    suspects: frozenset[Action] = frozenset(),
    began_at: float | None = None,
) -> Plan:
    """``whole``: the store is known to have lost nothing. ``suspects`` are the previous pass's. ``began_at``: see ``Synced``."""
    actions: list[Action] = []
    doubtful: list[Action] = []
    there = {(present.sandbox_id, present.incarnation): present for present in presents}
    ids = {sandbox_id for sandbox_id, _ in there}
    for present in there.values():
        _judge_present(present, records.get(present.sandbox_id), tombstones.get(present.sandbox_id), now, grace_s, actions, doubtful)
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


def _judge_present(
    present: Present,
    record: Record | None,
    tombstone: Tombstone | None,
    now: float,
    grace_s: float,
    actions: list[Action],
    doubtful: list[Action],
) -> None:
    over = False  # whether the store says that it has ended
    if record is None:
        over = present.state == "failed" or (tombstone is not None and tombstone.incarnation == present.incarnation)
        if not over and present.state == "ready":
            actions.append(Rebuild(present))
    elif record.incarnation != present.incarnation:
        over = now - record.created_at > grace_s
    elif record.status == "failed":
        over = True
    elif present.state == "failed":
        actions.append(MarkFailed(record.sandbox_id, record.incarnation, present.cause or NODE_LOST))
    elif record.status == "pending" and present.state == "ready" and not present.adopted:
        actions.append(MarkReady(record.sandbox_id, record.incarnation, present.endpoint))
    if over and now - present.created_at > grace_s:
        doubtful.append(Remove(present.sandbox_id, present.incarnation))


def _judge_absent(record: Record, now: float, grace_s: float, doubtful: list[Action]) -> None:
    if record.status == "ready" and now - max(record.created_at, record.ready_at or 0.0) > grace_s:
        doubtful.append(MarkFailed(record.sandbox_id, record.incarnation, NODE_LOST))
    elif record.status == "pending" and now - max(record.created_at, record.active_at or 0.0) > _PENDING_GRACES * grace_s:
        doubtful.append(MarkFailed(record.sandbox_id, record.incarnation, CREATE_LOST))
