"""The events of an owner's sandboxes: what changed, as it happens or since a position.

Owns which events a filter passes, their form, and how many streams one owner may have. Those of sandboxes' lives come from placement, those
of what happens in them, on request, from their agents (``followed``); no command and no session waits for either. Called by faces.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast_wire.errors import HoldfastError

from gateway.agents.activity_reports import FIELDS
from gateway.identity.principal import Principal
from gateway.model.records import Cause, Record, SandboxSpec, Tombstone
from gateway.model.selectors import Selector, selects
from gateway.placement.change_feed import Batch
from gateway.placement.keys import SHARDS

from .followed import Activity, Followed
from .service import Gateway

KINDS: Final = frozenset(
    {"created", "ready", "paused", "leaving", "failed", "deleted", "gap", "files_changed", "pull", *FIELDS} - {"output", "input", "resized"}
)
"""The names of all events."""
LEAST_USAGE_S: Final = 1.0
STREAMS_PER_OWNER: Final = 1000
MOST_SINCE_S: Final = 3600.0
"""What ended longer ago may have no record any more (``tombstone_ttl_s``)."""
_POSITION: Final = re.compile(r"[0-9]{1,16}(-[0-9]{1,16})?")


@dataclass(frozen=True, slots=True)
class Filter:
    """All that is given has to match."""

    sandboxes: frozenset[str] = frozenset()
    """Names."""
    group: str = ""
    labels: Selector = ()
    kinds: frozenset[str] = frozenset()
    """The names of the events; "gap" always passes."""

    def passes(self, entry: Record | Tombstone) -> bool:
        """Whether an entry matches. The end of a sandbox passes every filter of labels and groups: its record has them no more."""
        if self.sandboxes and entry.name not in self.sandboxes:
            return False
        if isinstance(entry, Tombstone):
            return True
        spec = entry.spec
        return self.group in ("", spec.group) and selects(self.labels, spec.labels)


@dataclass(frozen=True, slots=True)
class Events:
    """Some events, ``name`` and facts of each, and the position after them. ``answers``: whether the store does, when this has changed."""

    position: str
    events: Sequence[tuple[str, dict[str, Any]]]
    answers: bool | None = None


def position_of(text: str) -> list[str] | None:
    """The position that an event's id is; None if it is none, as after an upgrade."""
    found = text.split(".")
    return found if len(found) == SHARDS and all(_POSITION.fullmatch(one) for one in found) else None


async def follow(
    gateway: Gateway,
    principal: Principal,
    wanted: Filter,
    last_id: str,
    since_s: float | None = None,
    activity: Activity | None = None,
) -> AsyncIterator[Events]:
    """The owner's events after the event ``last_id``; without one, those of the last ``since_s`` seconds, else from now on.

    The first item has the position, and the events before it. Every change comes at least once. Where changes may be missing, a
    ``gap`` comes: then list the sandboxes again. Raises ``session_limit``, and ``placement_unavailable`` before the first item.
    """
    if gateway.feed.of_owner(principal.owner) >= STREAMS_PER_OWNER:
        raise HoldfastError("session_limit", f"this owner has {STREAMS_PER_OWNER} streams of events on this replica")
    follower = gateway.feed.follow(principal.owner)
    last_id, _, moment = last_id.partition("~")
    followed = None if activity is None else Followed(gateway, follower, activity, wanted.passes, _age(moment))
    try:
        cursor = position_of(last_id) if last_id else None
        if not last_id and since_s is not None:
            cursor = [f"@{round(since_s * 1000)}"] * SHARDS
        batch = await gateway.feed.since(principal.owner, cursor)
        if last_id and cursor is None:
            batch = Batch(batch.cursor, (), "the id of the last event is not one of this service")
        follower.cursor = follower.cursor or batch.cursor
        if followed is not None:
            await followed.begin()
        yield _events(batch, wanted, followed)
        while True:
            batch = await follower.next()
            if followed is not None:
                followed.changed(batch.entries)
            found = _events(batch, wanted, followed)
            if found.events or found.answers is not None:
                yield found
    finally:
        gateway.feed.leave(follower)
        if followed is not None:
            followed.close()


def _age(moment: str) -> float | None:
    """How many seconds ago a stream had everything of the agents that it could have; None if it is a new one."""
    return max(time.time() - int(moment) / 1000, 0.0) if moment.isdigit() and len(moment) < 16 else None


def _events(batch: Batch, wanted: Filter, followed: Followed | None) -> Events:
    found: list[tuple[str, dict[str, Any]]] = [("gap", {"message": batch.gap})] if batch.gap else []
    found += sorted((_event(entry) for entry in batch.entries if wanted.passes(entry)), key=lambda event: float(event[1]["time"]))
    found += [(fact["type"], {name: value for name, value in fact.items() if name not in ("type", "n")}) for fact in batch.facts]
    found = [one for one in found if not wanted.kinds or one[0] == "gap" or one[0] in wanted.kinds]
    position = ".".join(batch.cursor)
    return Events(position if followed is None else f"{position}~{int(time.time() * 1000)}", found, batch.answers)


def example(name: str) -> dict[str, Any]:
    """An event of that name, for its fields."""
    if name == "gap":
        return {"message": ""}
    if name == "files_changed":
        return dict.fromkeys(("sandbox_id", "time", "changes"))
    if name == "pull":
        return dict.fromkeys(("time", "name", "state", "received_bytes", "error"))
    entry = Tombstone("", "", "", Cause("", "caller"), 0.0) if name == "deleted" else Record(SandboxSpec("", "", "", ""), "ready", 0.0)
    return _event(entry)[1]


def _event(entry: Record | Tombstone) -> tuple[str, dict[str, Any]]:
    if isinstance(entry, Tombstone):
        facts: dict[str, Any] = {"sandbox_id": entry.name, "time": entry.ended_at}
        cause = entry.cause
        return "deleted", {**facts, "reason": cause.reason, "fault": cause.fault, "message": cause.message}
    spec = entry.spec
    cause_ = entry.cause or (entry.leaving.cause if entry.leaving else None)
    facts = {
        "sandbox_id": entry.name,
        "time": entry.ended_at or entry.ready_at or entry.created_at,
        "image": spec.image,
        "labels": spec.labels,
        "group": spec.group or None,
        "parent": spec.parent or None,
        "turn": spec.turn,
        "paused": entry.paused or None,
        "created_at": entry.created_at,
        "ready_at": entry.ready_at,
        "reason": cause_.reason if cause_ else None,
        "fault": cause_.fault if cause_ else None,
        "message": cause_.message if cause_ else None,
    }
    if entry.status == "ready":
        return "leaving" if entry.leaving else "paused" if entry.paused else "ready", facts
    return "created" if entry.status == "pending" else "failed", facts
