"""The conformance suite of placement stores. Inherit from it and provide a `store` fixture with an empty store.

Owns the contract of `gateway.placement.store.PlacementStore`. `tests/gateway/placement/test_placement_redis.py` runs it on Redis.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest
from holdfast_wire.errors import HoldfastError

from gateway.model.options import AllowedRange, Egress, Port
from gateway.model.records import Cause, Expired, Record, SandboxSpec, Tombstone
from gateway.placement import keys
from gateway.placement.errors import FencedError
from gateway.placement.keys import SHARDS
from gateway.placement.store import AskIdle, PlacementStore, derived_id
from tests.support.until import until_async

OOM = Cause("oom", "workload", "killed for memory")
DELETED = Cause("deleted", "caller")


def spec(sandbox_id: str = "sb-1", owner: str = "ada", incarnation: str = "i1", **more: Any) -> SandboxSpec:
    return SandboxSpec(sandbox_id=sandbox_id, owner=owner, incarnation=incarnation, image="host", **more)


async def ready(store: PlacementStore, made: SandboxSpec) -> Record:
    await store.create(made, fingerprint="f")
    entry = await store.mark_ready(made.sandbox_id, made.incarnation, "unix:///a.sock")
    assert isinstance(entry, Record)
    return entry


async def seen(store: PlacementStore) -> set[str]:
    return {record.sandbox_id async for record in store.scan()}


async def claim_expired(store: PlacementStore, term: int, ask: AskIdle | None = None) -> list[Expired]:
    """End what is due, as a controller does."""
    return [one for id_ in await store.due() if (one := await store.expire(id_, term, ask)) is not None]


class PlacementConformance:
    """Inherit and provide `store`."""

    # The states of a record

    async def test_a_created_sandbox_is_pending_until_ready(self, store: PlacementStore) -> None:
        made = spec(labels={"run": "7"}, lifetime_s=60.0)
        created = await store.create(made, fingerprint="f")
        assert created.fresh
        assert isinstance(created.entry, Record)
        assert created.entry.status == "pending"
        assert created.entry.spec == made
        entry = await store.mark_ready("sb-1", "i1", "unix:///a.sock")
        assert entry == await store.get("sb-1")
        assert isinstance(entry, Record)
        assert (entry.status, entry.endpoint) == ("ready", "unix:///a.sock")
        assert entry.expires_at == pytest.approx(entry.created_at + 60.0, abs=0.01)

    async def test_network_access_changes_only_for_the_matching_incarnation(self, store: PlacementStore) -> None:
        made = (await ready(store, spec())).spec
        egress = Egress("listed", (AllowedRange("1.1.1.0/24", (Port(443),)),), ("pypi.org",), dns=True)
        assert await store.mark_egress("nobody", "i1", egress) is None
        other = await store.mark_egress("sb-1", "i0", egress)
        assert isinstance(other, Record)
        assert other.spec == made
        entry = await store.mark_egress("sb-1", "i1", egress)
        assert isinstance(entry, Record)
        assert entry.spec == replace(made, egress=egress)
        assert entry == await store.get("sb-1")
        await store.delete("sb-1", DELETED, owner="ada")
        assert isinstance(await store.mark_egress("sb-1", "i1", egress), Tombstone)

    async def test_an_unknown_id_has_no_record(self, store: PlacementStore) -> None:
        assert await store.get("nobody") is None
        assert await store.heartbeat("nobody", "ada") is None
        assert await store.delete("nobody", DELETED, owner="ada") is None
        await store.touch(["nobody"])
        assert await store.mark_failed("nobody", "i1", OOM) is None
        assert await seen(store) == set()

    async def test_another_incarnation_changes_nothing(self, store: PlacementStore) -> None:
        before = await ready(store, spec())
        assert await store.mark_ready("sb-1", "i0", "unix:///b.sock") == before
        assert await store.mark_failed("sb-1", "i0", OOM) == before
        assert await store.delete("sb-1", OOM, incarnation="i0") is None
        assert await store.get("sb-1") == before

    async def test_a_failed_sandbox_keeps_its_cause_and_never_becomes_ready(self, store: PlacementStore) -> None:
        await ready(store, spec())
        failed = await store.mark_failed("sb-1", "i1", OOM)
        assert isinstance(failed, Record)
        assert (failed.status, failed.cause) == ("failed", OOM)
        assert await store.mark_ready("sb-1", "i1", "unix:///a.sock") == failed
        assert await store.mark_failed("sb-1", "i1", Cause("exited", "workload")) == failed

    async def test_delete_leaves_a_tombstone_with_the_cause(self, store: PlacementStore) -> None:
        before = await ready(store, spec())
        assert await store.delete("sb-1", DELETED, owner="ada") == before
        tombstone = await store.get("sb-1")
        assert isinstance(tombstone, Tombstone)
        assert (tombstone.cause, tombstone.owner, tombstone.incarnation) == (DELETED, "ada", "i1")
        assert await store.delete("sb-1", OOM, owner="ada") == tombstone
        assert await store.tombstones(["sb-1", "sb-2"]) == {"sb-1": tombstone}

    async def test_a_create_that_arrives_after_its_cancellation_is_refused(self, store: PlacementStore) -> None:
        assert await store.delete("sb-1", DELETED, owner="ada", cancelled_key="k1") is None
        with pytest.raises(HoldfastError) as refused:
            await store.create(spec(), fingerprint="f", idempotency_key="k1")
        assert (refused.value.code, refused.value.fault) == ("sandbox_gone", "caller")
        assert await store.get("sb-1") is None
        assert (await store.create(spec(), fingerprint="f", idempotency_key="k2")).fresh, "another request"
        assert await store.delete("sb-1", DELETED, owner="ada", cancelled_key="k3") is None, "the sandbox belongs to another request"
        assert isinstance(await store.get("sb-1"), Record)
        removed = await store.delete("sb-1", DELETED, owner="ada", cancelled_key="k2")
        assert isinstance(removed, Record)
        for key in ("k1", "k2", "k3"):
            with pytest.raises(HoldfastError, match="was cancelled"):
                await store.create(spec(), fingerprint="f", idempotency_key=key)

    async def test_a_repeated_create_makes_nothing_after_its_cancellation(self, store: PlacementStore) -> None:
        assert (await store.create(spec(), fingerprint="f", idempotency_key="k1")).fresh
        assert isinstance(await store.delete("sb-1", DELETED, owner="ada", cancelled_key="k1"), Record)
        with pytest.raises(HoldfastError, match="was cancelled"):
            await store.create(spec(incarnation="i2"), fingerprint="f", idempotency_key="k1")
        assert isinstance(await store.get("sb-1"), Tombstone)

    async def test_a_cancellation_changes_nothing_for_other_requests_and_owners(self, store: PlacementStore) -> None:
        id_ = derived_id("ada", "k1")
        created = await store.create(spec(id_), fingerprint="f", idempotency_key="k1")
        await store.delete(id_, DELETED, owner="ada")
        for owner in ("ada", "bob"):
            await store.delete(id_, DELETED, owner=owner, cancelled_key="k2")
        await store.delete(id_, DELETED, owner="bob", cancelled_key="k1")
        again = await store.create(spec(id_), fingerprint="f", idempotency_key="k1")
        assert isinstance(again.entry, Tombstone)
        assert again.entry.incarnation == created.entry.incarnation

    async def test_a_cancellation_leaves_a_record_that_was_rebuilt(self, store: PlacementStore) -> None:
        term = await store.lead("a", 60.0)
        assert term is not None
        assert await store.rebuild(spec("sb-1"), "unix:///a.sock", 1_000.0, term=term)
        assert await store.delete("sb-1", DELETED, owner="ada", cancelled_key="k1") is None
        assert isinstance(await store.get("sb-1"), Record)

    async def test_nothing_brings_a_deleted_sandbox_back(self, store: PlacementStore) -> None:
        await ready(store, spec(heartbeat_timeout_s=60.0))
        await store.delete("sb-1", DELETED, owner="ada")
        tombstone = await store.get("sb-1")
        assert await store.heartbeat("sb-1", "ada") == tombstone
        await store.touch(["sb-1"])
        assert await store.mark_ready("sb-1", "i1", "unix:///a.sock") == tombstone
        assert await store.mark_failed("sb-1", "i1", OOM) == tombstone
        assert await store.get("sb-1") == tombstone
        assert await seen(store) == set()
        assert (await store.list_owned("ada")).records == []

    async def test_forgetting_leaves_nothing_and_frees_the_key(self, store: PlacementStore) -> None:
        from gateway.placement.store import derived_id

        id_ = derived_id("ada", "k")
        await store.create(spec(id_), fingerprint="f", idempotency_key="k")
        assert await store.delete(id_, DELETED, owner="ada", forget=True) is not None
        assert await store.get(id_) is None
        assert (await store.create(spec(id_), fingerprint="other", idempotency_key="k")).fresh

    # Owners

    async def test_another_owner_sees_and_changes_nothing(self, store: PlacementStore) -> None:
        before = await ready(store, spec(heartbeat_timeout_s=60.0))
        assert await store.heartbeat("sb-1", "bob") is None
        assert await store.delete("sb-1", DELETED, owner="bob") is None
        assert (await store.list_owned("bob")).records == []
        assert await store.get("sb-1") == before
        await store.delete("sb-1", DELETED, owner="ada")
        assert await store.heartbeat("sb-1", "bob") is None
        assert await store.delete("sb-1", DELETED, owner="bob") is None

    async def test_pages_cover_everything_once(self, store: PlacementStore) -> None:
        ids = {f"sb-{number}" for number in range(150)}
        for id_ in ids:
            await store.create(spec(id_), fingerprint="f")
            await store.create(spec(f"other-{id_}", owner="bob"), fingerprint="f")
        found: list[str] = []
        cursor: str | None = None
        while True:
            page = await store.list_owned("ada", cursor=cursor, limit=7)
            assert len(page.records) <= 7
            found += [record.sandbox_id for record in page.records]
            cursor = page.cursor
            if cursor is None:
                break
            await store.delete(found[-1], DELETED, owner="ada")  # a listed record may be deleted between pages
        assert sorted(found) == sorted(ids)

    @pytest.mark.parametrize("cursor", ["x", "64:a", "-1:a", "é:1"])
    async def test_a_made_up_cursor_is_refused(self, store: PlacementStore, cursor: str) -> None:
        with pytest.raises(HoldfastError) as caught:
            await store.list_owned("ada", cursor=cursor)
        assert caught.value.code == "invalid_argument"

    # Creating once

    @pytest.mark.parametrize("id_", [derived_id("ada", "k"), "k"], ids=["derived from the key", "the key"])
    async def test_the_same_create_five_times_at_once_makes_one(self, store: PlacementStore, id_: str) -> None:
        tries = [spec(id_, incarnation=f"i{number}") for number in range(5)]
        results = await asyncio.gather(*(store.create(one, fingerprint="f", idempotency_key="k") for one in tries))
        assert sum(result.fresh for result in results) == 1
        assert len({result.entry.incarnation for result in results}) == 1
        with pytest.raises(HoldfastError) as caught:
            await store.create(spec(id_), fingerprint="other", idempotency_key="k")
        assert caught.value.code == "idempotency_conflict"

    async def test_a_key_with_a_chosen_id_is_also_used_once(self, store: PlacementStore) -> None:
        assert (await store.create(spec("mine"), fingerprint="f", idempotency_key="k")).fresh
        assert not (await store.create(spec("mine"), fingerprint="f", idempotency_key="k")).fresh
        with pytest.raises(HoldfastError) as caught:
            await store.create(spec("yours"), fingerprint="g", idempotency_key="k")
        assert caught.value.code == "idempotency_conflict"
        assert (await store.create(spec("bobs", owner="bob"), fingerprint="g", idempotency_key="k")).fresh

    @pytest.mark.parametrize("id_", [derived_id("ada", "k"), "k"], ids=["derived from the key", "the key"])
    async def test_a_repeated_create_after_the_end_returns_the_tombstone(self, store: PlacementStore, id_: str) -> None:
        await store.create(spec(id_), fingerprint="f", idempotency_key="k")
        await store.delete(id_, DELETED, owner="ada")
        again = await store.create(spec(id_, incarnation="i2"), fingerprint="f", idempotency_key="k")
        assert not again.fresh
        assert isinstance(again.entry, Tombstone)

    async def test_a_taken_id_is_refused(self, store: PlacementStore) -> None:
        await store.create(spec(), fingerprint="f")
        for other in (spec(owner="bob"), spec()):
            with pytest.raises(HoldfastError) as caught:
                await store.create(other, fingerprint="f" if other.owner == "bob" else "g")
            assert caught.value.code == "sandbox_exists"
        assert not (await store.create(spec(incarnation="i2"), fingerprint="f")).fresh

    async def test_a_chosen_id_can_be_used_again_after_its_end(self, store: PlacementStore) -> None:
        await ready(store, spec())
        await store.delete("sb-1", DELETED, owner="ada")
        again = await store.create(spec(incarnation="i2"), fingerprint="g")
        assert again.fresh
        assert again.entry.incarnation == "i2"

    # Expiry

    @pytest.mark.parametrize(("limit", "reason"), [("lifetime_s", "ttl"), ("idle_timeout_s", "idle"), ("heartbeat_timeout_s", "heartbeat")])
    async def test_each_time_limit_ends_a_ready_sandbox(self, store: PlacementStore, limit: str, reason: str) -> None:
        await ready(store, spec(**cast(dict[str, Any], {limit: 0.05})))
        await ready(store, spec("stays", lifetime_s=3600.0, idle_timeout_s=3600.0, heartbeat_timeout_s=3600.0))
        if reason == "heartbeat":
            await store.heartbeat("sb-1", "ada")
        await store.heartbeat("stays", "ada")
        expired = await self._expired(store)
        assert [(one.sandbox_id, one.incarnation, one.cause.reason, one.kept) for one in expired] == [("sb-1", "i1", reason, False)]
        tombstone = await store.get("sb-1")
        assert isinstance(tombstone, Tombstone)
        assert tombstone.cause.reason == reason
        assert await seen(store) == {"stays"}

    async def test_no_limit_of_a_paused_sandbox_runs_out(self, store: PlacementStore) -> None:
        limits: dict[str, Any] = {"lifetime_s": 0.05, "idle_timeout_s": 0.05, "heartbeat_timeout_s": 0.05}
        before = await ready(store, spec(**limits))
        await store.heartbeat("sb-1", "ada")
        assert await store.mark_paused("sb-1", "another", "memory") == await store.get("sb-1")
        paused = await store.mark_paused("sb-1", "i1", "memory")
        assert isinstance(paused, Record)
        assert (paused.paused, paused.expires_at) == ("memory", None)
        await ready(store, spec("other", lifetime_s=0.05))
        assert [one.sandbox_id for one in await self._expired(store)] == ["other"]
        assert isinstance(again := await store.mark_paused("sb-1", "i1", "disk"), Record)
        assert again.paused == "disk"
        resumed = await store.mark_paused("sb-1", "i1", "")
        assert isinstance(resumed, Record)
        assert resumed.paused == ""
        assert resumed.lifetime_s is not None
        assert before.lifetime_s is not None
        assert resumed.lifetime_s > before.lifetime_s, "the time of the pause does not count"
        assert [one.sandbox_id for one in await self._expired(store)] == ["sb-1"]

    async def test_the_heartbeat_limit_starts_when_the_sandbox_is_ready(self, store: PlacementStore) -> None:
        record = await ready(store, spec(heartbeat_timeout_s=60.0))
        assert record.expires_at == pytest.approx((record.ready_at or 0) + 60.0, abs=0.01)
        beaten = await store.heartbeat("sb-1", "ada")
        assert isinstance(beaten, Record)
        assert (beaten.expires_at or 0) >= (record.expires_at or 0)
        rebuilt = spec("sb-2", heartbeat_timeout_s=60.0)  # whether one ever came is lost
        await store.rebuild(rebuilt, "unix:///a.sock", 1_000.0, term=1)
        again = await store.get("sb-2")
        assert isinstance(again, Record)
        assert again.expires_at == pytest.approx((again.ready_at or 0) + 60.0, abs=0.01)

    async def test_use_moves_the_idle_deadline_only_forward(self, store: PlacementStore) -> None:
        await ready(store, spec(idle_timeout_s=10.0, heartbeat_timeout_s=3600.0))

        async def expires() -> float:
            record = await store.get("sb-1")
            assert isinstance(record, Record)
            return record.expires_at or 0.0

        async def touched() -> bool:
            before = await expires()
            await store.touch(["sb-1", "nobody"])
            return await expires() > before

        async def beaten() -> bool:
            before = await expires()
            await store.heartbeat("sb-1", "ada")
            return await expires() > before

        await until_async(touched, deadline_s=60, what="the deadline to move")
        await until_async(beaten, deadline_s=60, what="the deadline to move again")
        before = await expires()
        await store.touch(["sb-1"], 5.0)
        for _ in range(20):
            await store.heartbeat("sb-1", "ada", used=False)
        assert await expires() == before

    async def test_the_agent_is_asked_before_one_ends_for_being_idle(self, store: PlacementStore) -> None:
        for id_ in ("used", "unused", "silent", "mute"):
            await ready(store, spec(id_, idle_timeout_s=0.05))
        asked: list[str] = []

        async def ask(record: Record) -> float | None:
            asked.append(record.sandbox_id)
            if record.sandbox_id == "silent":
                raise HoldfastError("agent_unreachable", "it does not answer now")
            return {"used": 0.0, "unused": 60.0, "mute": None}[record.sandbox_id]

        ended: set[str] = set()

        async def all_asked() -> bool:
            ended.update(one.sandbox_id for one in await claim_expired(store, 1, ask=ask))
            return set(asked) == {"used", "unused", "silent", "mute"} and len(ended) == 2

        await until_async(all_asked, deadline_s=60, what="all to be asked")
        assert ended == {"unused", "mute"}
        assert await seen(store) == {"used", "silent"}

    async def test_a_sandbox_that_never_became_ready_fails_and_stays_readable(self, store: PlacementStore) -> None:
        await store.create(spec(ready_timeout_s=0.01), fingerprint="f")
        (expired,) = await self._expired(store)
        assert (expired.kept, expired.cause.reason, expired.cause.fault) == (True, "ready-timeout", "infrastructure")
        record = await store.get("sb-1")
        assert isinstance(record, Record)
        assert record.status == "failed"
        assert record.cause is not None
        assert record.cause.reason == "ready-timeout"
        assert await claim_expired(store, 1) == []

    async def _expired(self, store: PlacementStore) -> list[Any]:
        found: list[Any] = []

        async def any_expired() -> bool:
            found.extend(await claim_expired(store, 1))
            return bool(found)

        await until_async(any_expired, deadline_s=60, what="a sandbox to expire")
        return found

    # One controller

    async def test_one_holder_leads_and_terms_rise(self, store: PlacementStore) -> None:
        first = await store.lead("a", 60)
        assert first is not None
        assert await store.lead("a", 60) == first
        assert await store.lead("b", 60) is None
        await store.resign("b")
        assert await store.lead("b", 60) is None
        await store.resign("a")
        second = await store.lead("b", 60)
        assert second is not None
        assert second > first

    async def test_a_lease_that_is_not_renewed_passes_on(self, store: PlacementStore) -> None:
        first = await store.lead("a", 0.01)
        assert first is not None
        terms: list[int] = []

        async def led() -> bool:
            terms.extend(filter(None, [await store.lead("b", 60)]))
            return bool(terms)

        await until_async(led, deadline_s=60, what="the lease to pass on")
        assert terms[0] > first

    async def test_an_old_term_is_refused_in_every_write(self, store: PlacementStore) -> None:
        before = await ready(store, spec(lifetime_s=0.001))
        await store.fence(7)
        for write in (
            store.mark_failed("sb-1", "i1", OOM, term=6),
            store.mark_ready("sb-1", "i1", "x", term=6),
            store.delete("sb-1", OOM, term=6),
            store.rebuild(spec("sb-2"), "unix:///x", 1.0, term=6),
            store.fence(6),
            store.set_marker("g", term=6),
        ):
            with pytest.raises(FencedError):
                await write

        async def refused() -> bool:
            try:
                return bool(await claim_expired(store, 6)) and False
            except FencedError:
                return True

        await until_async(refused, deadline_s=60, what="an expiry with an old term to be refused")
        assert await store.get("sb-1") == before
        assert await store.get("sb-2") is None
        assert await store.mark_failed("sb-1", "i1", OOM, term=7) is not None

    # Rebuilding

    async def test_a_lost_record_is_rebuilt_and_a_known_or_ended_one_is_not(self, store: PlacementStore) -> None:
        lost = spec("lost", labels={"run": "7"}, lifetime_s=60.0)
        assert await store.rebuild(lost, "unix:///l.sock", 1_000.0, term=1)
        record = await store.get("lost")
        assert isinstance(record, Record)
        assert (record.spec, record.status, record.endpoint) == (lost, "ready", "unix:///l.sock")
        assert record.created_at == 1_000.0
        assert [one.sandbox_id for one in (await store.list_owned("ada")).records] == ["lost"]
        assert await store.rebuild(lost, "unix:///other.sock", 1_000.0, term=1) == "known"
        await store.delete("lost", DELETED, owner="ada")
        assert await store.rebuild(lost, "unix:///l.sock", 1_000.0, term=1) == "dead"
        assert await store.rebuild(spec("lost", incarnation="i2"), "unix:///l.sock", 1_000.0, term=1) == "rebuilt"

    async def test_a_sandbox_is_rebuilt_in_the_state_it_is_in(self, store: PlacementStore) -> None:
        assert await store.rebuild(spec("paused", lifetime_s=1.0), "unix:///a.sock", 1_000.0, term=1, paused="disk") == "rebuilt"
        paused = await store.get("paused")
        assert isinstance(paused, Record)
        assert (paused.status, paused.paused, paused.expires_at) == ("ready", "disk", None)
        creating = spec("creating", ready_timeout_s=60.0)
        assert await store.rebuild(creating, "", 1_000.0, status="pending", term=1) == "rebuilt"
        record = await store.get("creating")
        assert isinstance(record, Record)
        assert (record.status, record.ready_at, record.begun_at) == ("pending", None, 1_000.0)
        assert record.expires_at == pytest.approx((record.active_at or 0) + 60.0, abs=0.01)  # its time to become ready starts again
        assert isinstance(entry := await store.mark_ready("creating", "i1", "unix:///a.sock"), Record)
        assert entry.status == "ready"
        await store.rebuild(spec("failed"), "", 1_000.0, status="failed", cause=OOM, term=1)
        failed = await store.get("failed")
        assert isinstance(failed, Record)
        assert (failed.status, failed.cause) == ("failed", OOM)

    async def test_a_gateway_writes_lost_records_only_until_they_are_complete(self, store: PlacementStore) -> None:
        await store.set_marker("g1", term=1)
        await store.renew([spec()])
        assert await store.get("sb-1") is None
        assert await store.complete()
        await store.set_marker("g1", term=1, settle_s=600.0)
        assert not await store.complete()
        assert not await store.knows("sb-1")
        await store.renew([spec()])
        assert isinstance(record := await store.get("sb-1"), Record)
        assert record.status == "pending"

    async def test_a_delete_of_an_id_that_is_not_known_is_carried_out_later(self, store: PlacementStore) -> None:
        assert await store.delete("sb-1", DELETED, owner="ada") is None
        assert await store.delete("sb-2", DELETED, owner="bob") is None  # not its owner
        assert await store.rebuild(spec(), "unix:///a.sock", 1_000.0, term=1) == "deleted"
        assert await store.rebuild(spec("sb-2"), "unix:///a.sock", 1_000.0, term=1) == "rebuilt"
        tombstone = await store.get("sb-1")
        assert isinstance(tombstone, Tombstone)
        assert (tombstone.owner, tombstone.incarnation, tombstone.cause.reason, tombstone.cause.fault) == ("ada", "i1", "deleted", "caller")
        # A later create is another sandbox.
        await store.create(spec(incarnation="i2"), fingerprint="f")
        await store.delete("sb-1", DELETED, owner="ada", forget=True)
        assert await store.rebuild(spec(incarnation="i3"), "unix:///a.sock", 1_000.0, term=1) == "rebuilt"

    async def test_a_cancelled_create_is_ended_although_its_record_was_lost(self, store: PlacementStore) -> None:
        specs = []
        for id_ in ("before", "after"):
            created = await store.create(spec(id_), fingerprint="f", idempotency_key="k1")
            assert isinstance(created.entry, Record)
            specs.append(created.entry.spec)
            await store.delete(id_, DELETED, owner="ada", forget=True)  # as a wipe
        await store.delete("before", DELETED, owner="ada", cancelled_key="k1")
        await store.delete("after", DELETED, owner="ada", cancelled_key="k2")  # another request
        assert [await store.rebuild(one, "unix:///a.sock", 1_000.0, term=1) for one in specs] == ["deleted", "rebuilt"]
        assert await store.delete("after", DELETED, owner="ada", cancelled_key="k2") is None
        assert isinstance(await store.delete("after", DELETED, owner="ada", cancelled_key="k1"), Record)

    async def test_a_delete_of_an_unknown_id_is_not_remembered_once_records_are_complete(self, store: PlacementStore) -> None:
        await store.set_marker("g1", term=1)
        assert await store.delete("sb-1", DELETED, owner="ada") is None
        assert await store.rebuild(spec(), "unix:///a.sock", 1_000.0, term=1) == "rebuilt"

    async def test_a_rebuilt_sandbox_replaces_the_tombstone_of_an_earlier_one(self, store: PlacementStore) -> None:
        await ready(store, spec())
        await store.delete("sb-1", DELETED, owner="ada")
        assert await store.rebuild(spec(incarnation="i2"), "unix:///l.sock", 1_000.0, term=1)
        assert await store.tombstones(["sb-1"]) == {}
        await store.delete("sb-1", DELETED, owner="ada", forget=True)
        assert await store.get("sb-1") is None

    async def test_the_completeness_marker_is_all_or_nothing(self, store: PlacementStore) -> None:
        assert await store.marker() is None
        await store.set_marker("g1", term=1)
        assert await store.marker() == "g1"

    # Changes

    async def test_each_step_of_a_record_is_a_change(self, store: PlacementStore) -> None:
        first = await store.changes()
        assert (first.ids, len(first.lost)) == (set(), SHARDS)
        cursor = first.cursor

        async def changed() -> set[str]:
            nonlocal cursor
            changes = await store.changes(cursor)
            cursor = changes.cursor
            return changes.ids | {one.sandbox_id async for one in store.scan(changes.lost)}

        term = await store.lead("c1", 60)
        assert term is not None
        for number in range(3):
            await store.create(spec(f"sb-{number}", incarnation=f"i{number}"), fingerprint="f")
        assert await changed() == {"sb-0", "sb-1", "sb-2"}
        assert await changed() == set()
        await store.mark_ready("sb-0", "i0", "unix:///a.sock")
        assert await changed() == {"sb-0"}
        await store.mark_failed("sb-0", "i0", OOM)
        assert await changed() == {"sb-0"}
        assert await store.rebuild(spec("rebuilt"), "unix:///a.sock", 1.0, term=term)
        assert await changed() == {"rebuilt"}
        assert isinstance(await store.delete("sb-1", DELETED, owner="ada"), Record)
        ended = await store.changes(cursor)
        assert ended.ids == {"sb-1"} or keys.shard_of("sb-1") in ended.lost
        cursor = ended.cursor
        await store.touch(["sb-2"])
        await store.heartbeat("sb-2", "ada")
        await store.mark_failed("sb-2", "another incarnation", OOM)
        assert await changed() == set()

    async def test_an_expiry_is_a_change(self, store: PlacementStore) -> None:
        term = await store.lead("c1", 60)
        assert term is not None
        await ready(store, spec(lifetime_s=0.001))
        cursor = (await store.changes()).cursor

        async def expired() -> bool:
            return bool(await claim_expired(store, term))

        await until_async(expired, deadline_s=60, what="the expiry")
        changes = await store.changes(cursor)
        assert changes.ids == {"sb-1"} or changes.lost == [keys.shard_of("sb-1")]

    async def test_changes_that_were_dropped_are_reported_as_lost(self, store: PlacementStore) -> None:
        await store.create(spec("a"), fingerprint="f")
        cursor = list((await store.changes()).cursor)
        shard = keys.shard_of("a")
        ids = [name for name in (f"sb-{number}" for number in range(200_000)) if keys.shard_of(name) == shard][:1001]
        for start in range(0, len(ids), 100):
            await asyncio.gather(*(store.create(spec(id_, incarnation=id_), fingerprint="f") for id_ in ids[start : start + 100]))
        assert (await store.changes(cursor)).lost == [shard]
        cursor = list((await store.changes(cursor)).cursor)
        assert (await store.changes(cursor)).lost == []
        cursor[shard] = f"{cursor[shard]}1"  # as after a failover to a replica that lacks the latest changes
        assert (await store.changes(cursor)).lost == [shard]

    async def test_a_scan_sees_everything(self, store: PlacementStore) -> None:
        for number in range(100):
            await store.create(spec(f"sb-{number}"), fingerprint="f")
        assert await seen(store) == {f"sb-{number}" for number in range(100)}
