"""The rules by which the reconciler decides which evidence justifies an action, tested as a pure function."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.controller.plan import CREATE_LOST, NODE_LOST, Action, MarkFailed, MarkPaused, MarkReady, Plan, Rebuild, Remove, plan
from gateway.model.records import Cause, Record, SandboxSpec, Status, Tombstone
from gateway.runtimes.base import SandboxStatus

NOW, GRACE = 10_000.0, 60.0
OOM = Cause("oom", "workload")


def record(id_: str = "sb-1", incarnation: str = "i1", status: Status = "ready", age: float = 1000.0) -> Record:
    spec = SandboxSpec(sandbox_id=id_, owner="ada", incarnation=incarnation, image="host")
    return Record(spec, status, NOW - age, ready_at=None if status == "pending" else NOW - age)


def present(id_: str = "sb-1", incarnation: str = "i1", **more: object) -> SandboxStatus:
    return replace(SandboxStatus(SandboxSpec(id_, "ada", incarnation, "host"), "unix:///a", NOW - 1000.0), **more)  # type: ignore[arg-type]


def tombstone(id_: str = "sb-1", incarnation: str = "i1") -> Tombstone:
    return Tombstone(id_, "ada", incarnation, OOM, NOW)


def decide(
    records: list[Record] = [],  # noqa: B006
    statuses: list[SandboxStatus] = [],  # noqa: B006
    tombstones: list[Tombstone] = [],  # noqa: B006
    *,
    whole: bool = True,
    suspects: frozenset[Action] = frozenset(),
    began_at: float | None = None,
) -> Plan:
    return plan(
        {one.sandbox_id: one for one in records},
        statuses,
        {one.sandbox_id: one for one in tombstones},
        now=NOW,
        grace_s=GRACE,
        whole=whole,
        suspects=suspects,
        began_at=began_at,
    )


def twice(records: list[Record], statuses: list[SandboxStatus], tombstones: list[Tombstone] | None = None) -> list[Action]:
    first = decide(records, statuses, tombstones or [])
    assert first.actions == []
    return decide(records, statuses, tombstones or [], suspects=first.suspects).actions


def test_agreement_needs_nothing() -> None:
    assert decide([record()], [present()]) == Plan([], frozenset())


def test_an_unknown_sandbox_is_recorded_and_never_removed() -> None:
    for whole in (True, False):
        assert decide([], [present()], whole=whole).actions == [Rebuild(present())]


def test_a_state_that_the_runtime_reports_is_recorded_at_once() -> None:
    assert decide([record(status="pending")], [present()]).actions == [MarkReady("sb-1", "i1", "unix:///a")]
    assert decide([record()], [present(state="failed", cause=OOM)]).actions == [MarkFailed("sb-1", "i1", OOM)]


def test_a_starting_sandbox_is_neither_ready_nor_lost() -> None:
    assert twice([record(status="pending")], [present(state="starting")]) == []
    assert twice([record()], [present(state="starting")]) == [], "the gateway that creates it knows its state first"


def test_a_wiped_store_gets_the_record_of_every_sandbox_in_its_state() -> None:
    for sandbox in (present(state="starting"), present(state="failed", cause=OOM)):
        assert decide([], [sandbox], whole=False).actions == [Rebuild(sandbox)]


def test_removal_needs_two_passes_and_a_complete_store() -> None:
    remove = [Remove("sb-1", "i1")]
    assert twice([], [present()], [tombstone()]) == remove
    assert twice([record(status="failed")], [present()]) == remove
    assert twice([record(status="failed")], [present(state="failed")]) == remove
    assert twice([record(incarnation="i2")], [present()]) == remove, "one pass ends one sandbox of so few"
    first = decide([], [present()], [tombstone()])
    assert decide([], [present()], [tombstone()], whole=False, suspects=first.suspects).actions == []


def test_a_new_sandbox_is_not_removed() -> None:
    young = present(created_at=NOW - GRACE + 1)
    assert twice([], [young], [tombstone()]) == []
    assert twice([record(status="failed")], [young]) == []
    assert twice([record(incarnation="i2")], [young]) == [MarkFailed("sb-1", "i2", NODE_LOST)]


def test_a_tombstone_of_another_incarnation_is_no_evidence() -> None:
    assert decide([], [present()], [tombstone(incarnation="i0")]).actions == [Rebuild(present())]


def test_a_missing_sandbox_is_lost_only_after_the_grace_period() -> None:
    assert twice([record()], []) == [MarkFailed("sb-1", "i1", NODE_LOST)]
    assert twice([record(age=GRACE - 1)], []) == []
    assert twice([record(status="pending", age=GRACE + 1)], []) == []
    assert twice([record(status="pending", age=5 * GRACE + 1)], []) == [MarkFailed("sb-1", "i1", CREATE_LOST)]
    assert twice([record(status="failed")], []) == []


def test_a_creation_that_is_still_renewed_is_not_given_up() -> None:
    pending = record(status="pending", age=50 * GRACE)
    assert twice([replace(pending, active_at=NOW - 5 * GRACE + 1)], []) == []
    assert twice([replace(pending, active_at=NOW - 5 * GRACE - 1)], []) == [MarkFailed("sb-1", "i1", CREATE_LOST)]


def test_a_restarted_runtime_has_lost_the_sandboxes_of_before() -> None:
    old = [record(f"sb-{number}") for number in range(20)]
    lost = [MarkFailed(one.sandbox_id, "i1", NODE_LOST) for one in old]
    assert decide(old, began_at=NOW - 5).actions == lost
    assert decide(old, began_at=NOW - 5, whole=False).actions == lost
    assert decide([record(age=4.0)], began_at=NOW - 5).actions == []
    assert decide([record(status="pending")], began_at=NOW - 5).actions == []
    assert decide([record(incarnation="i2")], [present()], began_at=NOW - 5).actions == []
    assert decide(old, [present(one.sandbox_id) for one in old], began_at=NOW - 5).actions == []


def test_one_pass_ends_at_most_a_tenth_but_at_least_one() -> None:
    for total, most in ((1, 1), (9, 1), (10, 1), (30, 3), (100, 10)):
        records = [record(f"sb-{number}") for number in range(total)]
        first = decide(records, [])
        second = decide(records, [], suspects=first.suspects)
        assert len(second.actions) == most
        assert len(second.suspects) == total - most


_IDS = st.sampled_from(["sb-1", "sb-2", "sb-3"])
_INCARNATIONS = st.sampled_from(["i1", "i2"])


@settings(deadline=None)
@given(
    records=st.lists(
        st.builds(record, _IDS, _INCARNATIONS, st.sampled_from(["pending", "ready", "failed"]), st.sampled_from([1.0, 100.0, 1000.0])),
        unique_by=lambda one: one.sandbox_id,
    ),
    statuses=st.lists(
        st.builds(present, _IDS, _INCARNATIONS, state=st.sampled_from(["ready", "failed"])), unique_by=lambda one: one.sandbox_id
    ),
    tombstones=st.lists(st.builds(tombstone, _IDS, _INCARNATIONS), unique_by=lambda one: one.sandbox_id),
    whole=st.booleans(),
)
def test_a_living_sandbox_is_removed_only_with_a_record_of_its_end(
    records: list[Record], statuses: list[SandboxStatus], tombstones: list[Tombstone], whole: bool
) -> None:
    first = decide(records, statuses, tombstones, whole=whole)
    second = decide(records, statuses, tombstones, whole=whole, suspects=first.suspects)
    assert not any(isinstance(action, Remove) for action in first.actions)
    for action in second.actions:
        if isinstance(action, Remove):
            known = {one.sandbox_id: one for one in records}.get(action.sandbox_id)
            status = {one.sandbox_id: one for one in statuses}[action.sandbox_id]
            ended = {one.sandbox_id: one for one in tombstones}.get(action.sandbox_id)
            assert whole
            assert (
                (known is not None and status.state == "failed")
                or (known is not None and (known.status == "failed" or known.incarnation != status.incarnation))
                or (known is None and ended is not None and ended.incarnation == status.incarnation)
            )


def test_the_remains_of_an_earlier_sandbox_do_not_hide_the_current_one() -> None:
    """A pod that was adopted from a spare has the same id as the pod of the next sandbox; they may be listed in either order."""
    left, living = present(incarnation="i0"), present(incarnation="i1")
    for statuses in ([left, living], [living, left]):
        assert twice([record()], statuses) == [Remove("sb-1", "i0")]
    assert decide([record(status="pending")], [living, left]).actions == [MarkReady("sb-1", "i1", "unix:///a")]


def test_a_record_that_differs_in_whether_its_sandbox_is_paused_is_corrected_when_it_still_differs_in_the_next_pass() -> None:
    paused = replace(record(), paused="memory")
    assert decide([paused], [present(paused="memory")]) == Plan([], frozenset())
    assert twice([record()], [present(paused="disk")]) == [MarkPaused("sb-1", "i1", "disk")]
    assert twice([paused], [present()]) == [MarkPaused("sb-1", "i1", "")]
    assert twice([record(status="failed")], [present(paused="disk")]) == [Remove("sb-1", "i1")]


def test_a_rebuilt_record_comes_from_a_paused_sandbox_too() -> None:
    paused = present(paused="disk")
    assert decide([], [paused]).actions == [Rebuild(paused)]
