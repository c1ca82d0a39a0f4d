"""E1's learning without sandboxes: a run that was cut short goes on after its last update, and plays no finished rollout again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from holdfast_recipes.core.trajectory import Harness, PolicyName, Tokens, Trajectory
from holdfast_recipes.miniature import language
from holdfast_recipes.training.model import Model, Shape

from infra.recipes.repair.job import Faults
from infra.recipes.repair.learning import Lab, Trained, collected, reinforced
from infra.recipes.repair.tasks import Task

IDS = tuple(language.ids([language.START, "t", language.END, language.SEEN, "PASS", language.END, "s", language.END]))
MASK = (0, 1, 1, 0, 0, 0, 1, 1)
TASKS = cast("list[Task]", ["a", "b", "c"])


class ScriptedLab(Lab):
    """Rollouts of two turns; every second one solves its task."""

    def __init__(self, **options: Any) -> None:
        super().__init__(cast(Any, None), cast(Any, None), **options)
        self.seeds: list[int] = []

    async def rollout(self, policy: Any, task: Task, seed: int, faults: Faults | None = None) -> Trajectory:
        self.seeds.append(seed)
        solved = len(self.seeds) % 2 == 0
        await asyncio.sleep(0)
        self.seconds["rollouts"] += 1
        if faults:
            faults.counts["sandbox"] += 1
        tokens = Tokens(IDS, MASK, tuple(-1.0 * bit for bit in MASK))
        harness, name = Harness("shell"), PolicyName("tiny")
        return Trajectory(str(seed), str(task), harness, name, (), reward=1.0 if solved else -1.0, tokens=tokens)


def learned(lab: Lab, updates: int, checkpoint: Path) -> Trained:
    torch.manual_seed(1)
    model = Model(Shape(len(language.WORDS), width=16, layers=1, heads=2, context=32), 1)
    return asyncio.run(reinforced(lab, model, TASKS, updates=updates, prompts=2, size=4, seed=5, epochs=2, checkpoint=checkpoint))


def test_a_run_goes_on_after_its_last_update(tmp_path: Path) -> None:
    path = tmp_path / "updates.pt"
    first, second = ScriptedLab(faults=Faults(0.5, 1)), ScriptedLab(faults=Faults(0.5, 1))
    before = learned(first, 2, path)
    after = learned(second, 5, path)
    assert (len(before.steps), len(after.steps), len(after.managed)) == (2, 5, 5)
    assert (before.optimiser_steps, after.optimiser_steps) == (4, 10)
    assert after.steps[:2] == before.steps
    assert [step["version"] for step in after.steps] == [1.0, 2.0, 3.0, 4.0, 5.0]
    graded, solved = (sum(step.get(name, 0.0) for step in after.steps) for name in ("graded", "solved"))
    assert graded > solved > 0
    assert after.seconds > before.seconds > 0
    assert second.seconds["rollouts"] > len(second.seeds)
    assert not set(first.seeds) & set(second.seeds)
    assert second.faults is not None
    assert second.faults.counted()["sandbox"] > len(second.seeds)


def test_a_whole_run_trains_nothing_more(tmp_path: Path) -> None:
    path = tmp_path / "updates.pt"
    before = learned(ScriptedLab(), 2, path)
    lab = ScriptedLab()
    after = learned(lab, 2, path)
    assert (after.steps, lab.seeds, after.optimiser_steps) == (before.steps, [], 4)
    mine, its = after.model.state_dict(), before.model.state_dict()
    assert all(torch.equal(mine[name], its[name]) for name in its)


def test_finished_rollouts_are_not_played_again(tmp_path: Path) -> None:
    path = tmp_path / "teacher.jsonl"
    first = asyncio.run(collected(ScriptedLab(), TASKS, 6, seed=1, kept=path))
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:4]) + '\n{"place": 4, "ru')  # a kill in the middle of a line
    lab = ScriptedLab()
    again = asyncio.run(collected(lab, TASKS, 6, seed=1, kept=path))
    assert [run.trajectory_id for run in again] == [run.trajectory_id for run in first]
    assert len(lab.seeds) == 2
    assert [run.tokens for run in again] == [run.tokens for run in first]


def test_cut_connections_are_counted_through_a_kill() -> None:
    faults = Faults(0.0, 1, lambda: 3)
    faults.resume({"creation": 2, "sandbox": 4, "connections cut": 10}, 7)
    assert faults.counted() == {"creation": 2, "sandbox": 4, "connections cut": 13}
    assert "connections cut" not in Faults(0.0, 1).counted()


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
