"""The same scripted agent on the bare machine and in sandboxes: every reward, and every observation, must be the same.

Owns the agent's scripts, which solve some tasks and fail the others in different ways, the comparison and its table. A difference is
a finding about the sandboxes: agent, task, tests and grading are one code on both sides.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from holdfast_recipes.core import diffs
from holdfast_recipes.core.trajectory import Trajectory
from holdfast_recipes.harness.conversation import ChatConversation
from holdfast_recipes.harness.limits import MINI, Resources
from holdfast_recipes.harness.machine import Machine
from holdfast_recipes.harness.rollout import Capacity, Settings, play
from holdfast_recipes.policy.base import Message
from holdfast_recipes.policy.scripted import ScriptedChat, call
from holdfast_recipes.prompts.swe import SUBMIT_WORD

from .archives import Archives
from .bare import BareMachine
from .job import SMALL, Maker, SweJob
from .sources import SweTask
from .workspace import test_commands

WAYS = ("repair", "repair", "repair", "nothing", "wrong_line", "delete_line", "edit_tests", "hang", "no_patch", "commit")
"""The actions of the scripted agent on a task. Only ``repair`` and ``commit`` can solve one."""

TEST_TIMEOUT_S = 60.0
"""Of a test run when grading. Where it is short for a busy machine, the two sides differ by their share of it."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One task on both sides."""

    task_id: str
    way: str
    bare: float | None
    sandbox: float | None
    bare_status: str
    sandbox_status: str
    observations: int
    different: int
    """Observations that are not the same, character by character."""
    bare_tests: tuple[tuple[int, int], tuple[int, int]] | None = None
    sandbox_tests: tuple[tuple[int, int], tuple[int, int]] | None = None

    @property
    def same(self) -> bool:
        return (self.bare, self.bare_status, self.bare_tests) == (self.sandbox, self.sandbox_status, self.sandbox_tests)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "same": self.same}


def script(task: SweTask, way: str) -> list[Message]:
    """The agent's turns for a task: look, run the tests, edit, run them again, hand in."""
    changed = diffs.parse(task.gold_patch)[0]
    path = changed.path
    removed, added = changed.lines("-")[0], changed.lines("+")[0]
    tests = test_commands(task)[0].replace("{report}", "/dev/null")
    look = [
        "pwd | sed 's|.*/||'; ls | sort; git log --oneline | wc -l",
        f"grep -nF -- {_quoted(removed.strip())} {path} | head -5",
        f"{tests} 2>&1 | grep -c '^E ' ; echo status ${{PIPESTATUS[0]}}",
    ]
    edit = {
        "repair": [_replace(path, removed, added)],
        "commit": [_replace(path, removed, added), "git -c user.name=a -c user.email=b commit -qam done; git show HEAD > /dev/null"],
        "nothing": [],
        "wrong_line": [_replace(path, removed, f"{removed}  # looked at")],
        "delete_line": [_replace(path, removed, None)],
        "edit_tests": [f"echo 'def test_nothing(): pass' > {task.fail_to_pass[0].partition('::')[0]}"],
        "hang": [f"printf 'import time\\ntime.sleep(1e6)\\n' >> {path}"],
        "no_patch": [_replace(path, removed, added)],
    }[way]
    diff = "git diff HEAD~1" if way == "commit" else "git diff"
    end = f"echo {SUBMIT_WORD}" if way == "no_patch" else f"echo {SUBMIT_WORD} && {diff} --no-color"
    return [call("bash", command=command) for command in (*look, *edit, "git diff --stat | tail -1", end)]


async def compared(
    tasks: Sequence[SweTask],
    make: Maker,
    archives: Archives,
    *,
    concurrency: int = 4,
    seed: int = 0,
    test_timeout_s: float = TEST_TIMEOUT_S,
) -> list[Pair]:
    """Each task on both sides, in the order of the tasks."""

    async def bare(task: SweTask, resources: Resources) -> Machine:
        return BareMachine()

    capacity = Capacity(concurrency, concurrency)
    limits = replace(MINI, escalation=replace(MINI.escalation, most_memory_gib=0.0))
    turn = random.Random(seed)  # noqa: S311  a choice, no secret
    ways = [turn.choice(WAYS) for _ in tasks]

    async def played(task: SweTask, way: str, maker: Maker) -> Trajectory:
        turns = script(task, way)
        settings = Settings(lambda: ChatConversation(ScriptedChat(turns)), limits, capacity)
        job = SweJob(task, maker, archives=archives, resources=SMALL, test_timeout_s=test_timeout_s)
        return await play(job, settings, seed=seed)

    async def pair(task: SweTask, way: str) -> Pair:
        return _pair(task, way, *await asyncio.gather(played(task, way, bare), played(task, way, make)))

    return list(await asyncio.gather(*(pair(task, way) for task, way in zip(tasks, ways, strict=True))))


def table(pairs: Sequence[Pair]) -> str:
    """By what the agent did: tasks, rewards on both sides, and differences; the tasks that differ are named."""
    rows = [f"{'agent':12}{'tasks':>7}{'bare +1':>9}{'sandbox +1':>12}{'rewards differ':>16}{'observations':>14}{'differ':>8}"]
    groups: dict[str, list[Pair]] = {}
    for each in pairs:
        groups.setdefault(each.way, []).append(each)
    for way, found in [*sorted(groups.items()), ("all", list(pairs))]:
        solved = [sum((side or 0) > 0 for side in sides) for sides in zip(*((each.bare, each.sandbox) for each in found), strict=True)]
        differ = sum(not each.same for each in found)
        seen, other = sum(each.observations for each in found), sum(each.different for each in found)
        rows.append(f"{way:12}{len(found):7}{solved[0]:9}{solved[1]:12}{differ:16}{seen:14}{other:8}")
    for each in pairs:
        if not each.same:
            bare, sandbox = _end(each.bare, each.bare_status), _end(each.sandbox, each.sandbox_status)
            rows.append(f"{each.task_id} ({each.way}): bare {bare}, sandbox {sandbox}")
    statuses = Counter(each.sandbox_status for each in pairs)
    return "\n".join([*rows, "statuses: " + ", ".join(f"{name} {count}" for name, count in sorted(statuses.items()))])


def _pair(task: SweTask, way: str, bare: Trajectory, sandbox: Trajectory) -> Pair:
    left, right = ([seen.text for turn in side.turns for seen in turn.observations] for side in (bare, sandbox))
    different = sum(a != b for a, b in zip(left, right, strict=False)) + abs(len(left) - len(right))
    tests = [(side.verdict.fail_to_pass, side.verdict.pass_to_pass) if side.verdict else None for side in (bare, sandbox)]
    return Pair(
        task.task_id, way, bare.reward, sandbox.reward, str(bare.status), str(sandbox.status), max(len(left), len(right)), different, *tests
    )


def _end(reward: float | None, status: str) -> str:
    return f"{reward} {status}"


def _replace(path: str, before: str, after: str | None) -> str:
    """Replace the first line that reads ``before``, or leave it out. Python, for any text is a word to it."""
    code = (
        "import sys; path, old, new = sys.argv[1], sys.argv[2], sys.argv[3:]; lines = open(path, newline='').read().split(chr(10));"
        "at = lines.index(old); lines[at:at + 1] = new; open(path, 'w', newline='').write(chr(10).join(lines))"
    )
    words = [before] if after is None else [before, after]
    return f"python3 -c {_quoted(code)} {path} {' '.join(map(_quoted, words))}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\"'\"'") + "'"
