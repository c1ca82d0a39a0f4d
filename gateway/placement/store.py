"""The placement store: the records of sandboxes in Redis, which all gateways and controllers share.

Owns the translation between records and hashes, and which step runs on which keys; decides nothing. Every change of a record is one
atomic step (a ``.lua`` file). Every method raises ``PlacementUnavailableError`` when the store is down; each of its steps ends within the
step timeout once it has a connection.
The values are in ``gateway.model.records``, key names in ``keys``, connections and time limits in ``redis_connection``.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Literal, cast

import orjson
from holdfast_wire.errors import HoldfastError

from gateway.model.documents import write_egress, write_spec
from gateway.model.labels import MOST_LABELS
from gateway.model.options import Egress
from gateway.model.records import (
    Cause,
    Change,
    Changes,
    Created,
    Entry,
    Expired,
    Page,
    Paused,
    PlannedEnd,
    Record,
    SandboxSpec,
    Status,
    Tombstone,
)
from gateway.settings import PlacementSettings

from . import keys
from .errors import RebuildingError, UnreadableError
from .keys import SHARDS
from .redis_connection import Argument
from .redis_groups import RedisGroups
from .redis_leadership import RedisLeadership
from .redis_rates import RedisRates
from .redis_recordings import RedisRecordings
from .redis_sign_ins import RedisSignIns
from .redis_spares import RedisSpares
from .redis_steps import Arguments, as_entry, as_record, as_tombstone, maybe_ms, ms, script
from .redis_tenants import RedisTenants

log = logging.getLogger("gateway.placement")

Rebuilt = Literal["rebuilt", "known", "dead", "deleted", "complete"]
"""What ``rebuild`` did. It wrote nothing where a record exists (``known``), where this incarnation has ended (``dead``), or where no record
is missing (``complete``). Where the owner has deleted the id meanwhile it left a tombstone (``deleted``)."""
Updated = Literal["ok", "version", "labels"]
"""What ``update`` did: what was requested, or nothing because the record has another version, or would have too many labels."""
AskIdle = Callable[[Record], Awaitable[float | None]]
"""Asks a sandbox's agent for how many seconds it has been idle; see ``expire``."""

_SCAN_COUNT = 500
_DUE = 1000
"""Most sandboxes that one call finds due: more than wait for an agent's answer at a time."""
_DELETED_KEPT_S = 600.0
"""How long a delete of an id that is not known is remembered: longer than records are rebuilt and creations go on."""
_LOOK_AT = 1000
"""Most records that one listing request reads, whatever its filter leaves of them."""


class PlacementStore(RedisSpares, RedisGroups, RedisLeadership, RedisRecordings, RedisSignIns, RedisTenants, RedisRates):
    """One per process. ``tests/conformance/placement.py`` is its contract."""

    def __init__(self, settings: PlacementSettings) -> None:
        super().__init__(settings)
        self._tombstone_ms = ms(settings.tombstone_ttl_s)
        self._idempotency_ms = ms(settings.idempotency_ttl_s)

    # Gateway ------------------------------------------------------------------------------------------------------

    async def create(
        self,
        spec: SandboxSpec,
        *,
        fingerprint: str,
        idempotency_key: str | None = None,
        used_before: bool = False,
        exclusive: bool = False,
        queued: bool = False,
    ) -> Created:
        """Reserve ``spec.sandbox_id``; ``used_before``: the id may have been used before; ``queued``: see ``begin``.

        A repeated request gets the sandbox that exists. It is recognised by owner, id and fingerprint; a record that was rebuilt after a
        wipe has no fingerprint, and any request of the owner with an idempotency key gets it. With ``exclusive`` only the same key gets an
        existing sandbox, and no request gets a rebuilt one. Raises ``idempotency_conflict`` (the key was
        used for another request), ``sandbox_exists`` (the id belongs to another request), or ``RebuildingError`` (it is not known
        whether it was used).
        """
        id_ = spec.sandbox_id
        shard = keys.shard_of(id_)
        # A key that is the id, or gives it, belongs to one id: what it was used for is stored beside that sandbox, in the same step.
        derived = idempotency_key is not None and spec.name in (idempotency_key, derived_id(spec.owner, idempotency_key))
        if idempotency_key is not None and not derived:
            claim = keys.claimed_key(spec.owner, idempotency_key)
            _, prior = await self._redis.many([("SET", claim, fingerprint, "NX", "PX", self._idempotency_ms), ("GET", claim)])
            if prior is not None and prior != fingerprint:
                raise _idempotency_conflict()
        record, tombstone, due, _, changes = _five(id_)
        if idempotency_key is not None:
            spec = replace(spec, request=_request_id(idempotency_key))
        request = spec.request or spec.incarnation
        found = [record, tombstone, keys.idempotency(id_), due, keys.owned(shard, spec.owner), keys.marker(shard), changes]
        found += [keys.cancelled(id_, spec.owner, spec.request), keys.deleted(id_, spec.owner)]
        arguments: Arguments = [id_, spec.owner, spec.incarnation, fingerprint, write_spec(spec), ms(spec.ready_timeout_s)]
        arguments += _clocks(spec)
        arguments += [self._idempotency_ms if derived else None, self._tombstone_ms, int(used_before), int(idempotency_key is not None)]
        outcome, fields = await self._run("create", found, [*arguments, request, int(exclusive), int(queued)])
        if outcome == "conflict":
            raise _idempotency_conflict()
        if outcome == "cancelled":
            raise HoldfastError("sandbox_gone", f"the creation of sandbox {spec.name!r} was cancelled", fault="caller", reason="deleted")
        if outcome == "forgotten":
            raise RebuildingError
        if outcome == "taken":
            raise HoldfastError("sandbox_exists", f"the sandbox id {spec.name!r} is taken")
        if outcome == "in use":
            hint = "exist_ok=True shares the sandbox that is there; else choose another sandbox_id, or leave it out"
            raise HoldfastError("sandbox_exists", f"the sandbox id {spec.name!r} is in use", hint=hint)
        entry = as_entry(id_, "record" if outcome == "fresh" else outcome, fields)
        assert entry is not None
        return Created(entry, outcome == "fresh")

    async def _entry(self, step: str, sandbox_id: str, found: list[str], arguments: Arguments) -> Entry:
        """Run a step that answers the entry as it stands."""
        outcome, fields = await self._run(step, found, arguments)
        return as_entry(sandbox_id, outcome, fields)

    async def get(self, sandbox_id: str) -> Entry:
        """What is known about the id; the caller checks its owner."""
        found = await self._redis.command("HGETALL", keys.record(sandbox_id))
        if found:
            return as_record(found)
        # A record may have come or gone since: both keys at one moment.
        return await self._entry("get", sandbox_id, _five(sandbox_id)[:2], [])

    async def begin(self, sandbox_id: str, incarnation: str) -> Entry:
        """The creation of a queued sandbox begins. The answer is the resulting entry; nothing changes for another incarnation."""
        return await self._entry("begin", sandbox_id, _five(sandbox_id)[:2], [incarnation])

    async def mark_ready(self, sandbox_id: str, incarnation: str, endpoint: str, *, term: int | None = None) -> Entry:
        """pending → ready. The answer is the resulting entry; nothing changes for another incarnation."""
        return await self._entry("ready", sandbox_id, _five(sandbox_id), [sandbox_id, incarnation, endpoint, self._tombstone_ms, term])

    async def mark_failed(
        self, sandbox_id: str, incarnation: str, cause: Cause, *, was: Status | None = None, term: int | None = None
    ) -> Entry:
        """pending or ready → failed, kept with its cause; with ``was``, only from that. Nothing changes for another incarnation."""
        why = [cause.reason, cause.fault, cause.message]
        return await self._entry("fail", sandbox_id, _five(sandbox_id), [sandbox_id, incarnation, *why, self._tombstone_ms, term, was])

    async def mark_leaving(self, sandbox_id: str, incarnation: str, leaving: PlannedEnd, *, term: int) -> Entry:
        """Record that a sandbox will end soon. Its end is then attributed to that cause, unless the workload ended first."""
        cause, at = leaving.cause, ms(leaving.deadline)
        why = ["leaving_reason", cause.reason, "leaving_fault", cause.fault, "leaving_message", cause.message]
        return await self._set(sandbox_id, [incarnation, term, "leaving", at, *why])

    async def mark_egress(self, sandbox_id: str, incarnation: str, egress: Egress) -> Entry:
        """Store the network access of a sandbox. Nothing changes for another incarnation."""
        return await self._set(sandbox_id, [incarnation, None, "egress", write_egress(egress)])

    async def _set(self, sandbox_id: str, arguments: Arguments) -> Entry:
        found = [*_five(sandbox_id)[:2], keys.term(keys.shard_of(sandbox_id))]
        return await self._entry("set", sandbox_id, found, arguments)

    async def change_lifetime(self, sandbox_id: str, owner: str, *, from_now_s: float | None = None, longer_s: float = 0.0) -> Entry:
        """Set the end to ``from_now_s`` seconds from now, or ``longer_s`` later than planned (no effect without a lifetime)."""
        arguments: Arguments = [sandbox_id, owner, maybe_ms(from_now_s), ms(longer_s), self._tombstone_ms]
        return await self._entry("lifetime", sandbox_id, _five(sandbox_id)[:3], arguments)

    async def update(self, sandbox_id: str, owner: str, change: Change, version: str = "") -> tuple[Entry, Updated]:
        """Change labels and limits, unless the record has another ``version``, or would have too many labels.

        Nothing changes for another owner, nor for a sandbox that has failed.
        """
        labels = "" if change.labels is None else orjson.dumps(change.labels)
        arguments: Arguments = [sandbox_id, owner, self._tombstone_ms, version, labels, maybe_ms(change.lifetime_s)]
        arguments += [maybe_ms(one) for one in (change.longer_s, change.idle_timeout_s, change.heartbeat_timeout_s)]
        outcome, fields, updated = await self._run("update", _five(sandbox_id)[:3], [*arguments, MOST_LABELS])
        return as_entry(sandbox_id, outcome, fields), cast(Updated, updated)

    async def mark_paused(self, sandbox_id: str, incarnation: str, paused: Paused) -> Entry:
        """Store whether a sandbox is paused. None of its limits runs out meanwhile. Nothing changes for another incarnation."""
        return await self._entry("pause", sandbox_id, _five(sandbox_id), [sandbox_id, incarnation, paused, self._tombstone_ms])

    async def heartbeat(self, sandbox_id: str, owner: str, *, used: bool = True) -> Entry:
        """Record a heartbeat, and whether it counts as use; never creates anything. Another owner's sandbox is None."""
        arguments: Arguments = [sandbox_id, owner, "1", self._tombstone_ms, 0 if used else None]
        found = await self._entry("touch", sandbox_id, _five(sandbox_id)[:3], arguments)
        return found if found is not None and found.owner == owner else None

    async def touch(self, sandbox_ids: Iterable[str], ago_s: float = 0.0) -> None:
        """Record that the sandboxes were in use ``ago_s`` seconds ago, unless a later time is stored. Unknown ids are ignored."""
        await self._redis.run_many(
            script("touch"),
            [(_five(id_)[:3], [id_, "", "", self._tombstone_ms, ms(ago_s)]) for id_ in sandbox_ids],
        )

    async def delete(
        self,
        sandbox_id: str,
        cause: Cause,
        *,
        owner: str | None = None,
        incarnation: str | None = None,
        forget: bool = False,
        term: int | None = None,
        cancelled_key: str | None = None,
    ) -> Entry:
        """Remove the record and leave a tombstone (none with ``forget``, which also frees the idempotency key).

        With ``cancelled_key`` only a record that was created under it is removed, and a ``create`` under it that comes later raises
        ``sandbox_gone``. While it is not known whether the id is in use
        (``knows``), the owner's request is remembered, and carried out when the record is written again.

        The answer is the record that was removed, the tombstone that was there already, or None.
        """
        if owner is None:
            found = await self.get(sandbox_id)
            if not isinstance(found, Record):
                return found
            owner, incarnation = found.owner, incarnation or found.incarnation
        record, tombstone, due, term_key, changes = _five(sandbox_id)
        owned = keys.owned(keys.shard_of(sandbox_id), owner)
        request = None if cancelled_key is None else _request_id(cancelled_key)
        why = [cause.reason, cause.fault, cause.message]
        outcome, fields = await self._run(
            "delete",
            [
                *(record, tombstone, keys.idempotency(sandbox_id), due, owned, term_key, changes),
                keys.cancelled(sandbox_id, owner, request or ""),
                *_completeness(sandbox_id),
                keys.deleted(sandbox_id, owner),
            ],
            [
                *(sandbox_id, owner, incarnation, *why, self._tombstone_ms, int(forget), term),
                *(request, cause.by, ms(_DELETED_KEPT_S)),
            ],
        )
        if outcome == "record":
            return None  # another owner's, incarnation or request: for this caller it does not exist
        found = as_entry(sandbox_id, "record" if outcome == "deleted" else outcome, fields)
        return found if found is not None and found.owner == owner else None

    async def list_owned(self, owner: str, *, cursor: str | None = None, limit: int = 100) -> Page:
        """A page of the owner's records. Stable under change: what exists throughout is seen exactly once."""
        shard, after = _read_cursor(cursor)
        found: list[str] = []
        looks = min(max(limit, 1), _LOOK_AT)
        while shard < SHARDS and len(found) < looks:
            # The first shard of a page continues after an id; the others start from the beginning, so they can be read together.
            group = range(shard, min(shard + 16, SHARDS))
            answers = await self._redis.many(
                [("ZRANGEBYLEX", keys.owned(s, owner), f"({after}" if after and s == shard else "-", "+", "LIMIT", 0, looks) for s in group]
            )
            for s, ids in zip(group, answers, strict=True):
                room = looks - len(found)
                found += ids[:room]
                if len(ids) >= room:
                    return Page(await self.records(found), f"{s}:{found[-1]}" if found else None)
            shard, after = group.stop, ""
        return Page(await self.records(found), None)

    async def list_everyone(self, *, cursor: str | None = None, limit: int = 100) -> Page:
        """A page of all owners' records, of ``limit`` or somewhat more, in no order. What exists throughout is in one page, or in two."""
        shard, position = (0, "0") if not cursor else _read_cursor(cursor)
        if not position.isascii() or not position.isdecimal():
            raise _wrong_cursor()
        ids: list[str] = []
        while shard < SHARDS and len(ids) < limit:
            position, members = await self._redis.command("ZSCAN", keys.due(shard), position, "COUNT", max(limit - len(ids), 10))
            ids += members[::2]
            if not int(position):
                shard, position = shard + 1, "0"
        return Page(await self.records(dict.fromkeys(ids)), f"{shard}:{position}" if shard < SHARDS else None)

    async def ping(self) -> None:
        """Raises when the store is down."""
        await self._redis.command("SET", keys.probe(), 1, "PX", 1000)  # a store that answers may still refuse writes

    async def aclose(self) -> None:
        await self._redis.aclose()

    # Controller ---------------------------------------------------------------------------------------------------

    async def due(self) -> list[str]:
        """Some sandboxes whose time ran out, or whose record has to be looked at for that."""
        seconds, micros = await self._redis.command("TIME")
        now = int(seconds) * 1000 + int(micros) // 1000
        answers = await self._redis.many([("ZRANGEBYSCORE", keys.due(shard), "-inf", now, "LIMIT", 0, _DUE) for shard in range(SHARDS)])
        return [id_ for answer in answers for id_ in answer][:_DUE]

    async def expire(self, sandbox_id: str, term: int, ask: AskIdle | None = None) -> Expired | None:
        """End a sandbox whose time ran out, atomically and re-checked; None if it goes on.

        ``ask`` is called before one ends for being idle: for how many seconds it has been (None: unknown for ever). It may raise
        ``HoldfastError``; then the sandbox is left for the next call.
        """
        found = await self._expire(sandbox_id, term, asks=ask is not None)
        if not isinstance(found, Record):
            return found
        assert ask is not None
        try:
            idle_s = await ask(found)
        except HoldfastError:
            return None
        if idle_s is not None and found.spec.idle_timeout_s is not None and idle_s < found.spec.idle_timeout_s:
            await self.touch([sandbox_id], idle_s)  # its idle time counts from its last use from now on
            return None
        ended = await self._expire(sandbox_id, term, asks=False)
        return ended if isinstance(ended, Expired) else None

    async def _expire(self, id_: str, term: int, *, asks: bool) -> Expired | Record | None:
        """End one whose time is over; or return its record if its agent must be queried first."""
        owner = await self._owner_of(id_)
        arguments: Arguments = [id_, self._tombstone_ms, self._tombstone_ms, term, "1" if asks else None]
        outcome, fields, why = await self._run("expire", _indexes(id_, owner), arguments)
        if outcome not in ("expired", "kept", "ask"):
            return None
        try:
            was = as_record(fields)
        except UnreadableError:
            if outcome == "ask":
                return await self._expire(id_, term, asks=False)
            return None  # the reconciler removes its remains from the runtime, because it has no record
        if outcome == "ask":
            return was
        kept = outcome == "kept"
        cause = was.cause or Cause(why, "infrastructure" if kept else "caller")
        return Expired(id_, was.incarnation, cause, was.spec, kept)

    async def _owner_of(self, sandbox_id: str) -> str:
        try:
            return await self._redis.command("HGET", keys.record(sandbox_id), "owner") or ""
        except UnreadableError:
            return ""

    async def rebuild(
        self,
        spec: SandboxSpec,
        endpoint: str,
        created_at: float,
        *,
        status: Status = "ready",
        cause: Cause | None = None,
        paused: Paused = "",
        term: int | None,
    ) -> Rebuilt:
        """Write the record of a sandbox that the runtime has and the store lost.

        Without a ``term``: of one that this gateway is creating; nothing is written once the records are complete.
        """
        id_ = spec.sandbox_id
        found = [*_indexes(id_, spec.owner), *_completeness(id_), keys.deleted(id_, spec.owner)]
        found.append(keys.cancelled(id_, spec.owner, spec.request))
        why = ["", "", ""] if cause is None else [cause.reason, cause.fault, cause.message]
        arguments: Arguments = [id_, spec.owner, spec.incarnation, write_spec(spec), endpoint, ms(created_at), *_clocks(spec)]
        arguments += [self._tombstone_ms, term, status, ms(spec.ready_timeout_s), *why, paused, spec.request]
        (outcome,) = await self._run("rebuild", found, arguments)
        return cast(Rebuilt, outcome)

    async def renew(self, specs: Iterable[SandboxSpec]) -> None:
        """Record that this gateway is still creating these sandboxes; their records are written again where the store has lost them."""
        creating = {spec.sandbox_id: spec for spec in specs}
        answers = await self._redis.run_many(script("touch"), [(_five(id_)[:3], [id_, "", "", self._tombstone_ms, 0]) for id_ in creating])
        for spec, (outcome, _) in zip(creating.values(), answers, strict=True):
            if outcome == "missing":
                await self.rebuild(spec, "", time.time(), status="pending", term=None)

    async def changes(self, cursor: Sequence[str] | None = None) -> Changes:
        """Whose records were created, changed state or ended since ``cursor``, and the next cursor; without one, all shards are lost.

        Heartbeats and use, and changes of lifetime and egress, do not count.
        """
        since: Sequence[Argument] = [""] * SHARDS if cursor is None else cursor
        answers = await self._redis.run_many(script("changes"), [([keys.changes(shard)], [since[shard]]) for shard in range(SHARDS)])
        return Changes(
            cursor=[highest for highest, *_ in answers],
            ids={id_ for _, _, *ids in answers for id_ in ids},
            lost=[shard for shard, (_, complete, *_) in enumerate(answers) if not complete],
        )

    async def scan(self, shards: Iterable[int] | None = None) -> AsyncIterator[Record]:
        """Every record, or those of some shards, in no order; one that exists throughout is seen at least once."""
        for shard in range(SHARDS) if shards is None else shards:
            cursor = 0
            while True:
                cursor, members = await self._redis.command("ZSCAN", keys.due(shard), cursor, "COUNT", _SCAN_COUNT)
                for record in await self.records(members[::2]):
                    yield record
                if not int(cursor):
                    break

    async def tombstones(self, sandbox_ids: Iterable[str]) -> dict[str, Tombstone]:
        """The tombstones of those ids that have one."""
        ids = list(sandbox_ids)
        answers = await self._redis.many([("HGETALL", keys.tombstone(id_)) for id_ in ids])
        found = {}
        for id_, fields in zip(ids, answers, strict=True):
            if fields:
                found[id_] = as_tombstone(id_, fields)
        return found

    async def records(self, sandbox_ids: Iterable[str]) -> list[Record]:
        """The records of those ids that have one."""
        ids = list(sandbox_ids)
        try:
            answers = await self._redis.many([("HGETALL", keys.record(id_)) for id_ in ids])
        except UnreadableError:
            if len(ids) == 1:
                log.warning("the record of %s cannot be read", ids[0])
                return []
            return [record for id_ in ids for record in await self.records([id_])]
        found = []
        for id_, fields in zip(ids, answers, strict=True):
            try:
                found += [as_record(fields)] if fields else []
            except UnreadableError:
                log.warning("the record of %s cannot be read", id_)
        return found


def derived_id(owner: str, idempotency_key: str) -> str:
    """The name of the sandbox of a keyed request that chooses none: the same for every replica and every retry."""
    return "sb-" + hashlib.sha256(f"{owner}\0{idempotency_key}".encode()).hexdigest()[:20]


def _request_id(idempotency_key: str) -> str:
    return hashlib.sha256(idempotency_key.encode()).hexdigest()[:32]


def _idempotency_conflict() -> HoldfastError:
    return HoldfastError("idempotency_conflict", "this Idempotency-Key was used for a different request")


def _five(sandbox_id: str) -> list[str]:
    """The keys that most steps take, in this order."""
    shard = keys.shard_of(sandbox_id)
    return [keys.record(sandbox_id), keys.tombstone(sandbox_id), keys.due(shard), keys.term(shard), keys.changes(shard)]


def _indexes(sandbox_id: str, owner: str) -> list[str]:
    record, tombstone, due, term, changes = _five(sandbox_id)
    return [record, tombstone, due, keys.owned(keys.shard_of(sandbox_id), owner), term, changes]


def _completeness(sandbox_id: str) -> list[str]:
    shard = keys.shard_of(sandbox_id)
    return [keys.marker(shard), keys.settling(shard)]


def _clocks(spec: SandboxSpec) -> list[int | None]:
    return [maybe_ms(clock) for clock in (spec.lifetime_s, spec.idle_timeout_s, spec.heartbeat_timeout_s)]


def _read_cursor(cursor: str | None) -> tuple[int, str]:
    if not cursor:
        return 0, ""
    shard, _, after = cursor.partition(":")
    if not shard.isdecimal() or len(shard) > 3 or not 0 <= int(shard) < SHARDS:
        raise _wrong_cursor()
    return int(shard), after


def _wrong_cursor() -> HoldfastError:
    return HoldfastError("invalid_argument", "the cursor is not valid", hint="use the cursor of the previous page, unchanged")
