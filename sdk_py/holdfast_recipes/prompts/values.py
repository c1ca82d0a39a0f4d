"""The prompt that requests from a model P(resolve) at the steps of its own unresolved run (P §3.3.1, App. A).

Owns the wording and the transcript. The answer is read by ``core.values.parse_annotation`` and held to ``check_annotation``, whose rules
are those under "Calibration" here. Values so obtained are of the state *after* each step (V1).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast_recipes.core.trajectory import Turn

from .base import Prompt, capped, shortened

RESULT_CHARACTERS = 5_000
LISTED_TESTS = 20

SYSTEM = Prompt(
    "value_annotation_system",
    1,
    """You review the work of a software engineering agent. You see a complete run of the agent on one issue, and the result of the \
tests that decide it. This run FAILED: it did not resolve the issue.

Task: for each step i, estimate p_resolve, the probability that the run would still have ended with all tests passing, judged from \
everything up to and including step i.

Work backwards:
1. Read the outcome: which tests still fail, and which were broken.
2. Find the critical mistake: the step after which the run could no longer be expected to succeed, and what led to it.
3. Assign the values, so that steps that brought the run closer raise them and the mistake lowers them.

Calibration:
- The value at the first step lies between 0.3 and 0.5.
- The value drops at the critical mistake or before it.
- The value at the last step is below 0.2, since the run failed.
- The values never only rise.

Output: only a JSON array, without any text around it, of objects {"step": <int>, "p_resolve": <number from 0 to 1>, \
"reasoning": "<one sentence>"}.""",
)

USER = Prompt(
    "value_annotation_user",
    1,
    """# Issue

{{issue}}

# Outcome of the tests

Target tests that still fail:
{{failing}}

Target tests that were fixed: {{fixed}}

Tests that passed before and fail now:
{{broken}}

# The run

{{transcript}}

# Answer

The run has {{steps}} steps. Give the array for steps 0 to {{last}}.""",
)


@dataclass(frozen=True, slots=True)
class TestReport:
    """The outcome of the tests: names of targets that still fail, how many were fixed, names of those that were broken."""

    __test__ = False  # the name is no test class

    failing: tuple[str, ...]
    fixed: int
    broken: tuple[str, ...] = ()


def messages(issue: str, turns: Sequence[Turn], report: TestReport) -> list[dict[str, str]]:
    """The two messages of an annotation request. Raises ValueError for a run without steps, which has nothing to value."""
    if not turns:
        raise ValueError("a run without steps has no values")
    user = USER.fill(
        issue=issue,
        failing=capped(list(report.failing), LISTED_TESTS),
        fixed=str(report.fixed),
        broken=capped(list(report.broken), LISTED_TESTS),
        transcript=transcript(turns),
        steps=str(len(turns)),
        last=str(len(turns) - 1),
    )
    return [{"role": "system", "content": SYSTEM.fill()}, {"role": "user", "content": user}]


def transcript(turns: Sequence[Turn]) -> str:
    """The run as text, a paragraph ``[STEP i]`` per turn: thinking, action, result. Results are cut at 5,000 characters each step."""
    return "\n\n".join(_step(index, turn) for index, turn in enumerate(turns))


def _step(index: int, turn: Turn) -> str:
    calls = [f"{call.name} {json.dumps(dict(call.arguments), ensure_ascii=False)}" for call in turn.calls]
    action = "\n".join([*filter(None, [turn.text]), *calls, *(f"(not a valid call: {fault})" for fault in turn.faults)])
    result = shortened("\n".join(seen.text for seen in turn.observations), RESULT_CHARACTERS)
    return f"[STEP {index}]\nThinking: {turn.thought or '(none)'}\nAction: {action or '(none)'}\nResult: {result or '(none)'}"
