"""The controller handles sandboxes side by side: what is slow for one delays no other, and the events of each keep their order."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from holdfast_wire.errors import HoldfastError

from gateway.controller.loop import Controller
from gateway.controller.workers import Workers
from gateway.model.records import Cause, PlannedEnd, Record
from gateway.placement.store import PlacementStore
from gateway.runtimes.base import EndAnnounced, SandboxEnded
from tests.gateway.controller.test_controller import FAST, add, becomes
from tests.gateway.controllers import at_work
from tests.gateway.harness import MemoryRuntime
from tests.support.requires import requires
from tests.support.until import until_async

OOM, DRAINED = Cause("oom", "workload", "killed for memory"), Cause("evicted", "infrastructure", "the node is drained")
REDIS = requires("redis")


async def test_steps_of_one_key_run_in_order_and_those_of_others_meanwhile() -> None:
    workers, done, gate = Workers(), list[str](), asyncio.Event()

    async def slow() -> None:
        await gate.wait()
        done.append("a1")

    async def quick(name: str) -> None:
        done.append(name)

    async def broken() -> None:
        raise RuntimeError("a bug")

    workers.start("a", "first", slow)
    workers.start("a", "", broken)
    workers.start("a", "", lambda: quick("a2"))
    workers.start("a", "again", lambda: quick("a3"))
    workers.start("a", "again", lambda: quick("not twice"))
    workers.start("b", "", lambda: quick("b1"))
    await until_async(lambda: done == ["b1"], deadline_s=60, what="the other key")
    gate.set()
    await until_async(lambda: done == ["b1", "a1", "a2", "a3"], deadline_s=60, what="the steps in order")
    await until_async(lambda: not workers._steps and not workers._count, deadline_s=60, what="the workers to end")


async def test_more_steps_than_may_wait_are_refused_and_all_end_with_the_controller() -> None:
    workers, never = Workers(most=2), asyncio.Event()

    async def stuck() -> None:
        await never.wait()

    assert [workers.start(key, "", stuck) for key in "aab"] == [True, True, False]
    await workers.aclose()
    assert (workers._count, workers._steps, workers._tasks) == (0, {}, set())
    assert workers.start("b", "", stuck)
    await workers.aclose()


class SlowRuntime(MemoryRuntime):
    """Its deletes of the sandbox ``stuck`` do not end before ``release``."""

    def __init__(self) -> None:
        super().__init__()
        self.release = asyncio.Event()

    async def delete(self, sandbox_id: str, incarnation: str | None = None) -> bool:
        if sandbox_id == "stuck":
            await self.release.wait()
        return await super().delete(sandbox_id, incarnation)


@REDIS
@pytest.mark.parametrize("how", ["expired", "group", "failed"])
async def test_a_removal_that_does_not_end_delays_no_other_sandbox(store: PlacementStore, how: str) -> None:
    runtime = SlowRuntime()
    limits: dict[str, dict[str, Any]] = {"expired": {"lifetime_s": 0.1}, "group": {"group": "run"}, "failed": {}}
    await add(store, runtime, "stuck", **limits[how])
    if how == "group":
        await store.group_beat("ada", "run", 0.1)
        await store.group_join("ada", "run", "stuck")
    if how == "failed":
        await store.mark_failed("stuck", "1" * 16, OOM)
        runtime.present["stuck"] = replace(runtime.present["stuck"], state="failed", cause=OOM, created_at=1.0)
    async with at_work(Controller(store, runtime, "c1", FAST)):
        if how == "expired":
            await until_async(lambda: _ended(store, "stuck"), deadline_s=60, what="its end")
        for number in range(3):  # one after the other, while the first removal hangs
            await add(store, runtime, f"sb-{number}", lifetime_s=0.1)
            await until_async(lambda id_=f"sb-{number}": id_ not in runtime.present, deadline_s=60, what="the removal of another")
            await add(store, runtime, f"oom-{number}")
            runtime.lose(f"oom-{number}", OOM)
            await becomes(store, f"oom-{number}", Record, "oom")
            await until_async(lambda id_=f"oom-{number}": id_ not in runtime.present, deadline_s=60, what="a pass that removes")
        assert "stuck" in runtime.present
        runtime.release.set()
        await until_async(lambda: "stuck" not in runtime.present, deadline_s=60, what="the slow removal")


async def _ended(store: PlacementStore, sandbox_id: str) -> bool:
    return not isinstance(await store.get(sandbox_id), Record)


@REDIS
async def test_an_agent_that_does_not_say_how_long_it_was_idle_delays_no_other(store: PlacementStore) -> None:
    runtime, answer = MemoryRuntime(), asyncio.Event()

    async def ask(record: Record) -> float | None:
        if record.sandbox_id == "silent":
            await answer.wait()
            raise HoldfastError("agent_unreachable", "it did not answer")
        return None

    await add(store, runtime, "silent", idle_timeout_s=0.05)
    async with at_work(Controller(store, runtime, "c1", FAST, ask_idle=ask)):
        for number in range(2):
            await add(store, runtime, f"sb-{number}", idle_timeout_s=0.05)
            await until_async(lambda id_=f"sb-{number}": id_ not in runtime.present, deadline_s=60, what="the end of another")
        assert isinstance(await store.get("silent"), Record)
        answer.set()


@REDIS
async def test_events_of_one_sandbox_keep_their_order_while_those_of_others_pass(
    store: PlacementStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The announcement is slow to record: the end, which has less to say, waits for it."""
    runtime, gate, mark_leaving = MemoryRuntime(), asyncio.Event(), store.mark_leaving

    async def late(sandbox_id: str, incarnation: str, leaving: PlannedEnd, *, term: int) -> Any:
        await gate.wait()
        return await mark_leaving(sandbox_id, incarnation, leaving, term=term)

    monkeypatch.setattr(store, "mark_leaving", late)
    for id_ in ("drained", "other"):
        await add(store, runtime, id_)
    async with at_work(Controller(store, runtime, "c1", FAST)) as controller:
        await until_async(lambda: controller.leadership.term and runtime._watchers, deadline_s=60, what="the lead")
        runtime._publish(EndAnnounced("drained", "1" * 16, DRAINED, 2_000_000_000.0))
        runtime._publish(SandboxEnded("drained", "1" * 16, Cause("node-lost", "infrastructure", "gone")))
        runtime.lose("other", OOM)
        await becomes(store, "other", Record, "oom")
        assert isinstance(record := await store.get("drained"), Record)
        assert record.status == "ready"
        gate.set()
        await becomes(store, "drained", Record, "evicted")
