"""Trajectories for tests of the pipelines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from holdfast_recipes.core.scored import Blame, Status
from holdfast_recipes.core.trajectory import Harness, PolicyName, Trajectory, Verdict, turns_of
from holdfast_recipes.harness import tools
from holdfast_recipes.swe.sources import SweTask

BASH = tools.MINI[0]


def made(name: str = "t", turns: int = 3, *, resolved: bool = False, **changes: Any) -> Trajectory:
    """A run of ``turns`` commands."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You act."}, {"role": "user", "content": f"Fix {name}"}]
    for turn in range(turns):
        function = {"name": "bash", "arguments": json.dumps({"command": f"step {turn}"})}
        calls = [{"id": f"c{turn}", "type": "function", "function": function}]
        messages.append({"role": "assistant", "content": "", "reasoning_content": f"thought {turn}", "tool_calls": calls})
        messages.append({"role": "tool", "tool_call_id": f"c{turn}", "content": f"result {turn}"})
    verdict = Verdict((2, 2) if resolved else (1, 2), (3, 3), "", () if resolved else ("tests/test_a.py::test_b",))
    base = Trajectory(
        name,
        changes.pop("task_id", f"task-{name}"),
        Harness("mini", "1"),
        PolicyName("teacher", "1"),
        tuple(messages),
        (BASH,),
        turns_of(messages, (BASH,)),
        seed=1,
        reward=1.0 if resolved else -1.0,
        verdict=verdict,
        repo="org/repo",
        source="swe_rebench",
        run="r",
    )
    return replace(base, **changes)


def lost(name: str = "lost", **changes: Any) -> Trajectory:
    """A run that ended with an infrastructure failure."""
    return made(name, 1, status=Status.ABORTED, blame=Blame.INFRASTRUCTURE, reason="node_lost", reward=None, verdict=None, **changes)


def annotation(values: Sequence[float]) -> str:
    return json.dumps([{"step": step, "p_resolve": value, "reasoning": "because"} for step, value in enumerate(values)])


def task(name: str, image: str = "python:3.12") -> SweTask:
    return SweTask(name, "swe_rebench", "org/repo", image, f"Fix {name}", "--- a/x\n", ("tests/test_a.py::test_b",))
