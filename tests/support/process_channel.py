"""Driving the agent's process channels directly: no session, no gateway, real processes.

Owns `Client`, one fake session on a running `AgentContext`, and `Outcome`, the frames received for one command. The credit check and the
table of legal facts are those of the real session (`tests.support.channel.FakeChannel`).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import Exited, Fact, Failed, Gap, Output, Started
from holdfast_wire.limits import WINDOW_BYTES

from session_agent.agent.commands.activity import open_activity
from session_agent.agent.commands.command import open_command, open_follow
from session_agent.agent.commands.history import open_history
from session_agent.agent.commands.terminal import open_terminal
from session_agent.agent.context import AgentContext, SandboxLimits
from session_agent.agent.settings import AgentSettings
from session_agent.agent.shell.channel import ShellHandler, open_shell
from session_agent.agent.shell.dump import open_dump
from session_agent.agent.shell.restore import open_restore
from tests.support.channel import DEADLINE_S, FakeChannel
from tests.support.until import until_async


@dataclass
class Outcome:
    """Everything that the agent reported about one command."""

    started: bool = False
    stdout: bytes = b""
    stderr: bytes = b""
    gaps: list[Gap] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def exit_code(self) -> int | None:
        code: int | None = self.result["exit_code"]
        return code

    @classmethod
    def of(cls, facts: list[Fact]) -> Outcome:
        outcome = cls()
        outputs: dict[int, list[bytes]] = {1: [], 2: []}
        for fact in facts:
            match fact:
                case Started():
                    outcome.started = True
                case Output():
                    outcome.started = True
                    outputs[fact.stream].append(fact.data)
                case Gap():
                    outcome.gaps.append(fact)
                case Exited():
                    outcome.result = fact.result
                    outcome.started = outcome.started or "error" not in fact.result
                case _:
                    pass
        outcome.stdout, outcome.stderr = b"".join(outputs[1]), b"".join(outputs[2])
        return outcome


class ProcessChannel(FakeChannel):
    """A fake channel that `Exited` may end."""

    def send(self, fact: Fact) -> None:
        super().send(fact)
        if isinstance(fact, Exited) and self.kind != "shell":
            self.ended.set()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until the facts received so far satisfy `condition`."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                self.heard.clear()
                await self.heard.wait()

    async def outcome(self) -> Outcome:
        """The command's outcome (not for shells)."""
        last = await self.end()
        assert isinstance(last, Exited), last
        return Outcome.of(self.facts)


_FACTORIES: dict[str, Callable[..., Any]] = {
    "command": open_command,
    "follow": open_follow,
    "dump": open_dump,
    "restore": open_restore,
    "history": open_history,
    "activity": open_activity,
    "shell": open_shell,
    "terminal": open_terminal,
}


class Client:
    """A client that calls the agent's handlers directly, without a connection."""

    def __init__(self, context: AgentContext) -> None:
        self.context = context
        self._ids = itertools.count()

    def open(self, kind: str, params: dict[str, Any], **options: Any) -> ProcessChannel:
        """Open a channel as the session would."""
        channel = ProcessChannel(kind, params, **options)
        try:
            channel.handler = _FACTORIES[kind](self.context, channel)
        except HoldfastError as error:
            channel.send(Failed(channel.number, error.to_map()))
        return channel

    def command(self, *argv: str, window: int = WINDOW_BYTES, reading: bool = True, **params: Any) -> ProcessChannel:
        """Start a one-off command."""
        if argv:
            params["argv"] = list(argv)
        params.setdefault("id", f"command-{next(self._ids)}")
        return self.open("command", params, window=window, reading=reading)

    async def execute(self, *argv: str, **params: Any) -> Outcome:
        """Run a one-off command to its end."""
        return await self.command(*argv, **params).outcome()

    def shell(self, **params: Any) -> LiveShell:
        """Open a shell."""
        return LiveShell(self.open("shell", params), self._ids)


class LiveShell:
    """A shell channel, used as the SDK uses it."""

    def __init__(self, channel: ProcessChannel, ids: Any) -> None:
        self.channel = channel
        self._ids = ids
        self._asked_at: dict[str, int] = {}

    @property
    def handler(self) -> ShellHandler:
        handler: ShellHandler = self.channel.handler
        return handler

    def begin(self, script: str | bytes, *, command_id: str | None = None, **params: Any) -> str:
        """Send a Run and return its id."""
        command_id = command_id or f"run-{next(self._ids)}"
        self._asked_at[command_id] = len(self.channel.facts)
        self.handler.run(command_id, {"script": script, **params})
        return command_id

    async def wait(self, command_id: str) -> Outcome:
        """Wait for the outcome of a Run that `begin` sent."""
        channel = self.channel
        start = self._asked_at.get(command_id, 0)

        def over() -> bool:
            exited = any(isinstance(fact, Exited) and fact.command_id == command_id for fact in channel.facts[start:])
            return exited or channel.ended.is_set()

        await channel.until(over)
        mine: list[Fact] = []
        for fact in channel.facts[start:]:
            if isinstance(fact, Started):
                mine = []
            mine.append(fact)
            if isinstance(fact, Exited):
                if fact.command_id == command_id:
                    return Outcome.of(mine)
                mine = []
        raise AssertionError(f"the shell ended: {channel.facts[-1]}")

    async def run(self, script: str | bytes, **params: Any) -> Outcome:
        """Run one command to its end."""
        return await self.wait(self.begin(script, **params))


@asynccontextmanager
async def client(limits: SandboxLimits | None = None, **settings: Any) -> AsyncIterator[Client]:
    """A client of a new agent context; all processes that it started have ended afterwards."""
    settings.setdefault("workdir", "/tmp")
    context = AgentContext(AgentSettings(sandbox_id="test", token="", **settings), limits)
    context.start()
    try:
        yield Client(context)
    finally:
        context.stop()
        await until_async(lambda: not context.reaper.pids, deadline_s=DEADLINE_S, what="the end of all processes")
        context.close()
