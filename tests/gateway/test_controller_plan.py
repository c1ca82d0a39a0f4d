"""The reconciler's rules of evidence, as a pure function."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.controller.plan import CREATE_LOST, NODE_LOST, Action, MarkFailed, MarkReady, Plan, Rebuild, Remove, plan
from gateway.model.records import Cause, Record, SandboxSpec, Status, Tombstone
from gateway.runtimes.base import SandboxStatus

NOW, GRACE = 10_000.0, 60.0
OOM = Cause("oom", "workload")


def record(id_: str = "sb-1", incarnation: str = "i1", status: Status = "ready", age: float = 1000.0) -> Record:
    spec = SandboxSpec(sandbox_id=id_, owner="ada", incarnation=incarnation, image="host")
    return Record(spec, status, NOW - age, ready_at=None if status == "pending" else NOW - age)


def present(id_: str = "sb-1", incarnation: str = "i1", **more: object) -> SandboxStatus:
    return replace(SandboxStatus(id_, incarnation, "ada", "host", "unix:///a", NOW - 1000.0), **more)  # type: ignore[arg-type]


def grave(id_: str = "sb-1", incarnation: str = "i1") -> Tombstone:
    return Tombstone(id_, "ada", incarnation, OOM, NOW)


def decide(
    records: list[Record] = [],  # noqa: B006
    statuses: list[SandboxStatus] = [],  # noqa: B006
    graves: list[Tombstone] = [],  # noqa: B006
    *,
    whole: bool = True,
    suspects: frozenset[Action] = frozenset(),
    began_at: float | None = None,
) -> Plan:
    return plan(
        {one.sandbox_id: one for one in records},
        statuses,
        {one.sandbox_id: one for one in graves},
        now=NOW,
        grace_s=GRACE,
        whole=whole,
        suspects=suspects,
        began_at=began_at,
    )


def twice(records: list[Record], statuses: list[SandboxStatus], graves: list[Tombstone] | None = None) -> list[Action]:
    first = decide(records, statuses, graves or [])
    assert first.actions == []
    return decide(records, statuses, graves or [], suspects=first.suspects).actions


def test_agreement_needs_nothing() -> None:
    assert decide([record()], [present()]) == Plan([], frozenset())


def test_an_unknown_sandbox_is_recorded_never_removed() -> None:
    for whole in (True, False):
        assert decide([], [present()], whole=whole).actions == [Rebuild(present())]


def test_what_the_runtime_reports_is_recorded_at_once() -> None:
    assert decide([record(status="pending")], [present()]).actions == [MarkReady("sb-1", "i1", "unix:///a")]
    assert decide([record()], [present(state="failed", cause=OOM)]).actions == [MarkFailed("sb-1", "i1", OOM)]


def test_what_only_starts_is_neither_ready_nor_lost() -> None:
    assert twice([record(status="pending")], [present(state="starting")]) == []
    assert twice([record()], [present(state="starting")]) == [], "who made it knows sooner"
    assert twice([], [present(state="starting")]) == [], "a wiped store is told once it is ready"


def test_removal_needs_two_looks_and_a_whole_store() -> None:
    remove = [Remove("sb-1", "i1")]
    assert twice([], [present()], [grave()]) == remove
    assert twice([record(status="failed")], [present()]) == remove
    assert twice([record(status="failed")], [present(state="failed")]) == remove
    assert twice([record(incarnation="i2")], [present()])[:1] == remove
    first = decide([], [present()], [grave()])
    assert decide([], [present()], [grave()], whole=False, suspects=first.suspects).actions == []


def test_nothing_young_is_removed() -> None:
    young = present(created_at=NOW - GRACE + 1)
    assert twice([], [young], [grave()]) == []
    assert twice([record(status="failed")], [young]) == []
    assert not any(isinstance(action, Remove) for action in twice([record(incarnation="i2")], [young]))


def test_a_grave_of_another_incarnation_is_no_evidence() -> None:
    assert decide([], [present()], [grave(incarnation="i0")]).actions == [Rebuild(present())]


def test_what_is_missing_is_lost_only_after_the_grace() -> None:
    assert twice([record()], []) == [MarkFailed("sb-1", "i1", NODE_LOST)]
    assert twice([record(age=GRACE - 1)], []) == []
    assert twice([record(status="pending", age=GRACE + 1)], []) == []
    assert twice([record(status="pending", age=5 * GRACE + 1)], []) == [MarkFailed("sb-1", "i1", CREATE_LOST)]
    assert twice([record(status="failed")], []) == []


def test_what_somebody_still_makes_is_not_given_up() -> None:
    pending = record(status="pending", age=50 * GRACE)
    assert twice([replace(pending, active_at=NOW - 5 * GRACE + 1)], []) == []
    assert twice([replace(pending, active_at=NOW - 5 * GRACE - 1)], []) == [MarkFailed("sb-1", "i1", CREATE_LOST)]


def test_a_runtime_that_began_anew_has_lost_what_was_ready_before() -> None:
    old = [record(f"sb-{number}") for number in range(20)]
    lost = [MarkFailed(one.sandbox_id, "i1", NODE_LOST) for one in old]
    assert decide(old, began_at=NOW - 5).actions == lost
    assert decide(old, began_at=NOW - 5, whole=False).actions == lost
    assert decide([record(age=4.0)], began_at=NOW - 5).actions == []
    assert decide([record(status="pending")], began_at=NOW - 5).actions == []
    assert decide([record(incarnation="i2")], [present()], began_at=NOW - 5).actions == []
    assert decide(old, [present(one.sandbox_id) for one in old], began_at=NOW - 5).actions == []


def test_at_most_a_tenth_but_at_least_one() -> None:
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
    graves=st.lists(st.builds(grave, _IDS, _INCARNATIONS), unique_by=lambda one: one.sandbox_id),
    whole=st.booleans(),
)
def test_nothing_living_is_removed_without_a_record_of_its_end(
    records: list[Record], statuses: list[SandboxStatus], graves: list[Tombstone], whole: bool
) -> None:
    first = decide(records, statuses, graves, whole=whole)
    second = decide(records, statuses, graves, whole=whole, suspects=first.suspects)
    assert not any(isinstance(action, Remove) for action in first.actions)
    for action in second.actions:
        if isinstance(action, Remove):
            known = {one.sandbox_id: one for one in records}.get(action.sandbox_id)
            here = {one.sandbox_id: one for one in statuses}[action.sandbox_id]
            dead = {one.sandbox_id: one for one in graves}.get(action.sandbox_id)
            assert whole
            assert (
                here.state == "failed"
                or (known is not None and (known.status == "failed" or known.incarnation != here.incarnation))
                or (known is None and dead is not None and dead.incarnation == here.incarnation)
            )


def test_what_is_left_of_an_ids_former_holder_hides_nobody() -> None:
    """One that was made of a spare bears the id beside the pod of the next: the order in which they are listed says nothing."""
    left, living = present(incarnation="i0"), present(incarnation="i1")
    for statuses in ([left, living], [living, left]):
        assert twice([record()], statuses) == [Remove("sb-1", "i0")]
    assert decide([record(status="pending")], [living, left]).actions == [MarkReady("sb-1", "i1", "unix:///a")]
