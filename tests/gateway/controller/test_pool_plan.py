"""Warm pools without a store: the pools file, which spare fits a request, and the planned action for each spare."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.controller.pool_refill import SparePlan, _Pace, missing, plan_spares
from gateway.model.records import SandboxSpec
from gateway.pools import Pool, PoolsError, PoolsFile, key_of, read_pools
from gateway.runtimes.base import SandboxStatus
from tests.gateway.pool_kit import KEY, POOL, TEXT, spare


def test_a_file_of_pools_is_read() -> None:
    warm, gpu = read_pools(TEXT).values()
    assert warm == POOL
    assert (gpu.cores, gpu.disk_bytes, gpu.options.resources, gpu.egress.mode) == (0.5, 2**30, {"nvidia.com/gpu": 1}, "internet")
    assert list(read_pools(json.dumps([{"name": "warm", "image": "host", "cpu": 1, "memory": "1Gi", "size": 9}]))) == [KEY]


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ("[1]", "a map"),
        ("{name: a}", "image, size is missing"),
        ("{name: a, image: b, size: -1}", "size"),
        ("{name: a, image: b, size: 1, nonsense: 2}", "no field nonsense"),
        ("{name: a, image: b, size: 1, 7: 2}", "no field 7"),
        ("{name: a b, image: b, size: 1}", "name"),
        ("{name: a, image: b, size: 1, cpu: many}", "cpu"),
        ("{name: a, image: b, size: 1, refill_per_s: 0}", "refill_per_s"),
    ],
)
def test_a_wrong_definition_is_refused(entry: str, named: str) -> None:
    with pytest.raises(PoolsError, match=f"^pool 1: .*{named}"):
        read_pools(f"[{entry}]")
    for text in ("{", "7", TEXT + "  - {name: other, image: host, cpu: 1000m, memory: 1Gi, size: 1}"):
        with pytest.raises(PoolsError):
            read_pools(text)


def test_a_changed_file_is_read_again_and_an_invalid_one_is_ignored(tmp_path: Path) -> None:
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


def test_a_spare_fits_only_an_exactly_matching_request() -> None:
    spec = SandboxSpec("sb-1", "ada", "i1", "host", cores=1.0, memory_bytes=2**30, labels={"a": "b"}, lifetime_s=9.0)
    assert key_of(spec) == KEY
    for other in ({"image": "x"}, {"cores": 2.0}, {"memory_bytes": 1}, {"disk_bytes": 1}, {"egress": replace(spec.egress, mode="internet")},
                  {"options": replace(spec.options, user=1)}):  # fmt: skip
        assert key_of(dataclasses.replace(spec, **other)) != KEY


NOTHING = SparePlan({}, [], [])


def decide(offered: set[str], spares: list[SandboxStatus], pool: Pool | None = POOL, creating: set[str] = set()) -> SparePlan:  # noqa: B006
    return plan_spares(pool, offered, spares, now=1000.0, ours=creating)


def test_only_missing_spares_are_created() -> None:
    now, old = 1e6, 1e6 - POOL.max_age_s - 1
    assert missing(POOL, {}, 0, now) == 3
    assert missing(POOL, {"b": now}, 1, now) == 1
    assert missing(POOL, dict.fromkeys("abcd", now), 0, now) == 0
    assert missing(POOL, dict.fromkeys("abc", old), 0, now) == 3
    assert missing(POOL, {str(n): old for n in range(6)}, 0, now) == 0


def test_each_spare_gets_its_action() -> None:
    assert decide({"pool-a"}, [spare("pool-a")]) == NOTHING
    assert decide(set(), [spare("pool-a")]) == SparePlan({"pool-a": 990.0}, [], [])
    assert decide(set(), [spare("pool-a", state="starting")]) == NOTHING
    assert decide(set(), [spare("pool-a")], creating={"pool-a"}) == NOTHING
    assert decide({"pool-a"}, []) == SparePlan({}, ["pool-a"], [])
    assert decide({"pool-a"}, [], creating={"pool-a"}) == NOTHING
    failed = spare("pool-a", state="failed")
    assert decide({"pool-a"}, [failed]) == SparePlan({}, [], [failed])
    assert decide({"pool-a"}, [spare("pool-a")], None) == SparePlan({}, [], [spare("pool-a")])


def test_old_spares_are_kept_until_new_ones_are_ready() -> None:
    old = [spare(f"pool-{n}", POOL.max_age_s + 1) for n in range(3)]
    new = [spare(f"pool-new{n}", n) for n in range(4)]
    known = {one.sandbox_id for one in old + new}

    def discarded(spares: list[SandboxStatus]) -> list[str]:
        return [one.sandbox_id for one in decide(known, spares).discard]

    assert discarded(old + new[:2]) == []
    starting = replace(new[2], state="starting")
    assert discarded([*old, *new[:2], starting]) == [], "a starting spare may never become ready"
    assert discarded(old + new) == ["pool-0", "pool-1", "pool-2", "pool-new3"]


IDS = st.sampled_from(["pool-a", "pool-b", "pool-c", "pool-d", "pool-e"])


@settings(deadline=None)
@given(
    offered=st.sets(IDS),
    existing=st.dictionaries(IDS, st.tuples(st.sampled_from([1.0, 1e9]), st.sampled_from(["ready", "starting", "failed"]))),
    creating=st.sets(IDS),
)
def test_a_plan_keeps_at_most_the_pool_size_and_ignores_spares_in_creation(
    offered: set[str], existing: dict[str, tuple[float, Any]], creating: set[str]
) -> None:
    spares = [spare(id_, age, state=state) for id_, (age, state) in existing.items()]
    plan = decide(offered, spares, creating=creating)
    discarded = [one.sandbox_id for one in plan.discard]
    assert len(discarded) == len(set(discarded))
    assert not creating.intersection([*plan.offer, *plan.withdraw, *discarded])
    gone = set(discarded)
    assert not gone.intersection(plan.offer)
    fresh = [one for one in spares if one.state == "ready" and one.created_at > 0 and one.sandbox_id not in creating]
    assert len([one for one in fresh if one.sandbox_id not in gone]) == min(len(fresh), POOL.size)


def test_a_pool_that_has_failed_thousands_of_times_is_tried_again_after_a_minute() -> None:
    """An exception here would end the controller: an image that cannot be pulled fails so often within a day."""
    pace = _Pace(1.0, 0.0)
    for _ in range(3000):
        pace.failed(1000.0)
    assert 1030.0 <= pace.closed_until <= 1060.0
    assert pace.allow(1, 1.0, pace.closed_until) == 1
