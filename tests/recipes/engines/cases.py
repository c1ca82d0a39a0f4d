"""Trajectories with the records that every engine must make of them, worked out by hand. The same cases for all engines.

Tokens of ``MULTI``: prompt 10 11 12; the policy's 20 21 and its end 2; a tool's answer 30 31 32 with the next header 33; the policy's 40
and its end 2.
"""

from __future__ import annotations

from dataclasses import replace

from holdfast_recipes.core.balance import Balance, Outcome
from holdfast_recipes.core.calls import ToolCall
from holdfast_recipes.core.scored import Blame, Status
from holdfast_recipes.core.spans import Span
from holdfast_recipes.core.template import Kind
from holdfast_recipes.core.trajectory import Harness, Observation, PolicyName, Tokens, Trajectory, Turn

END = 2
IDS = (10, 11, 12, 20, 21, END, 30, 31, 32, 33, 40, END)
MASK = (0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1)
LOGPROBS = (0.0, 0.0, 0.0, -0.5, -0.25, -0.125, 0.0, 0.0, 0.0, 0.0, -1.0, -0.75)
SPANS = (
    Span(0, 2, "user", Kind.CONTENT, None, 0),
    Span(2, 3, "assistant", Kind.HEADER, 0, 1),
    Span(3, 5, "assistant", Kind.CONTENT, 0, 1),
    Span(5, 6, "assistant", Kind.END, 0, 1),
    Span(6, 9, "tool", Kind.CONTENT, None, 2),
    Span(9, 10, "assistant", Kind.HEADER, 1, 3),
    Span(10, 11, "assistant", Kind.CONTENT, 1, 3),
    Span(11, 12, "assistant", Kind.END, 1, 3),
)
CALL = {"id": "call_0_0", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
MESSAGES = (
    {"role": "user", "content": "Repair it."},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "a.py", "tool_call_id": "call_0_0"},
    {"role": "assistant", "content": "Done."},
)
TURNS = (
    Turn(0, calls=(ToolCall("bash", {"command": "ls"}, "call_0_0"),), observations=(Observation("a.py", "call_0_0", 0),)),
    Turn(1, text="Done."),
)
TASK = "task-1"

MULTI = Trajectory(
    "run/task-1/0",
    TASK,
    Harness("mini", "1"),
    PolicyName("tiny", "3"),
    MESSAGES,
    turns=TURNS,
    seed=7,
    reward=1.0,
    tokens=Tokens(IDS, MASK, LOGPROBS, SPANS, (3, 3)),
)
"""Completed and solved: two turns with a tool's answer between them."""

FAILED = replace(MULTI, trajectory_id="run/task-1/1", reward=-1.0)
"""Completed, not solved."""
TRUNCATED = replace(
    MULTI,
    trajectory_id="run/task-1/2",
    reward=-1.0,
    status=Status.TRUNCATED,
    reason="steps",
    tokens=Tokens(IDS[:6], MASK[:6], LOGPROBS[:6], SPANS[:4], (3,)),
    messages=MESSAGES[:3],
    turns=TURNS[:1],
)
"""Cut off by its budget of steps, and graded as it stood."""
LOST = replace(MULTI, trajectory_id="run/task-1/3", reward=None, status=Status.ABORTED, blame=Blame.INFRASTRUCTURE, reason="node-lost")
"""Its sandbox was lost: infrastructure."""
UNGRADED = replace(MULTI, trajectory_id="run/task-1/4", reward=None, blame=Blame.INFRASTRUCTURE, reason="reward_timeout")
"""Finished, but the grader's sandbox was lost."""
TIMED_OUT = replace(MULTI, trajectory_id="run/task-1/5", reward=None, status=Status.TIMEOUT, blame=Blame.POLICY, reason="wall_clock")
NEVER = replace(LOST, trajectory_id="run/task-1/6", tokens=None, messages=MESSAGES[:1], turns=(), reason="creation_timeout")
"""No sandbox was ever made: no tokens at all."""

PROMPT, RESPONSE = IDS[:3], IDS[3:]
RESPONSE_MASK, RESPONSE_LOGPROBS = MASK[3:], LOGPROBS[3:]


def group(*runs: Trajectory, size: int | None = None) -> Outcome:
    """The outcome of these rollouts, however Algorithm 1 assembles them."""
    size = size or len(runs)
    balance = Balance(size, len(runs), len(runs), "0.25", "0.75")
    balance.add(run.scored() for run in runs)
    outcome = balance.outcome()
    assert outcome is not None
    return outcome


MIXED = (MULTI, FAILED, TRUNCATED, LOST)
"""One success, two failures, one lost: advantages over the three are 1.1547, −0.57735, −0.57735 (sample deviation)."""
MIXED_ADVANTAGES = {"run/task-1/0": 1.1547005383792515, "run/task-1/1": -0.5773502691896258, "run/task-1/2": -0.5773502691896258}
