"""Groups: random steps of the Lua scripts against a model, on a real Redis."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import redis
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from gateway.controller.groups import LAPSED
from gateway.model.records import Cause
from gateway.placement import keys
from gateway.placement.errors import FencedError
from tests.gateway.machines import StoreMachine, agree
from tests.support.redis_server import RedisServer
from tests.support.requires import requires

pytestmark = requires("redis")


LONG_S = 1000.0
DELETED = Cause("deleted", "caller", "asked for")


NAMES = st.sampled_from(["run-1", "run-2"])
IDS = st.sampled_from(["sb-1", "sb-2", "sb-3"])
TERMS = st.integers(min_value=1, max_value=3)
LEASES = st.sampled_from(["", "made-up", "held", "previous"])


@dataclass
class Known:
    lease: str = ""
    leased: bool = False
    """Whether the lease has a deadline."""
    expired: bool = False
    """Whether the deadline has passed."""
    ended: str = ""
    members: set[str] = field(default_factory=set)


class GroupSteps(StoreMachine):
    """The model controls time: it lets a lease expire by moving its deadline in Redis."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, Known] = {}
        self.previous: dict[str, str] = {}
        self.terms: dict[str, int] = {}

    def lease_of(self, name: str, which: str) -> str:
        now = self.known.get(name)
        return {"held": now.lease if now else "", "previous": self.previous.get(name, ""), "made-up": "made-up", "": ""}[which]

    def fenced(self, name: str, term: int) -> bool:
        shard = keys.term(keys.shard_of(keys.group_key("ada", name)))
        if term < self.terms.get(shard, 0):
            return True
        self.terms[shard] = term
        return False

    @rule(name=NAMES, which=LEASES)
    def beat(self, name: str, which: str) -> None:
        lease = self.lease_of(name, which)
        outcome, group = self.runner.run(self.store.group_beat("ada", name, LONG_S, lease))
        now = self.known.get(name)
        if now and now.ended:
            if lease and lease == now.lease:
                assert outcome == "lapsed"
                assert group.cause is not None
                assert group.cause.reason == now.ended
                return
            if now.members:
                assert outcome == "freeing"
                return
            self.previous[name] = now.lease
            now = None
        if now and now.lease and lease and lease != now.lease:
            assert outcome == "lapsed"
            return
        assert outcome == "ok"
        now = now or Known()
        assert group.lease == (lease or now.lease or group.lease)
        assert group.lease
        assert group.expires_at is not None
        now.lease, now.leased, now.expired = group.lease, True, False
        self.known[name] = now

    @rule(name=NAMES, id_=IDS, which=LEASES)
    def join(self, name: str, id_: str, which: str) -> None:
        lease = self.lease_of(name, which)
        outcome, _ = self.runner.run(self.store.group_join("ada", name, id_, lease=lease))
        now = self.known.get(name)
        if now and ((now.ended and (lease or now.members)) or (not now.ended and lease and now.lease and lease != now.lease)):
            assert outcome == "lapsed"
            return
        assert outcome == "ok"
        if now is None or now.ended:
            self.previous[name] = now.lease if now else self.previous.get(name, "")
            now = self.known[name] = Known(lease)
        now.members.add(id_)

    @rule(name=NAMES, id_=IDS, term=TERMS)
    def join_rebuilt(self, name: str, id_: str, term: int) -> None:
        step = self.store.group_join("ada", name, id_, ttl_s=LONG_S, term=term)
        if self.fenced(name, term):
            with pytest.raises(FencedError):
                self.runner.run(step)
            return
        self.runner.run(step)
        now = self.known.setdefault(name, Known(leased=True))
        now.members.add(id_)

    @rule(name=NAMES, id_=IDS, stale=st.booleans(), term=TERMS)
    def leave(self, name: str, id_: str, stale: bool, term: int) -> None:
        key = keys.group_key("ada", name)
        joined = self.runner.run(self.store.group_members(key)).get(id_, 0.0)
        step = self.store.group_leave(key, id_, joined - 1.0 if stale else joined, term=term)
        if self.fenced(name, term):
            with pytest.raises(FencedError):
                self.runner.run(step)
            return
        self.runner.run(step)
        now = self.known.get(name)
        if now is None:
            return
        if not stale:
            now.members.discard(id_)
        if not now.members and not now.ended and not now.leased:
            self.known.pop(name)

    @rule(name=NAMES)
    def end(self, name: str) -> None:
        group = self.runner.run(self.store.group_end("ada", name, DELETED))
        now = self.known.get(name)
        assert (group is None) == (now is None)
        if now and group:
            now.ended = now.ended or "deleted"
            assert set(group.members) == now.members

    @rule(name=NAMES, term=TERMS)
    def lapse(self, name: str, term: int) -> None:
        step = self.store.group_lapse(keys.group_key("ada", name), LAPSED, term=term)
        if self.fenced(name, term):
            with pytest.raises(FencedError):
                self.runner.run(step)
            return
        group = self.runner.run(step)
        now = self.known.get(name)
        assert (group is not None) == (now is not None and bool(now.expired or now.ended))
        if now and group:
            now.ended = now.ended or "group-lease"

    @rule(name=NAMES)
    def time_passes(self, name: str) -> None:
        now = self.known.get(name)
        if now and now.leased and not now.ended:
            key = keys.group_key("ada", name)
            with redis.Redis.from_url(self.server.url) as client:
                client.hset(keys.group(key), "due", "1000")
                client.zadd(keys.groups(keys.shard_of(key)), {key: 1000})
            now.expired = True

    @invariant()
    def the_store_agrees(self) -> None:
        due = set(self.runner.run(self.store.due_groups()))
        listed = set(self.runner.run(self.store.group_keys()))
        for name in ("run-1", "run-2"):
            key, now = keys.group_key("ada", name), self.known.get(name)
            group = self.runner.run(self.store.group("ada", name))
            assert (group is None) == (now is None)
            assert self.runner.run(self.store.group("bob", name)) is None
            if now and group:
                assert set(group.members) == now.members
                assert group.count == len(now.members)
                assert (group.lease, bool(group.cause)) == (now.lease, bool(now.ended))
                assert (key in due) == bool(now.members if now.ended else now.expired), "an ended group stays due while it has sandboxes"
                assert (key in listed) == bool(not now.ended or now.members)

    @invariant()
    def nothing_is_left_over(self) -> None:
        explained: set[str] = set()
        for name in self.known:
            key = keys.group_key("ada", name)
            explained |= {keys.group(key), keys.members(key)}
        for name in ("run-1", "run-2"):
            shard = keys.shard_of(keys.group_key("ada", name))
            explained |= {keys.groups(shard), keys.term(shard)}
        with redis.Redis.from_url(self.server.url, decode_responses=True) as client:
            assert set(client.keys("*")) <= explained
            for name, now in self.known.items():
                ttl = client.pttl(keys.group(keys.group_key("ada", name)))
                assert (ttl > 0) == bool(now.ended and not now.members), "only an ended group without members expires from the store"


@pytest.mark.hypothesis
@pytest.mark.timeout(300)
def test_random_steps_on_groups_agree_with_the_model(redis_server: RedisServer) -> None:
    agree(GroupSteps, redis_server, 30)


async def test_the_keys_of_a_group_share_one_slot() -> None:
    key = keys.group_key("ada", "run-7")
    shard = keys.shard_of(key)
    tags = {name.split("}")[0] for name in (keys.group(key), keys.members(key), keys.groups(shard), keys.term(shard))}
    tags |= {name.split("}")[0] for name in keys.usage_keys("ada")} if shard == keys.shard_of(keys.usage("ada")) else set()
    assert len(tags) == 1
    assert len({name.split("}")[0] for name in keys.usage_keys("ada")}) == 1
