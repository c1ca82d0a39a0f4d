"""A task that a model with random weights solves about every other time, for engines that need real tokens and real sandboxes.

Owns a language of ten words, its format, and the task: every turn appends words to a file by a command in a sandbox, and the work is
graded by a command in a second sandbox. Nothing is downloaded.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from holdfast import AsyncSandbox, AsyncSandboxClient, CommandResult
from holdfast_recipes.core.balance import Balance
from holdfast_recipes.core.calls import CallError, CallFault, Parsed, ToolCall
from holdfast_recipes.core.scored import Blame
from holdfast_recipes.core.template import Kind, Piece
from holdfast_recipes.core.trajectory import Observation
from holdfast_recipes.engines.groups import Recipe
from holdfast_recipes.harness.conversation import ChatConversation, Conversation, Format, TokenConversation
from holdfast_recipes.harness.limits import MINI, Limits, Resources, RolloutLimits
from holdfast_recipes.harness.loop import Episode
from holdfast_recipes.harness.machine import Machine
from holdfast_recipes.harness.rollout import Capacity, Graded, Job, Settings
from holdfast_recipes.harness.shell import ShellToolset
from holdfast_recipes.harness.tools import MINI as MINI_TOOLS
from holdfast_recipes.harness.toolset import Result, Toolset
from holdfast_recipes.pipeline.playing import managed
from holdfast_recipes.pipeline.rollouts import Rollout
from holdfast_recipes.policy.base import Message, Tool

START, END, SEEN = "<s>", "</s>", ">"
WORDS = ("<pad>", START, END, SEEN, "a", "b", "c", "d", "done", "ok")
IDS = {word: index for index, word in enumerate(WORDS)}
LIMITS: Limits = replace(MINI, rollout=RolloutLimits(steps=3, wall_s=60, tokens=48))
TURN_TOKENS = 4


class Words:
    """Maps text to ids word by word; unknown words are left out."""

    def encode(self, text: str) -> list[int]:
        return [IDS[word] for word in text.split() if word in IDS]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(WORDS[token] for token in ids)


def render(
    messages: Sequence[Message], tools: Sequence[Tool] = (), *, generation_prompt: bool = False, opens_thought: bool = False
) -> list[Piece]:
    pieces: list[Piece] = []
    turn = 0
    for index, message in enumerate(messages):
        text = str(message.get("content") or "")
        if message["role"] == "assistant":
            pieces += [Piece(text, "assistant", Kind.CONTENT, index, turn), Piece(END, "assistant", Kind.END, index, turn)]
            turn += 1
        else:
            pieces.append(Piece(text if index == 0 else f"{SEEN} {text} {END}", str(message["role"]), Kind.CONTENT, index))
    return pieces


def parse(text: str, tools: Sequence[Tool]) -> Parsed:
    """Letters are appended to the work; ``done`` submits it."""
    words = text.split()
    letters = " ".join(word for word in words if word in "abcd")
    if "done" in words:
        handed_in = "touch work; echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat work"
        return Parsed("", text, (ToolCall("bash", {"command": handed_in}),))
    if not letters:
        return Parsed("", text, (), (CallError(CallFault.NO_CALL, "no letter", text),))
    return Parsed("", text, (ToolCall("bash", {"command": f"echo {letters} >> work; echo ok"}),))


FORMAT = Format(render=render, parse=parse, stop=(END,))


def described(result: CommandResult) -> str:
    return result.output.strip().partition("\n")[0] or "ok"


class LetterJob:
    """Solved if the work has an ``a``. ``make`` gives a sandbox; if ``breaks()`` is true, it is deleted at once, as with a lost node."""

    repo, source = "letters", "tiny"
    messages: Sequence[Message] = ({"role": "user", "content": f"{START} a"},)
    prompts: Mapping[str, str] = {}
    resources = Resources(0.5, 0.125)

    def __init__(self, task_id: str, make: Callable[[], Awaitable[Any]], breaks: Callable[[], bool] = lambda: False) -> None:
        self.task_id, self._make, self._breaks = task_id, make, breaks

    async def create(self, resources: Resources) -> Machine:
        sandbox: Machine = await self._make()
        return sandbox

    async def open(self, sandbox: Machine, *, oom_ends: bool) -> Toolset:
        if self._breaks():
            await sandbox.delete()
        return ShellToolset(sandbox, "/tmp", describe=described, oom_ends=oom_ends)

    async def collect(self, sandbox: Machine, episode: Episode) -> str:
        if episode.submission is not None:
            return episode.submission
        return (await sandbox.exec("touch work; cat work", cwd="/tmp")).output

    async def grade(self, work: str) -> Graded:
        """In a second sandbox, as grading of patches is."""
        async with await self._make() as sandbox:
            found = await sandbox.exec("grep -qw a", input=work, cwd="/tmp")
        if found.exit_code not in (0, 1):
            return Graded(None, None, Blame.INFRASTRUCTURE, f"grep ended with {found.exit_code}")
        return Graded(1.0 if found.exit_code == 0 else -1.0)


def rollouts(job: Callable[[str], Job[Any]], *, sandboxes: int = 6, chat: bool = False) -> Callable[[Any], Rollout[str]]:
    capacity = Capacity(sandboxes)

    def rollout_with(policy: Any) -> Rollout[str]:
        def conversation() -> Conversation[Any]:
            return ChatConversation(policy) if chat else TokenConversation(policy, Words(), FORMAT)

        limits = replace(LIMITS, rollout=replace(LIMITS.rollout, tokens=None)) if chat else LIMITS
        settings = Settings(conversation, limits, capacity, run="tiny", turn_tokens=64 if chat else TURN_TOKENS)
        play: Any = managed(cast(Any, job), settings)  # jobs of task ids here
        return cast(Rollout[str], play)

    return rollout_with


@contextlib.asynccontextmanager
async def on_sandboxes(size: int = 4, breaks: Callable[[], bool] = lambda: False) -> AsyncIterator[Recipe]:
    """The recipe on the service that HOLDFAST_URL names; leaving the block checks that no sandbox is left."""
    async with AsyncSandboxClient() as client:
        name = f"tiny-{secrets.token_hex(4)}"
        async with client.group(name, ttl_s=60) as group:

            async def make() -> AsyncSandbox:
                return await client.create_sandbox("host", cpu=0.5, memory="128m", group=group, labels={"tiny": name}, lifetime_s=300)

            def job(task: str) -> LetterJob:
                return LetterJob(task, make, breaks)

            made, chats = rollouts(job), rollouts(job, chat=True)
            prompts = ("t0", "t1", "t2", "t3")
            yield Recipe(made, lambda: Balance(size, 2 * size, size, "0.25", "0.75"), concurrency=8, prompts=prompts, chats=chats)
            left = await client.list_sandboxes({"tiny": name})
        assert not left, f"sandboxes are left: {left}"


class _NoSandbox:
    id = "none"

    async def delete(self) -> bool:
        return True


class _Answers:
    """A toolset that answers ``ok`` and submits the written text, without a sandbox."""

    name, version, strict = "answers", "1", True
    tools: Sequence[Tool] = MINI_TOOLS
    config: Mapping[str, Any] = {}

    def __init__(self) -> None:
        self.work: list[str] = []

    async def run(self, call: ToolCall, *, timeout_s: float) -> Result:
        command = str(call.arguments["command"])
        if "COMPLETE" in command:
            return Result(Observation("", call.id, 0), True, " ".join(self.work))
        self.work.append(command.removeprefix("echo ").partition(" >>")[0])
        return Result(Observation("ok", call.id, 0))

    async def close(self) -> None: ...


class AnswersJob(LetterJob):
    """The same task without a sandbox: graded in this process."""

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        self._toolset = _Answers()

    async def create(self, resources: Resources) -> Any:
        return _NoSandbox()

    async def open(self, sandbox: Any, *, oom_ends: bool) -> Any:
        return self._toolset

    async def collect(self, sandbox: Any, episode: Episode) -> str:
        return " ".join(self._toolset.work)

    async def grade(self, work: str) -> Graded:
        return Graded(1.0 if "a" in work.split() else -1.0)


@contextlib.asynccontextmanager
async def without_sandboxes(size: int = 2) -> AsyncIterator[Recipe]:
    yield Recipe(
        rollouts(AnswersJob),
        lambda: Balance(size, 2 * size, size, "0.25", "0.75"),
        prompts=("t0", "t1"),
        chats=rollouts(AnswersJob, chat=True),
    )


def recipe_without_sandboxes(tokenizer: object) -> contextlib.AbstractAsyncContextManager[Recipe]:
    """For engines that name a recipe by its import path."""
    return without_sandboxes()


def recipe_on_sandboxes(tokenizer: object) -> contextlib.AbstractAsyncContextManager[Recipe]:
    return on_sandboxes(size=2)


def broken(tokenizer: object) -> contextlib.AbstractAsyncContextManager[Recipe]:
    """Every sandbox is lost at once."""
    return on_sandboxes(size=2, breaks=lambda: True)
