"""A model of placement, driven at random against the Lua steps on a real Redis.

The model is a plain dict; after every step the store must agree with it, its indexes must be exact, and no key may be left
that the model does not explain.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import redis
from holdfast_wire.errors import HoldfastError
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from gateway.model.records import Cause, Record, SandboxSpec, Tombstone
from gateway.placement import keys
from gateway.placement.errors import FencedError
from gateway.placement.keys import SHARDS
from gateway.placement.store import derived_id
from tests.gateway.machines import StoreMachine, agree
from tests.support.redis_server import RedisServer
from tests.support.requires import requires

pytestmark = requires("redis")

OWNERS = st.sampled_from(["ada", "bob"])
ALL_IDS = ["sb-1", "sb-2", derived_id("ada", "k"), derived_id("bob", "k")]
IDS = st.sampled_from(ALL_IDS)
INCARNATIONS = st.sampled_from(["i1", "i2", "i3"])
FINGERPRINTS = st.sampled_from(["f", "g"])
CAUSES = st.sampled_from([Cause("oom", "workload"), Cause("deleted", "caller", "asked for")])
TERMS = st.none() | st.integers(min_value=1, max_value=3)


@dataclasses.dataclass
class Known:
    owner: str
    incarnation: str
    fingerprint: str
    status: str = "pending"
    cause: Cause | None = None


class Placement(StoreMachine):
    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, Known] = {}
        self.tombstones: dict[str, Known] = {}
        self.keyed: dict[str, str] = {}
        self.terms = dict.fromkeys(range(SHARDS), 1)
        self.call(self.store.set_marker("g", term=1))

    def fenced(self, sandbox_id: str, term: int | None) -> bool:
        if term is None:
            return False
        shard = keys.shard_of(sandbox_id)
        if term < self.terms[shard]:
            return True
        self.terms[shard] = term
        return False

    def call(self, step: Any, fenced: bool = False) -> Any:
        if not fenced:
            return self.runner.run(step)
        with pytest.raises(FencedError):
            self.runner.run(step)
        return None

    @rule(id_=IDS, owner=OWNERS, incarnation=INCARNATIONS, fingerprint=FINGERPRINTS, with_key=st.booleans())
    def create(self, id_: str, owner: str, incarnation: str, fingerprint: str, with_key: bool) -> None:
        derived = with_key and id_ == derived_id(owner, "k")
        spec = SandboxSpec(sandbox_id=id_, owner=owner, incarnation=incarnation, image="host")
        now, prior = self.known.get(id_), self.keyed.get(id_) if derived else None
        step = self.store.create(spec, fingerprint=fingerprint, idempotency_key="k" if derived else None)
        try:
            created = self.call(step)
        except HoldfastError as error:
            refused = error.code
        else:
            refused = ""
        if refused == "idempotency_conflict":
            assert prior not in (None, fingerprint)
            return
        if refused:
            assert refused == "sandbox_exists"
            assert now is not None
            assert (now.owner, now.fingerprint) != (owner, fingerprint)
            return
        if created.fresh:
            assert now is None
            assert not (prior == fingerprint and id_ in self.tombstones)
            self.tombstones.pop(id_, None)
            self.known[id_] = Known(owner, incarnation, fingerprint)
            if derived:
                self.keyed[id_] = fingerprint
        elif now is not None:
            assert now.owner == owner
            assert now.fingerprint == fingerprint or (derived and not now.fingerprint), "a rebuilt record is matched by its key alone"
        else:
            assert prior == fingerprint
            assert isinstance(created.entry, Tombstone)

    @rule(id_=IDS, incarnation=INCARNATIONS, term=TERMS)
    def ready(self, id_: str, incarnation: str, term: int | None) -> None:
        step = self.store.mark_ready(id_, incarnation, "unix:///x", term=term)
        if fenced := self.fenced(id_, term):
            self.call(step, fenced)
            return
        self.call(step)
        now = self.known.get(id_)
        if now and now.incarnation == incarnation and now.status == "pending":
            now.status = "ready"

    @rule(id_=IDS, incarnation=INCARNATIONS, cause=CAUSES, term=TERMS)
    def fail(self, id_: str, incarnation: str, cause: Cause, term: int | None) -> None:
        fenced = self.fenced(id_, term)
        self.call(self.store.mark_failed(id_, incarnation, cause, term=term), fenced)
        now = self.known.get(id_)
        if not fenced and now and now.incarnation == incarnation and now.status != "failed":
            now.status, now.cause = "failed", cause

    @rule(id_=IDS, owner=OWNERS, used=st.booleans())
    def heartbeat(self, id_: str, owner: str, used: bool) -> None:
        entry = self.call(self.store.heartbeat(id_, owner, used=used))
        now = self.known.get(id_) or self.tombstones.get(id_)
        assert (entry is not None) == (now is not None and now.owner == owner)

    @rule(ids=st.lists(IDS), ago=st.sampled_from([0.0, 30.0]))
    def touch(self, ids: list[str], ago: float) -> None:
        self.call(self.store.touch(ids, ago))

    @rule(id_=IDS, owner=OWNERS, cause=CAUSES, forget=st.booleans(), term=TERMS)
    def delete(self, id_: str, owner: str, cause: Cause, forget: bool, term: int | None) -> None:
        fenced = self.fenced(id_, term)
        entry = self.call(self.store.delete(id_, cause, owner=owner, forget=forget, term=term), fenced)
        now = self.known.get(id_)
        if fenced:
            return
        if now and now.owner == owner:
            assert isinstance(entry, Record)
            del self.known[id_]
            if forget:
                self.keyed.pop(id_, None)
            else:
                if now.status != "failed":  # the first cause is kept
                    now.cause = cause
                self.tombstones[id_] = now
        else:
            tombstone = self.tombstones.get(id_)
            assert (entry is not None) == (now is None and tombstone is not None and tombstone.owner == owner)

    @rule(id_=IDS, owner=OWNERS, incarnation=INCARNATIONS, term=st.integers(min_value=1, max_value=3))
    def rebuild(self, id_: str, owner: str, incarnation: str, term: int) -> None:
        spec = SandboxSpec(sandbox_id=id_, owner=owner, incarnation=incarnation, image="host")
        fenced = self.fenced(id_, term)
        written = self.call(self.store.rebuild(spec, "unix:///x", 1.0, term=term), fenced) == "rebuilt"
        if fenced:
            return
        tombstone = self.tombstones.get(id_)
        assert written == (id_ not in self.known and not (tombstone and tombstone.incarnation == incarnation))
        if written:
            self.tombstones.pop(id_, None)
            self.known[id_] = Known(owner, incarnation, "", "ready")

    @invariant()
    def the_store_agrees(self) -> None:
        for id_ in (*self.known, *self.tombstones):
            entry = self.call(self.store.get(id_))
            now = self.known.get(id_)
            if now is None:
                assert isinstance(entry, Tombstone)
                assert (entry.owner, entry.incarnation, entry.cause) == (
                    self.tombstones[id_].owner,
                    self.tombstones[id_].incarnation,
                    self.tombstones[id_].cause,
                )
            else:
                assert isinstance(entry, Record)
                assert (entry.owner, entry.incarnation, entry.status) == (now.owner, now.incarnation, now.status)
                assert entry.cause == (now.cause if now.status == "failed" else None)

    @invariant()
    def indexes_are_exact_and_no_other_key_exists(self) -> None:
        explained: set[str] = set()
        with redis.Redis.from_url(self.server.url, decode_responses=True) as client:
            for shard in {keys.shard_of(id_) for id_ in ALL_IDS}:
                due = set(client.zrange(keys.due(shard), 0, -1))
                assert due == {id_ for id_ in self.known if keys.shard_of(id_) == shard}
                explained |= {keys.due(shard), keys.term(shard), keys.changes(shard)}
                for owner in ("ada", "bob"):
                    owned = set(client.zrange(keys.owned(shard, owner), 0, -1))
                    assert owned == {i for i, now in self.known.items() if keys.shard_of(i) == shard and now.owner == owner}
                    explained.add(keys.owned(shard, owner))
            explained |= {keys.record(id_) for id_ in self.known} | {keys.tombstone(id_) for id_ in self.tombstones}
            explained |= {keys.idempotency(id_) for id_ in self.keyed}
            explained |= {key for shard in range(SHARDS) for key in (keys.marker(shard), keys.term(shard))}
            assert set(client.keys("*")) <= explained


@pytest.mark.hypothesis
@pytest.mark.timeout(300)
def test_random_steps_agree_with_the_model(redis_server: RedisServer) -> None:
    agree(Placement, redis_server, 40)
