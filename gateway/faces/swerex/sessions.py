"""SWE-ReX's sessions: living shells with a terminal, found by their names, so that any replica serves them.

Owns what is typed into a shell and how its output is read. A command ends by the shell's own report, never by a prompt in the output.
A command whose time is over was killed with all that it started; one that was started as interactive continues. What a program wrote
between two actions of an interactive session is not part of the second one's output.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import Close, Exited, Failed, Opened, Output, Run, Signal

from gateway.agents.agent_call import AgentCall
from gateway.identity.principal import Principal
from gateway.memory_reservation import reserve_memory
from gateway.model.records import Record
from gateway.use_cases import agent_reports, history, streams
from gateway.use_cases.agent_channel import CALL_S, limit
from gateway.use_cases.history import PastCommand
from gateway.use_cases.service import Gateway

from .errors import TransferredError

PROMPT: Final = "SHELLPS1PREFIX"
"""What a client reads as the match of a command that has ended."""
_PREFIX: Final = "swerex."
_NAME_BYTES: Final = 80
_COMMAND_BYTES: Final = 192 * 1024
_KILL_S: Final = 5.0
_BETWEEN_BYTES: Final = 4096
_CONTROL_BYTES: Final = 16
"""A text that is expected is found if its control sequences have no more bytes than both: the first, and the second for each character."""
_CONTROL: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")


@dataclass(slots=True)
class Seen:
    """What an action saw: the output, and the result if the command has ended, else the text that was expected and came."""

    output: str
    result: dict[str, Any] | None = None
    expected: str = PROMPT

    @property
    def exit_code(self) -> int | None:
        return None if self.result is None else agent_reports.exit_code(self.result.get("exit_code"))


@dataclass(slots=True)
class Session:
    """One session of a sandbox."""

    gateway: Gateway
    principal: Principal
    record: Record
    name: str
    _output: bytearray = field(default_factory=bytearray)

    @property
    def shell(self) -> str:
        if len(self.name.encode()) > _NAME_BYTES:
            raise HoldfastError("invalid_argument", f"the name of a session must have at most {_NAME_BYTES} bytes")
        return _PREFIX + base64.urlsafe_b64encode(self.name.encode()).decode().rstrip("=")

    def _open(self, *, create: bool) -> dict[str, Any]:
        return {"name": self.shell, "shell": "bash", "tty": True, "create": create}

    async def create(self) -> None:
        """Start the shell. Raises ``SessionExistsError``."""
        async with streams.called(self.gateway, self.record) as call, limit(CALL_S):
            call.open("shell", self._open(create=True))
            opened = await self._opened(call)
            call.detach()
        if opened.info.get("created") is False:
            raise TransferredError("SessionExistsError", f"session {self.name} already exists")

    async def close(self) -> None:
        """End the shell and all that it started. Raises ``SessionDoesNotExistError``."""
        async with streams.called(self.gateway, self.record) as call, limit(CALL_S):
            call.open("shell", self._open(create=False))
            await self._opened(call)
            call.send(Close(call.number))
            async for _ in call.facts():
                pass

    async def running(self) -> PastCommand | None:
        """The command that runs in the shell."""
        mine = [one for one in await history.commands(self.gateway, self.principal, self.record.name) if one.shell == self.shell]
        return next((one for one in reversed(mine) if one.running), None)

    async def run(self, command_id: str, command: str, timeout_s: float | None) -> Seen:
        """Run a command to its end. Raises ``CommandTimeoutError``, after which nothing of it is left."""
        params = {"script": _script(command), **({} if timeout_s is None else {"timeout_s": timeout_s})}
        seen = await self._begin(command_id, params, [])
        if seen.result is not None and seen.result.get("timed_out") is True:
            raise _late(timeout_s, command)
        return seen

    async def start(self, command_id: str, command: str, expect: list[str], timeout_s: float | None) -> Seen:
        """Run a command until it ends or writes one of the texts. It continues. Raises ``CommandTimeoutError``."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._begin(command_id, {"script": _script(command)}, expect)
        except TimeoutError:
            raise _late(timeout_s, command) from None

    async def type(self, running: PastCommand, line: str, expect: list[str], timeout_s: float | None) -> Seen:
        """Type a line into the command that runs, and read until it ends or writes one of the texts. Raises ``CommandTimeoutError``."""
        try:
            async with asyncio.timeout(timeout_s), self._followed(running) as call:
                await self._type(line.encode("utf-8", "surrogateescape") + b"\n")
                return await self._read(call, expect)
        except TimeoutError:
            raise _late(timeout_s, line) from None

    async def interrupt(self, running: PastCommand, tries: int, wait_s: float) -> Seen:
        """Type Ctrl-C into the command that runs, at most ``tries`` times, then kill it."""
        async with self._followed(running) as call:
            for number in range(tries + 1):
                if number < tries:
                    await self._type(b"\x03")
                else:
                    call.send(Signal(call.number, "KILL"))
                try:
                    async with asyncio.timeout(wait_s if number < tries else _KILL_S):
                        return await self._read(call, [])
                except TimeoutError:
                    continue
        raise TransferredError("CommandTimeoutError", f"the command of session {self.name} does not end, although it was killed")

    @contextlib.asynccontextmanager
    async def _followed(self, running: PastCommand) -> AsyncIterator[AgentCall]:
        """The output of the command that runs, from now on."""
        async with streams.called(self.gateway, self.record, own=True) as call:
            call.open("follow", {"id": running.command_id, "from": {1: running.stdout_bytes}})
            yield call

    async def _type(self, keys: bytes) -> None:
        """Type on the shell's terminal."""
        await streams.tell(self.gateway, self.record, ("shell", self._open(create=False)), keys)

    async def _begin(self, command_id: str, params: dict[str, Any], expect: list[str]) -> Seen:
        async with streams.called(self.gateway, self.record, own=True) as call:
            call.open("shell", self._open(create=False))
            await self._opened(call)
            call.send(Run(call.number, command_id, params))
            return await self._read(call, expect)

    async def _opened(self, call: AgentCall) -> Opened:
        async for fact in call.facts():
            if isinstance(fact, Opened):
                return fact
            if isinstance(fact, Failed):
                error = agent_reports.fact_error(fact)
                if error.code == "command_not_found":
                    raise TransferredError("SessionDoesNotExistError", f"session {self.name!r} does not exist")
                raise error
        raise TransferredError("SessionDoesNotExistError", f"session {self.name!r} has ended")

    async def _read(self, call: AgentCall, expect: list[str]) -> Seen:
        """Read the output until the command ends, or one of the texts has come."""
        recent, most = bytearray(), _BETWEEN_BYTES + max((_CONTROL_BYTES * len(text) for text in expect), default=0)
        async for fact in call.facts():
            if isinstance(fact, Failed) or (isinstance(fact, Exited) and "error" in fact.result):
                raise agent_reports.fact_error(fact)
            if isinstance(fact, Output):
                self._keep(fact.data)
                if not expect:
                    continue
                recent += fact.data
                shown = _shown(recent)
                del recent[:-most]
                found = [(shown.index(text), text) for text in expect if text in shown]
                if found:
                    _, text = min(found)
                    call.detach()
                    return Seen(_shown(self._output).partition(text)[0], None, text)
            elif isinstance(fact, Exited):
                call.detach()
                return Seen(_shown(self._output), fact.result)
        raise TransferredError("SessionDoesNotExistError", f"session {self.name!r} has ended")

    def _keep(self, data: bytes) -> None:
        room = self.gateway.settings.rest.output_bytes - len(self._output)
        reserve_memory(2 * min(room, len(data)))
        self._output += data[:room]


async def close_all(gateway: Gateway, principal: Principal, record: Record) -> None:
    """End every session in which something was run."""
    for shell in {one.shell for one in await history.commands(gateway, principal, record.name) if one.shell.startswith(_PREFIX)}:
        text = shell.removeprefix(_PREFIX)
        try:
            await Session(gateway, principal, record, base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()).close()
        except (TransferredError, ValueError):
            continue  # it was closed


def _script(command: str) -> str:
    if len(command.encode("utf-8", "surrogateescape")) > _COMMAND_BYTES:
        raise HoldfastError("arguments_too_long", f"a command must have at most {_COMMAND_BYTES} bytes")
    return command


def _shown(output: bytearray) -> str:
    """What the terminal got, as text without control sequences."""
    return _CONTROL.sub("", output.decode("utf-8", "backslashreplace")).replace("\r\n", "\n")


def _late(timeout_s: float | None, command: str) -> TransferredError:
    return TransferredError("CommandTimeoutError", f"timeout after {timeout_s} seconds while running command {command[:1000]!r}")
