"""Warm pools without a store: what a file defines, what fits a request, what is planned for each spare."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.controller.pool_plan import Discard, Forget, Offer, Withdraw, missing, plan_spares
from gateway.model.records import PoolState, SandboxSpec
from gateway.pools import Pool, PoolsError, PoolsFile, key_of, read_pools
from gateway.runtimes.base import SandboxStatus
from tests.gateway.pool_kit import GRACE, KEY, POOL, POOLS, TEXT, spare


def test_a_file_of_pools_is_read() -> None:
    warm, gpu = read_pools(TEXT).values()
    assert warm == POOL
    assert (gpu.cores, gpu.disk_bytes, gpu.options.resources, gpu.egress.mode) == (0.5, 2**30, {"nvidia.com/gpu": 1}, "internet")
    assert list(read_pools(json.dumps([{"name": "warm", "image": "host", "cpu": 1, "memory": "1Gi", "size": 9}]))) == [KEY]


@pytest.mark.parametrize(
    "entry",
    ["[1]", "{name: a}", "{name: a, image: b, size: -1}", "{name: a, image: b, size: 1, nonsense: 2}", "{name: a b, image: b, size: 1}",
     "{name: a, image: b, size: 1, cpu: many}", "{name: a, image: b, size: 1, refill_per_s: 0}"],
)  # fmt: skip
def test_a_wrong_definition_is_refused(entry: str) -> None:
    with pytest.raises(PoolsError):
        read_pools(f"[{entry}]")
    for text in ("{", "7", TEXT + "  - {name: other, image: host, cpu: 1000m, memory: 1Gi, size: 1}"):
        with pytest.raises(PoolsError):
            read_pools(text)


def test_a_changed_file_is_read_again_and_a_broken_one_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "pools.yaml"
    file = PoolsFile(path)
    assert file.read() == {}
    path.write_text(TEXT)
    assert next(iter(file.read())) == KEY
    other = tmp_path / "other"
    other.write_text("{")
    other.rename(path)
    assert next(iter(file.read())) == KEY
    path.unlink()
    assert next(iter(file.read())) == KEY


def test_a_spare_fits_what_is_asked_for_and_nothing_less() -> None:
    spec = SandboxSpec("sb-1", "ada", "i1", "host", cores=1.0, memory_bytes=2**30, labels={"a": "b"}, lifetime_s=9.0)
    assert key_of(spec) == KEY
    for other in ({"image": "x"}, {"cores": 2.0}, {"memory_bytes": 1}, {"disk_bytes": 1}, {"egress": replace(spec.egress, mode="internet")},
                  {"options": replace(spec.options, user=1)}):  # fmt: skip
        assert key_of(dataclasses.replace(spec, **other)) != KEY


def decide(state: PoolState, statuses: list[SandboxStatus], pools: dict[str, Pool] = POOLS, ours: set[str] = set()) -> list[Any]:  # noqa: B006
    return plan_spares(pools, {KEY: state}, statuses, now=1000.0, ours=ours, claim_grace_s=GRACE)


def test_what_is_missing_is_made_and_no_more() -> None:
    assert missing(POOL, PoolState()) == 3
    assert missing(POOL, PoolState({"a": 1.0}, {"b": 1.0})) == 1
    assert missing(POOL, PoolState({}, {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0})) == 0
    old = POOL.max_age_s + 1
    assert missing(POOL, PoolState({}, {"a": old, "b": old, "c": old})) == 3
    assert missing(POOL, PoolState({}, {str(n): old for n in range(6)})) == 0


def test_each_spare_is_judged() -> None:
    fine = PoolState({}, {"pool-a": 1.0})
    assert decide(fine, [spare("pool-a")]) == []
    assert decide(PoolState(), [spare("pool-a")]) == [Offer(KEY, "pool-a")]
    assert decide(PoolState({"pool-a": 1.0}), [spare("pool-a")]) == [Offer(KEY, "pool-a")]
    assert decide(PoolState({"pool-a": 1.0}), [spare("pool-a", state="starting")]) == []
    assert decide(PoolState({"pool-a": 1.0}), [spare("pool-a")], ours={"pool-a"}) == []
    assert decide(PoolState({"pool-a": 1.0}), []) == [Discard(KEY, "pool-a")]
    assert decide(PoolState({"pool-a": 1.0}), [], ours={"pool-a"}) == []
    assert decide(fine, []) == [Withdraw(KEY, "pool-a")]
    assert decide(fine, [spare("pool-a", state="failed")]) == [Discard(KEY, "pool-a", "i"), Withdraw(KEY, "pool-a")][:1]
    assert decide(fine, [spare("pool-a")], {}) == [Discard(KEY, "pool-a", "i")]


def test_what_was_taken_is_left_alone_until_its_taker_must_be_gone() -> None:
    assert decide(PoolState({}, {}, {"pool-a": GRACE - 1}), [spare("pool-a")]) == []
    assert decide(PoolState({}, {}, {"pool-a": GRACE}), [spare("pool-a")]) == [Discard(KEY, "pool-a", "i")]
    assert decide(PoolState({}, {}, {"pool-a": GRACE - 1}), []) == []
    assert decide(PoolState({}, {}, {"pool-a": GRACE}), []) == [Forget(KEY, "pool-a")]


def test_old_spares_serve_until_there_are_new_ones() -> None:
    old = [spare(f"pool-{n}", POOL.max_age_s + 1) for n in range(3)]
    new = [spare(f"pool-new{n}", n) for n in range(4)]
    known = PoolState({}, {one.sandbox_id: 1.0 for one in old + new})
    assert [a for a in decide(known, old + new[:2]) if isinstance(a, Discard)] == []
    coming = replace(new[2], state="starting")
    assert [a for a in decide(known, [*old, *new[:2], coming]) if isinstance(a, Discard)] == [], "it may never come up"
    assert [a.spare_id for a in decide(known, old + new) if isinstance(a, Discard)] == ["pool-0", "pool-1", "pool-2", "pool-new3"]


IDS = st.sampled_from(["pool-a", "pool-b", "pool-c", "pool-d"])
AGES = st.sampled_from([1.0, GRACE, 1e9])


@settings(deadline=None)
@given(
    making=st.dictionaries(IDS, AGES),
    spares=st.dictionaries(IDS, AGES),
    taken=st.dictionaries(IDS, AGES),
    there=st.dictionaries(IDS, st.tuples(AGES, st.sampled_from(["ready", "failed"]))),
)
def test_no_plan_removes_what_somebody_may_be_using(
    making: dict[str, float], spares: dict[str, float], taken: dict[str, float], there: dict[str, tuple[float, Any]]
) -> None:
    statuses = [spare(id_, age, state=state) for id_, (age, state) in there.items()]
    for action in decide(PoolState(making, spares, taken), statuses):
        if isinstance(action, Discard | Offer):
            assert taken.get(action.spare_id, GRACE) >= GRACE or action.spare_id in making
