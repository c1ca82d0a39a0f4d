"""A sandbox, a toolset and a policy whose behaviour a test scripts; they raise the errors of the real ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from holdfast import CommandResult
from holdfast_recipes.core.calls import ToolCall
from holdfast_recipes.core.trajectory import Observation
from holdfast_recipes.harness import tools
from holdfast_recipes.harness.toolset import Result
from holdfast_recipes.policy.base import Message, Reply, Tool

Behaviour = str | Exception | Result | float | Callable[[], Awaitable[Any]]
"""A text to answer with, an error to raise, a result, seconds to wait before answering, or a function to await."""


async def behave(what: Behaviour) -> Any:
    if isinstance(what, Exception):
        raise what
    if isinstance(what, int | float):
        await asyncio.sleep(what)
        return f"after {what:g} s"
    return await what() if callable(what) else what


class FakeToolset:
    """Answers ``bash`` calls by their command: a behaviour from ``commands``, else the command itself."""

    name = "fake"
    version = "1"
    tools: Sequence[Tool] = tools.MINI

    def __init__(self, commands: Mapping[str, Behaviour] | None = None, *, strict: bool = True) -> None:
        self.strict = strict
        self.ran: list[str] = []
        self.closed = 0
        self._commands = dict(commands or {})

    @property
    def config(self) -> dict[str, Any]:
        return {"commands": sorted(self._commands)}

    async def run(self, call: ToolCall, *, timeout_s: float) -> Result:
        command = str(call.arguments["command"])
        self.ran.append(command)
        seen = await behave(self._commands.get(command, command))
        return seen if isinstance(seen, Result) else Result(Observation(str(seen), call.id, 0))

    async def close(self) -> None:
        self.closed += 1


class FakeChat:
    """Answers each request with the next behaviour; an assistant message is one too. Keeps seeds and messages of all requests."""

    name = "fake"

    def __init__(self, *turns: Behaviour | dict[str, Any], cost_usd: float = 0.0, tokens: int = 10) -> None:
        self.turns = list(turns)
        self.seeds: list[int | None] = []
        self.requests: list[tuple[Message, ...]] = []
        self._cost_usd, self._tokens = cost_usd, tokens

    async def reply(self, messages: Sequence[Message], tools: Sequence[Tool], *, seed: int | None, max_new_tokens: int) -> Reply:
        self.seeds.append(seed)
        self.requests.append(tuple(messages))
        turn = self.turns.pop(0) if len(self.turns) > 1 else self.turns[0]
        message = turn if isinstance(turn, dict) else await behave(turn)
        if not isinstance(message, dict):
            message = {"role": "assistant", "content": message}
        return Reply(message, prompt_tokens=self._tokens * len(messages), completion_tokens=self._tokens, cost_usd=self._cost_usd)


def result(output: str = "", exit_code: int = 0, **more: Any) -> CommandResult:
    return CommandResult(exit_code, output.encode(), b"", 0.1, **more)


SUBMIT = Result(Observation("handed in", exit_code=0), True, "the patch")
