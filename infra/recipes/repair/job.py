"""A repair task to the agent loop: its format, its sandbox and its grading.

Owns how the lines of the miniature's language become `bash` calls of the harness with a subshell per call, and back. The loop, the
limits and the shell tool are those that any policy uses.
"""

from __future__ import annotations

import hashlib
import json
import random
import shlex
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack, cast

from holdfast import AsyncSandboxClient, CommandResult, ServiceUnavailableError
from holdfast_recipes.core.calls import CallError, CallFault, Parsed, ToolCall
from holdfast_recipes.core.scored import Blame
from holdfast_recipes.core.template import Kind, Piece
from holdfast_recipes.harness.conversation import Format
from holdfast_recipes.harness.limits import Resources
from holdfast_recipes.harness.loop import Episode
from holdfast_recipes.harness.machine import ExecOptions, Machine
from holdfast_recipes.harness.rollout import Graded
from holdfast_recipes.harness.shell import ShellToolset
from holdfast_recipes.harness.toolset import Result, Toolset
from holdfast_recipes.miniature import language
from holdfast_recipes.policy.base import Message, Tool
from holdfast_recipes.swe import grading
from holdfast_recipes.swe.reports import TestOutcome

from . import tasks
from .material import Library
from .tasks import FOLDER, Task

_KNOWN = set(language.WORDS)


class Words:
    """The tokenizer: words of the language between blanks. What it does not know becomes ``ERR``."""

    def encode(self, text: str) -> list[int]:
        parts = text.replace("\n", " \n ").split(" ")
        return language.ids(part if part in _KNOWN else "ERR" for part in parts if part)

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(language.words(ids))


def render(
    messages: Sequence[Message], tools: Sequence[Tool] = (), *, generation_prompt: bool = False, opens_thought: bool = False
) -> list[Piece]:
    """The first message is the start token; a turn is a line; an answer is a line after ``>``."""
    pieces: list[Piece] = []
    turn = 0
    for index, message in enumerate(messages):
        content = str(message.get("content") or "")
        if message["role"] == "assistant":
            calls = message.get("tool_calls") or ()
            text = content or " ".join(_line(call) for call in calls)
            pieces += [Piece(text, "assistant", Kind.CONTENT, index, turn), Piece(language.END, "assistant", Kind.END, index, turn)]
            turn += 1
        elif index == 0:
            pieces.append(Piece(language.START, str(message["role"]), Kind.CONTENT, index))
        else:
            line = content.strip().partition("\n")[0]
            line = line if line and _KNOWN.issuperset(line.split()) else "ERR"  # the harness's own messages are no words of the language
            pieces.append(Piece(f"{language.SEEN} {line}{language.END}", str(message["role"]), Kind.CONTENT, index))
    return pieces


def parse(text: str, tools: Sequence[Tool] | None = None) -> Parsed:
    """A line to the call that runs it. A line that is no command of the language is an error, as undecodable JSON would be."""
    words = text.split()
    if not words or words[0] not in language.COMMANDS:
        return Parsed("", text, (), (CallError(CallFault.NO_CALL, "no command", text),))
    return Parsed("", text, (ToolCall("bash", {"command": shlex.join(words)}),))


FORMAT = Format(render=render, parse=parse, stop=(language.END,))


def described(result: CommandResult) -> str:
    """What the policy sees: the first line of the output, ``ERR`` for nothing or for a time-out."""
    line = "" if result.timed_out else result.output.strip().partition("\n")[0]
    return line or "ERR"


class RepairJob:
    """One task for ``harness.rollout.play``. With ``faults`` some sandboxes are deleted in the middle of a rollout, and some creations
    fail: the drill of E1. ``seconds`` gets what the service and the commands took."""

    def __init__(
        self,
        client: AsyncSandboxClient,
        library: Library,
        task: Task,
        *,
        faults: Faults | None = None,
        group: str | None = None,
        seconds: Counter[str] | None = None,
    ) -> None:
        self.task_id, self.repo, self.source = task.task_id, "toolz", "mutation"
        self.messages: Sequence[Message] = ({"role": "user", "content": language.START},)
        self.prompts: Mapping[str, str] = {"language": hashlib.sha256(" ".join(language.WORDS).encode()).hexdigest()}
        self.resources = Resources(1, 0.5)
        self.task = task
        self._client, self._library, self._faults, self._group = client, library, faults, group
        self._seconds = Counter() if seconds is None else seconds

    async def create(self, resources: Resources) -> Metered:
        if self._faults and self._faults.draw():
            self._faults.counts["creation"] += 1
            raise self._faults.error()
        return await self._sandbox(resources)

    async def _sandbox(self, resources: Resources) -> Metered:
        started = time.monotonic()
        sandbox = await self._client.create_sandbox(
            "host", cpu=resources.cpu, memory=f"{round(resources.memory_gib * 1024)}m", group=self._group, lifetime_s=1800
        )
        self._seconds["create"] += time.monotonic() - started  # type: ignore[assignment]  # a Counter adds floats as well
        return Metered(sandbox, self._seconds)

    async def open(self, sandbox: Metered, *, oom_ends: bool) -> Toolset:
        await tasks.unpack(sandbox, tasks.archive(self._library, self.task.source, self.task.index))
        env = {"PATH": f"{FOLDER}/bin:/usr/local/bin:/usr/bin:/bin"}
        toolset = ShellToolset(sandbox, FOLDER, env=env, describe=described, oom_ends=oom_ends)
        if self._faults and self._faults.draw():
            return _Dying(toolset, sandbox, self._faults)
        return cast(Toolset, toolset)

    async def collect(self, sandbox: Metered, episode: Episode) -> str:
        if episode.submission is not None:
            return episode.submission
        result = await sandbox.exec(f"{FOLDER}/bin/s", cwd=FOLDER, timeout=30)
        return result.stdout.partition("\n")[2]

    async def grade(self, work: str) -> Graded:
        """In a clean sandbox: the task's files, the patch, all tests."""
        submitted = grading.submission(work, self.task.patch(self._library))
        if submitted.reason:
            return Graded(-1.0, None, None, submitted.reason)
        sandbox = await self._sandbox(self.resources)
        try:
            await tasks.unpack(sandbox, tasks.archive(self._library, self.task.source, self.task.index))
            applied = await sandbox.exec("git apply --recount --whitespace=nowarn -", cwd=FOLDER, input=submitted.patch, timeout=60)
            if applied.exit_code != 0:
                return Graded(-1.0, None, Blame.POLICY, "malformed: does not apply")
            seen = await tasks.outcomes(sandbox)
        finally:
            await sandbox.delete()
        named = {name: TestOutcome.PASSED if passed else TestOutcome.FAILED for name, passed in seen.items()}
        made = grading.grade(named, self.task.fail_to_pass, self.task.pass_to_pass)
        return Graded(made.reward, made.verdict(), None, str(made.resolution))


class Metered:
    """A sandbox whose seconds are counted: ``commands`` as its agent measured them, ``round trips`` what else passed until an answer was
    there, and ``delete``."""

    def __init__(self, sandbox: Machine, seconds: Counter[str]) -> None:
        self.id = sandbox.id
        self._sandbox, self._seconds = sandbox, seconds

    async def exec(self, command: str | Sequence[str], **options: Unpack[ExecOptions]) -> CommandResult:
        started = time.monotonic()
        result = await self._sandbox.exec(command, **options)
        self._seconds["commands"] += result.duration_s  # type: ignore[assignment]
        self._seconds["round trips"] += max(0.0, time.monotonic() - started - result.duration_s)  # type: ignore[assignment]
        return result

    async def delete(self) -> bool:
        started = time.monotonic()
        try:
            return await self._sandbox.delete()
        finally:
            self._seconds["delete"] += time.monotonic() - started  # type: ignore[assignment]


class Faults:
    """Injected faults, seeded: a share ``rate`` of creations fail, and of sandboxes are deleted in the middle. Counts what it did;
    ``cuts`` says how many connections a proxy cut besides."""

    def __init__(self, rate: float, seed: int, cuts: Callable[[], int] | None = None) -> None:
        self.rate, self.counts = rate, {"creation": 0, "sandbox": 0}
        self._seed, self._cuts, self._cuts_before = seed, cuts, 0
        self._draw = random.Random(f"faults-{seed}")

    def counted(self) -> dict[str, int]:
        return self.counts | ({"connections cut": self._cuts_before + self._cuts()} if self._cuts else {})

    def resume(self, counted: Mapping[str, int], version: int) -> None:
        """Go on counting after a run that was cut short, with draws of its own."""
        self.counts = {name: counted[name] for name in self.counts}
        self._cuts_before = counted.get("connections cut", 0)
        self._draw = random.Random(f"faults-{self._seed}-{version}")

    def draw(self) -> bool:
        return self._draw.random() < self.rate

    def at_call(self) -> int:
        """Before which call a sandbox is deleted."""
        return self._draw.randrange(1, 5)

    def error(self) -> Exception:
        return ServiceUnavailableError("injected")


class _Dying:
    """A toolset whose sandbox is deleted before one of its calls: what a lost node looks like to the loop."""

    def __init__(self, toolset: ShellToolset, sandbox: Machine, faults: Faults) -> None:
        self.name, self.version, self.strict = toolset.name, toolset.version, toolset.strict
        self.tools: Sequence[Tool] = toolset.tools
        self._toolset, self._sandbox, self._faults, self._left = toolset, sandbox, faults, faults.at_call()

    @property
    def config(self) -> dict[str, Any]:
        return self._toolset.config

    async def run(self, call: ToolCall, *, timeout_s: float) -> Result:
        self._left -= 1
        if self._left == 0:
            self._faults.counts["sandbox"] += 1  # here, for a rollout may end before it comes to this call
            await self._sandbox.delete()
        return await self._toolset.run(call, timeout_s=timeout_s)

    async def close(self) -> None:
        await self._toolset.close()


def _line(call: Mapping[str, Any]) -> str:
    return " ".join(shlex.split(json.loads(call["function"]["arguments"])["command"]))
