"""Groups and quota usage in Redis: a part of ``store.PlacementStore``.

Owns which step runs on which keys. A group, its members and its shard's list of groups share one slot, its sandboxes have their own:
joining comes before a sandbox's record and leaving after it, so that a group never misses a sandbox.
"""

from __future__ import annotations

import secrets
from typing import Any, cast

from gateway.model.records import Cause, Group, GroupStatus, Quota, SandboxSpec, Usage
from gateway.settings import PlacementSettings

from . import keys
from .keys import SHARDS
from .redis_steps import RedisSteps, as_fields, as_moment, maybe_ms, ms

_ALL = 1_000_000
_DUE = 20


class RedisGroups(RedisSteps):
    """Leases and members of groups, and what is counted towards quotas."""

    def __init__(self, settings: PlacementSettings) -> None:
        super().__init__(settings)
        self._remembered_ms = ms(settings.tombstone_ttl_s)

    async def group_beat(self, owner: str, name: str, ttl_s: float, lease: str = "") -> tuple[GroupStatus, Group]:
        """Begin the group's lease, or extend the one the caller holds. Never revives a lapsed one."""
        key = keys.group_key(owner, name)
        outcome, fields, count = await self._run(
            "group_beat", _keys(key)[:3], [key, owner, name, ms(ttl_s), lease, secrets.token_hex(8), self._remembered_ms]
        )
        return outcome, _group(key, fields, [], count)

    async def group_join(
        self, owner: str, name: str, sandbox_id: str, *, lease: str = "", ttl_s: float | None = None, term: int | None = None
    ) -> tuple[GroupStatus, Group]:
        """Add a sandbox that is about to be created, or (with a term) was rebuilt: then the group's lease begins with ``ttl_s``."""
        key = keys.group_key(owner, name)
        outcome, fields, count = await self._run("group_join", _keys(key), [key, owner, name, sandbox_id, lease, maybe_ms(ttl_s), term])
        return outcome, _group(key, fields, [], count)

    async def group(self, owner: str, name: str, limit: int = 1000) -> Group | None:
        """The group, or None."""
        key = keys.group_key(owner, name)
        fields, members, count = await self._run("group_get", _keys(key)[:2], [limit])
        return _group(key, fields, members, count) if fields else None

    async def group_end(self, owner: str, name: str, cause: Cause) -> Group | None:
        """End a group; the controller deletes its sandboxes. None when there is no such group."""
        return await self._end(keys.group_key(owner, name), cause, None)

    async def group_lapse(self, key: str, cause: Cause, *, term: int) -> Group | None:
        """End a group whose lease has expired, with some of its members. None when its lease has not expired or it is gone."""
        return await self._end(key, cause, term)

    async def _end(self, key: str, cause: Cause, term: int | None) -> Group | None:
        outcome, fields, members, count = await self._run(
            "group_end", _keys(key), [key, cause.reason, cause.message, self._remembered_ms, term, cause.by]
        )
        return _group(key, fields, members, count) if outcome == "ended" else None

    async def due_groups(self) -> list[str]:
        """Keys of groups whose lease has expired, or that have ended and have sandboxes left."""
        seconds, _ = await self._redis.command("TIME")
        now = (int(seconds) + 1) * 1000
        answers = await self._redis.many([("ZRANGEBYSCORE", keys.groups(shard), "-inf", now, "LIMIT", 0, _DUE) for shard in range(SHARDS)])
        return [key for answer in answers for key in answer][:_DUE]

    async def group_leave(self, key: str, sandbox_id: str, joined_at: float, *, term: int) -> None:
        """Remove a member that joined then."""
        await self._run("group_leave", _keys(key), [key, sandbox_id, ms(joined_at), self._remembered_ms, term])

    async def group_keys(self) -> list[str]:
        """Every group."""
        answers = await self._redis.many([("ZRANGE", keys.groups(shard), 0, -1) for shard in range(SHARDS)])
        return [key for answer in answers for key in answer]

    async def group_members(self, key: str) -> dict[str, float]:
        """All of a group's members and when they joined."""
        _, members, _ = await self._run("group_get", _keys(key)[:2], [_ALL])
        return _members(members)

    # Quota usage --------------------------------------------------------------------------------------------------

    async def reserve(self, owner: str, spec: SandboxSpec, quota: Quota, *, term: int | None = None) -> Usage:
        """Count a sandbox towards an owner's usage (owner "": all owners') unless that would exceed ``quota``."""
        limits = [quota.sandboxes, maybe_ms(quota.cores), quota.memory_bytes]
        verb = "reserve" if quota else "count"
        return await self._usage(verb, owner, spec.sandbox_id, [ms(spec.cores), spec.memory_bytes, *limits, ""], term)

    async def release(self, owner: str, sandbox_id: str, since: str = "", *, term: int | None = None) -> None:
        """Stop counting it. With ``since``, only if it has been counted without a break since then (``usage_entries``)."""
        await self._usage("release", owner, sandbox_id, [0, 0, "", "", "", since], term)

    async def _usage(self, verb: str, owner: str, sandbox_id: str, rest: list[Any], term: int | None) -> Usage:
        outcome, n, cpu, memory = await self._run("usage", keys.usage_keys(owner), [verb, owner, sandbox_id, *rest, term])
        return Usage(cast(Any, outcome), int(n), int(cpu) / 1000, int(memory))

    async def usage_of(self, owner: str) -> Usage:
        """The sums over the sandboxes that are counted for an owner."""
        n, cpu, memory = await self._redis.command("HMGET", keys.usage(owner), "=n", "=cpu", "=memory")
        return Usage("known", int(n or 0), int(cpu or 0) / 1000, int(memory or 0))

    async def usage_owners(self) -> set[str]:
        """Every owner with a usage."""
        answers = await self._redis.many([("SMEMBERS", key) for key in keys.all_usages()])
        return {owner for answer in answers for owner in answer}

    async def usage_entries(self, owner: str) -> dict[str, str]:
        """What is counted, and since when (ms)."""
        found = as_fields(await self._redis.command("HGETALL", keys.usage(owner)))
        return {id_: text.rpartition(" ")[2] for id_, text in found.items() if not id_.startswith("=")}


def _keys(key: str) -> list[str]:
    shard = keys.shard_of(key)
    return [keys.group(key), keys.members(key), keys.groups(shard), keys.term(shard)]


def _members(answer: Any) -> dict[str, float]:
    return {id_: float(at) / 1000 for id_, at in as_fields(answer).items()}


def _group(key: str, answer: Any, members: Any, count: int) -> Group:
    fields = as_fields(answer)
    cause = None
    if fields["state"] == "ended":
        cause = Cause(fields["reason"], "caller", fields["message"], fields.get("by", ""))
    return Group(
        key=key,
        owner=fields["owner"],
        name=fields["name"],
        lease=fields["lease"],
        ttl_s=as_moment(fields["ttl"]),
        expires_at=as_moment(fields["due"]),
        members=_members(members),
        count=int(count),
        cause=cause,
    )
