"""Steps by name, and the decoding of Redis' answers: the base of every part of ``store``.

Owns the loading of the ``.lua`` files and the translation of hashes into records. Does not own which keys a step needs.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, Final, cast

import orjson

from gateway.model.documents import read_spec
from gateway.model.records import Cause, Entry, Fault, Paused, PlannedEnd, Record, SandboxSpec, Tombstone
from gateway.settings import PlacementSettings

from .errors import UnreadableError
from .redis_connection import Argument, RedisConnection, Script, load_script

Arguments = list[Argument | None]
"""None is sent as ''."""
_VERSIONED: Final = ("inc", "status", "labels", "life", "idle", "hb", "egress", "paused", "leaving", "reason")
"""What a version of a record depends on: ``version`` in ``common.lua`` has the same."""
_MOMENTS: Final = ("created", "ready", "active", "ended", "life", "expires", "leaving")


class RedisSteps:
    """A connection, and the scripts that run on it."""

    def __init__(self, settings: PlacementSettings) -> None:
        self._redis = RedisConnection(settings)

    def steps(self) -> int:
        """A number that rises with each change of one sandbox that this replica makes."""
        return self._redis.steps

    async def _run(self, name: str, keys_: list[str], arguments: Arguments) -> Any:
        """Run a step. Raises ``FencedError`` if the step has a term and a newer controller is the leader."""
        return await self._redis.run(script(name), keys_, ["" if one is None else one for one in arguments])


@functools.cache
def script(name: str) -> Script:
    return load_script(name)


def ms(seconds: float) -> int:
    return round(seconds * 1000)


def maybe_ms(seconds: float | None) -> int | None:
    return None if seconds is None else ms(seconds)


def as_fields(answer: list[str]) -> dict[str, str]:
    """A hash as Redis returns it: alternating names and values."""
    return dict(zip(answer[::2], answer[1::2], strict=True))


def as_moment(text: str) -> float | None:
    return int(text) / 1000 if text else None


def as_entry(sandbox_id: str, outcome: str, answer: list[str]) -> Entry:
    if outcome == "record":
        return as_record(answer)
    if outcome == "tombstone":
        return as_tombstone(sandbox_id, answer)
    return None


def as_record(answer: list[str]) -> Record:
    """Raises ``UnreadableError`` where the hash is not a record."""
    try:
        return _record(as_fields(answer))
    except (KeyError, TypeError, ValueError) as error:
        raise UnreadableError from error


def _record(fields: dict[str, str]) -> Record:
    created, ready, active, ended, life, expires, leaving = [int(text) / 1000 if text else None for text in map(fields.get, _MOMENTS)]
    cause = announced = None
    if fields.get("reason"):
        cause = Cause(fields["reason"], cast(Fault, fields["fault"]), fields["message"])
    if leaving is not None:
        why = Cause(fields["leaving_reason"], cast(Fault, fields["leaving_fault"]), fields["leaving_message"])
        announced = PlannedEnd(why, leaving)
    return Record(
        spec=_spec(fields),
        status=fields["status"],  # type: ignore[arg-type]
        created_at=created or 0.0,
        endpoint=fields.get("endpoint", ""),
        ready_at=ready,
        active_at=active,
        ended_at=ended,
        lifetime_s=life,
        expires_at=expires,
        cause=cause,
        leaving=announced,
        begun_at=as_moment(fields["begun"]) if "begun" in fields else created,
        paused=cast(Paused, fields.get("paused", "")),
        state="\0".join([fields.get(name, "") for name in _VERSIONED]),
    )


def _spec(fields: dict[str, str]) -> SandboxSpec:
    """What was requested, with what was changed since."""
    spec = read_spec(fields["doc"], fields.get("egress", ""))
    if "changed" not in fields:
        return spec
    labels = orjson.loads(fields["labels"]) if "labels" in fields else spec.labels
    if not isinstance(labels, dict):
        raise ValueError("labels are not a map")
    return replace(spec, labels=labels, idle_timeout_s=as_moment(fields["idle"]), heartbeat_timeout_s=as_moment(fields["hb"]))


def as_tombstone(sandbox_id: str, answer: list[str]) -> Tombstone:
    fields = as_fields(answer)
    try:
        cause = Cause(fields["reason"], cast(Fault, fields["fault"]), fields["message"], fields.get("by", ""))
        return Tombstone(sandbox_id, fields["owner"], fields["inc"], cause, as_moment(fields["ended"]) or 0.0)
    except (KeyError, ValueError) as error:
        raise UnreadableError from error
