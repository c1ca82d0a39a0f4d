"""Collection: resumed after kill -9 and after any cut of its files, tries after faults, images ahead, and the line of progress."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from holdfast_recipes.core.trajectory import Trajectory
from holdfast_recipes.pipeline import files, runs
from holdfast_recipes.pipeline.collect import Collected, Rollout, collect
from holdfast_recipes.pipeline.errors import DataError, InfrastructureError, RunInUseError, RunMismatchError, SettingError
from holdfast_recipes.pipeline.evaluate import Trial
from holdfast_recipes.pipeline.images import Images
from holdfast_recipes.pipeline.progress import Progress
from holdfast_recipes.pipeline.runs import Attempt, Plan, RolloutSlot, Run

from tests.recipes.pipeline import collector
from tests.recipes.pipeline.made import lost, made, task
from tests.support.until import until

TASKS = [task("a"), task("b", "img:b"), task("c", "img:c")]


def rolled(outcome: Callable[[RolloutSlot], str], log: list[str] | None = None) -> Rollout:
    """Rollouts whose outcome is the mark of their slot: ``+``, ``-`` or ``x``."""

    async def rollout(slot: RolloutSlot, seed: int, name: str) -> Attempt:
        if log is not None:
            log.append(name)
        await asyncio.sleep(0)
        mark = outcome(slot)
        changes: dict[str, Any] = {"task_id": slot.task.task_id, "seed": seed}
        run: Trajectory = lost(name, **changes) if mark == "x" else made(name, resolved=mark == "+", **changes)
        return Attempt(run, 2.0, 0.25, {"loop": 1.5}, {"aborted": 1} if mark == "x" else {})

    return rollout


async def collected(folder: Path, rollout: Rollout, plan: Plan | None = None, **settings: int) -> Collected:
    with Run.open(folder, plan or Plan("r", 2), TASKS) as run:
        return await collect(run, rollout, **settings)  # type: ignore[arg-type]


async def test_every_task_gets_its_rollouts_once(tmp_path: Path) -> None:
    log: list[str] = []
    done = await collected(tmp_path, rolled(lambda slot: "+-"[slot.index], log), concurrency=4)
    assert sorted(log) == ["r/a/0", "r/a/1", "r/b/0", "r/b/1", "r/c/0", "r/c/1"]
    assert (done.total, done.finished, done.given_up, done.left) == (6, 6, 0, 0)
    assert done.outcomes == {"solved": 3, "failed": 3, "infrastructure": 0, "environment": 0, "ungraded": 0}
    assert (done.wall_s, done.cost_usd, done.seconds) == (12.0, 1.5, {"loop": 9.0})
    found = list(files.trajectories(tmp_path))
    assert sorted(run.trajectory_id for run in found) == sorted(log)
    assert len({run.seed for run in found}) == 6
    assert len(runs.attempts(tmp_path) or []) == 6
    again: list[str] = []
    assert (await collected(tmp_path, rolled(lambda slot: "+", again))).finished == 6
    assert again == []


async def test_more_rollouts_of_the_same_run_keep_those_it_has(tmp_path: Path) -> None:
    await collected(tmp_path, rolled(lambda slot: "+"))
    before = {run.trajectory_id: run.seed for run in files.trajectories(tmp_path)}
    log: list[str] = []
    await collected(tmp_path, rolled(lambda slot: "+", log), Plan("r", 3))
    assert log == ["r/a/2", "r/b/2", "r/c/2"]
    assert before.items() <= {run.trajectory_id: run.seed for run in files.trajectories(tmp_path)}.items()
    with Run.open(tmp_path, Plan("r", 1), TASKS) as fewer:
        assert (fewer.total, fewer.finished, list(fewer.slots())) == (3, 3, [])


async def test_infrastructure_failures_are_retried_after_all_others(tmp_path: Path) -> None:
    log: list[str] = []
    outcome = rolled(lambda slot: "x" if slot.task.task_id == "a" and slot.faults < 2 else "+", log)
    done = await collected(tmp_path, outcome, Plan("r", 1), concurrency=1)
    assert log == ["r/a/0", "r/b/0", "r/c/0", "r/a/0#1", "r/a/0#2"]
    assert (done.finished, done.given_up, done.outcomes["infrastructure"]) == (3, 0, 2)
    assert done.events == {"aborted": 2}
    assert [record["trajectory_id"] for record in runs.faults(tmp_path)] == ["r/a/0", "r/a/0#1"]
    assert "r/a/0#2" in [run.trajectory_id for run in files.trajectories(tmp_path)]
    with Run.open(tmp_path, Plan("r", 1), TASKS) as run:
        assert list(run.slots()) == []


async def test_after_three_tries_a_rollout_is_given_up(tmp_path: Path) -> None:
    log: list[str] = []
    done = await collected(tmp_path, rolled(lambda slot: "x" if slot.task.task_id == "a" else "-", log), Plan("r", 1))
    assert Counter(name.partition("#")[0] for name in log) == {"r/a/0": 3, "r/b/0": 1, "r/c/0": 1}
    assert (done.finished, done.given_up, done.left) == (2, 1, 0)
    done = await collected(tmp_path, rolled(lambda slot: "+"), Plan("r", 1, tries=4))
    assert (done.finished, done.given_up) == (3, 0)


async def test_a_service_that_fails_every_rollout_ends_the_collection(tmp_path: Path) -> None:
    log: list[str] = []
    with pytest.raises(InfrastructureError, match=r"4 rollouts in a row .* node_lost"):
        await collected(tmp_path, rolled(lambda slot: "x", log), concurrency=2, most_in_a_row=4)
    assert len(log) in (4, 5)
    done = await collected(tmp_path, rolled(lambda slot: "+"))
    assert done.finished == 6


async def test_an_error_in_a_rollout_ends_the_collection_and_the_next_one_continues(tmp_path: Path) -> None:
    async def failing(slot: RolloutSlot, seed: int, name: str) -> Attempt:
        if slot.task.task_id == "b":
            raise RunMismatchError("no")
        return await rolled(lambda each: "+")(slot, seed, name)

    with pytest.raises(RunMismatchError):
        await collected(tmp_path, failing, concurrency=1)
    log: list[str] = []
    assert (await collected(tmp_path, rolled(lambda slot: "+", log))).finished == 6
    assert log == ["r/b/0", "r/b/1", "r/c/0", "r/c/1"]


async def test_a_cancelled_collection_ends_its_rollouts(tmp_path: Path) -> None:
    began, ended = asyncio.Event(), []

    async def endless(slot: RolloutSlot, seed: int, name: str) -> Attempt:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)
        raise AssertionError

    work = asyncio.create_task(collected(tmp_path, endless, concurrency=2))
    await began.wait()
    work.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await work
    assert sorted(ended) == ["r/a/0", "r/a/1"]
    assert (await collected(tmp_path, rolled(lambda slot: "+"))).finished == 6


def start(folder: Path, log: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.recipes.pipeline.collector", str(folder), str(log)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})


def whole_lines(path: Path) -> list[str]:
    """Ids of the trajectories that are completely written to the file."""
    if not path.exists():
        return []
    return [str(record["trajectory_id"]) for _, record in files.lines(path)]


def test_a_killed_collection_loses_and_repeats_no_finished_rollout(tmp_path: Path) -> None:
    """kill -9 after 0, 1, 5, 10 and 20 lines; a rollout that was completely in the file then is never started again."""
    folder, log = tmp_path / "run", tmp_path / "log"
    log.touch()
    finished: set[str] = set()
    for lines in (0, 1, 5, 10, 20):
        mark = len(log.read_text().splitlines())
        process = start(folder, log)
        path = folder / files.TRAJECTORIES
        until(lambda path=path, lines=lines: path.exists() and path.read_bytes().count(b"\n") >= lines, deadline_s=60, what="lines")  # type: ignore[misc]
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert not finished & set(log.read_text().splitlines()[mark:])
        assert finished <= set(whole_lines(path))
        finished = set(whole_lines(path))
    mark = len(log.read_text().splitlines())
    process = start(folder, log)
    assert process.communicate(timeout=60)[0].split()[0] == "24"
    assert not finished & set(log.read_text().splitlines()[mark:])
    ids = whole_lines(folder / files.TRAJECTORIES)
    assert len(ids) == len(set(ids)) == 24
    assert set(ids) == {f"killed/t{number}/{index}" for number in range(6) for index in range(4)}
    assert {collector.PLAN.id_of(RolloutSlot(each, 0)) for each in collector.TASKS} <= set(ids)


async def test_collection_continues_after_any_cut_of_its_file(tmp_path: Path) -> None:
    await collected(tmp_path, rolled(lambda slot: "+"))
    path = tmp_path / files.TRAJECTORIES
    whole = path.read_bytes()
    begin = whole.rfind(b"\n", 0, -1) + 1
    for size in (*range(begin, len(whole), 97), len(whole) - 1):
        path.write_bytes(whole[:size])
        with Run.open(tmp_path, Plan("r", 2), TASKS) as run:
            assert (run.finished, run.cut_bytes) == (5, size - begin)
            assert len(list(run.slots())) == 1
        assert path.read_bytes() == whole[:begin]
    path.write_bytes(whole.replace(b"{", b"", 1))
    with pytest.raises(DataError, match=r"trajectories.jsonl:1: not JSON"):
        Run.open(tmp_path, Plan("r", 2), TASKS)
    path.write_bytes(whole)
    with Run.open(tmp_path, Plan("r", 2), TASKS) as run:  # the lock was released
        assert run.finished == 6


def test_one_process_at_a_time_and_one_plan(tmp_path: Path) -> None:
    plan = Plan("r", 2, settings={"policy": "m"})
    with Run.open(tmp_path, plan, TASKS), pytest.raises(RunInUseError):
        Run.open(tmp_path, plan, TASKS)
    for other, tasks, word in (
        (Plan("s", 2, settings={"policy": "m"}), TASKS, "name"),
        (Plan("r", 2, seed=1, settings={"policy": "m"}), TASKS, "seed"),
        (Plan("r", 2, settings={"policy": "n"}), TASKS, "settings"),
        (plan, TASKS[:2], "tasks, tasks_sha256"),
        (plan, [*TASKS[:2], task("c", "other")], "tasks_sha256"),
    ):
        with pytest.raises(RunMismatchError, match=f"other {word}$"):
            Run.open(tmp_path, other, tasks)
    Run.open(tmp_path, plan, TASKS).close()
    for name, rollouts in (("", 1), ("a/b", 1), ("r", 0)):
        with pytest.raises(SettingError):
            Plan(name, rollouts)
    (tmp_path / "run.json").unlink()
    (tmp_path / files.TRAJECTORIES).write_text("{}\n")
    with pytest.raises(RunMismatchError, match=r"no run\.json"):
        Run.open(tmp_path, plan, TASKS)


def test_ids_with_odd_characters_are_found_again(tmp_path: Path) -> None:
    odd = [task("a/b#1"), task("a/1"), task("x#2/3")]
    plan = Plan("r", 2)
    with Run.open(tmp_path, plan, odd) as run:
        for slot in list(run.slots()):
            run.record(slot, Attempt(made(plan.id_of(slot), task_id=slot.task.task_id)))
    with Run.open(tmp_path, plan, odd) as run:
        assert run.finished == 6


async def test_images_are_pulled_ahead_in_order_once(tmp_path: Path) -> None:
    pulling: list[str] = []
    allowed: dict[str, asyncio.Event] = {name: asyncio.Event() for name in "abcd"}

    async def pull(name: str) -> bool:
        pulling.append(name)
        await allowed[name].wait()
        return name != "b"

    images = Images(pull, ahead=2, pulls=2)
    images.expect("abacd")
    await asyncio.sleep(0)
    assert pulling == ["a", "b"]
    waiting = asyncio.create_task(images.ready("a"))
    allowed["a"].set()
    await waiting
    await asyncio.sleep(0)
    assert pulling == ["a", "b", "c"]
    allowed["b"].set()
    await images.ready("b")
    await images.ready("b")
    assert images.failed == ["b"]
    await asyncio.sleep(0)
    assert pulling == ["a", "b", "c", "d"]
    await images.close()


async def test_a_rollout_waits_for_its_image(tmp_path: Path) -> None:
    events: list[str] = []

    async def pull(name: str) -> bool:
        await asyncio.sleep(0)
        events.append(f"pulled {name}")
        return True

    async def rollout(slot: RolloutSlot, seed: int, name: str) -> Attempt:
        events.append(f"began {slot.task.image}")
        return await rolled(lambda each: "+")(slot, seed, name)

    with Run.open(tmp_path, Plan("r", 1), TASKS) as run:
        await collect(run, rollout, concurrency=3, images=Images(pull))
    for each in TASKS:
        assert events.index(f"pulled {each.image}") < events.index(f"began {each.image}")


def test_the_line_of_progress() -> None:
    now = 0.0
    stream = io.StringIO()
    progress = Progress(True, stream, lambda: now)
    progress.begin(10, 50)
    assert progress.line() == "[####....................] 10/50, 0 solved, 0 failed"
    now = 60.0
    progress.step(Counter({Trial.SOLVED: 6, Trial.FAILED: 4, Trial.INFRASTRUCTURE: 2}), 20)
    assert progress.line() == "[#########...............] 20/50, 6 solved, 4 failed, 2 tried again, 10.0/min, 3 min left"
    progress.end()
    assert stream.getvalue().count("\r") == 3
    assert stream.getvalue().endswith("left\n")
    quiet = io.StringIO()
    Progress(None, quiet).begin(0, 1)
    assert quiet.getvalue() == ""
