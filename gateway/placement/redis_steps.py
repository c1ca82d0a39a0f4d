"""Steps by name, and the decoding of Redis' answers: the base of every part of ``store``.

Owns the loading of the ``.lua`` files and the translation of hashes into records. Does not own which keys a step needs.
"""

from __future__ import annotations

import functools
from itertools import chain
from typing import Any, Final, cast

from gateway.model.records import Cause, Entry, Fault, Leaving, Record, Status, Tombstone
from gateway.settings import PlacementSettings

from .documents import read_spec
from .errors import FencedError, UnreadableError
from .redis_connection import Argument, RedisConnection, Script, load_script

_KNOWN: Final = 1024
"""Records that are kept as they were read, by the bytes they were read from."""
_KNOWN_BYTES: Final = 8 * 1024
"""Larger ones are not kept."""


class RedisSteps:
    """A connection, and the scripts that run on it."""

    def __init__(self, settings: PlacementSettings) -> None:
        self._redis = RedisConnection(settings)

    async def _run(self, name: str, keys_: list[str], arguments: list[Argument]) -> Any:
        return await self._redis.run(script(name), keys_, arguments)


@functools.cache
def script(name: str) -> Script:
    return load_script(name)


def ms(seconds: float) -> int:
    return round(seconds * 1000)


def as_text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def as_fields(answer: Any) -> dict[str, str]:
    """A hash as Redis answers it: a flat list from scripts, a map or a list from HGETALL."""
    if isinstance(answer, dict):
        return {as_text(name): as_text(value) for name, value in answer.items()}
    return {as_text(answer[i]): as_text(answer[i + 1]) for i in range(0, len(answer), 2)}


def as_moment(text: str) -> float | None:
    return int(text) / 1000 if text else None


def as_entry(sandbox_id: str, outcome: bytes, fields: Any) -> Entry:
    if outcome == b"record":
        return as_record(as_fields(fields))
    if outcome == b"tombstone":
        return as_tombstone(sandbox_id, as_fields(fields))
    if outcome == b"fenced":
        raise FencedError
    return None


def as_record(fields: dict[str, str]) -> Record:
    """Raises ``UnreadableError`` where the hash is not a record."""
    try:
        return _record(fields)
    except (KeyError, TypeError, ValueError) as error:
        raise UnreadableError from error


def as_known_record(answer: Any) -> Record:
    """As ``as_record``, of a hash as Redis answers it. Most requests find the record as the one before found it: it is read once."""
    flat = tuple(chain.from_iterable(answer.items())) if isinstance(answer, dict) else tuple(answer)
    if sum(map(len, flat)) > _KNOWN_BYTES:
        return as_record(as_fields(answer))
    return _known_record(flat)


@functools.lru_cache(_KNOWN)
def _known_record(flat: tuple[bytes | str, ...]) -> Record:
    return as_record(as_fields(flat))


def _record(fields: dict[str, str]) -> Record:
    cause = None
    if fields["reason"]:
        cause = Cause(fields["reason"], cast(Fault, fields["fault"]), fields["message"])
    return Record(
        spec=read_spec(fields["doc"], fields.get("egress", "")),
        status=cast(Status, fields["status"]),
        created_at=as_moment(fields["created"]) or 0.0,
        endpoint=fields["endpoint"],
        ready_at=as_moment(fields["ready"]),
        active_at=as_moment(fields.get("active", "")),
        ended_at=as_moment(fields["ended"]),
        lifetime_s=as_moment(fields.get("life", "")),
        expires_at=as_moment(fields.get("expires", "")),
        cause=cause,
        leaving=_leaving(fields),
        begun_at=as_moment(fields.get("begun", fields["created"])),
    )


def _leaving(fields: dict[str, str]) -> Leaving | None:
    deadline = as_moment(fields.get("leaving", ""))
    if deadline is None:
        return None
    return Leaving(Cause(fields["leaving_reason"], cast(Fault, fields["leaving_fault"]), fields["leaving_message"]), deadline)


def as_tombstone(sandbox_id: str, fields: dict[str, str]) -> Tombstone:
    try:
        cause = Cause(fields["reason"], cast(Fault, fields["fault"]), fields["message"])
        return Tombstone(sandbox_id, fields["owner"], fields["inc"], cause, as_moment(fields["ended"]) or 0.0)
    except (KeyError, ValueError) as error:
        raise UnreadableError from error
