"""Ten runs with thoughts, several calls in a turn, format errors and a credited middle, for comparing masks of credited turns."""

from __future__ import annotations

import json
from typing import Any

from holdfast_recipes.core.template import observation
from holdfast_recipes.core.trajectory import Harness, PolicyName, Trajectory
from holdfast_recipes.harness.tools import MINI
from holdfast_recipes.policy.tokenizer import ByteTokenizer

TOKENIZER = ByteTokenizer()


def call(number: str, command: str) -> dict[str, Any]:
    return {"id": number, "type": "function", "function": {"name": "bash", "arguments": json.dumps({"command": command})}}


def run(number: int) -> Trajectory:
    """Of number turns + 3: an ordinary one, one of two calls, a format error, and more ordinary ones. Every second is unresolved, with
    credit on turns in its middle."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Act."}, {"role": "user", "content": f"Repair {number}."}]
    for turn in range(number + 3):
        made: dict[str, Any] = {"role": "assistant", "content": f"turn {turn} of {number}", "reasoning_content": f"thought {turn}"}
        if turn == 2:
            messages += [made, observation("Error: the turn calls no tool.")]
            continue
        calls = [call(f"c{turn}{each}", f"step {turn}.{each}") for each in range(2 if turn == 1 else 1)]
        messages.append(made | {"tool_calls": calls})
        messages += [{"role": "tool", "tool_call_id": each["id"], "content": f"seen {each['id']} é"} for each in calls]
    credited = None if number % 2 == 0 else tuple(range(1, 2 + number // 3))
    return Trajectory(
        f"r{number}",
        f"t{number}",
        Harness("mini"),
        PolicyName("teacher"),
        tuple(messages),
        tuple(MINI),
        reward=1.0 if credited is None else -1.0,
        credited=credited,
    )


RUNS = [run(number) for number in range(10)]
