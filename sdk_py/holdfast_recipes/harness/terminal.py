"""The ``terminal`` tool of the harness with a living shell: one shell per task, commands that go on running, input to them (A2.1).

Owns what a call to the tool does: a new command, input or an interrupt for the running one, more waiting, a new shell. A command that is
not over when its time is, or that printed nothing for a while, is not ended: the policy is shown what there is and decides. Standard
input of commands is a named pipe that stays open, as a terminal's does.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import uuid

from holdfast import AsyncCommandStream, AsyncSandbox, AsyncShell, CommandResult, ShellLostError

from holdfast_recipes.core.calls import ToolCall
from holdfast_recipes.core.trajectory import Observation

from .observations import shown
from .toolset import Result, cause_of

QUIET_S = 30.0
"""A command that printed nothing for so long is reported as still running, unless the call names its own time."""
WHOLE_BELOW = 30_000
_HELD_BYTES = 1024 * 1024
_SIGNALS = {"C-c": "INT", "C-z": "TSTP", "C-\\": "QUIT"}


class Terminal:
    """The shell of one task. ``workdir`` is where it starts, ``oom_ends`` as for the toolset."""

    def __init__(
        self, sandbox: AsyncSandbox, workdir: str, *, user: str | None = None, oom_ends: bool = False, quiet_s: float = QUIET_S
    ) -> None:
        self._sandbox, self._workdir, self._user, self._oom_ends, self._quiet_s = sandbox, workdir, user, oom_ends, quiet_s
        self._shell: AsyncShell | None = None
        self._running: _Running | None = None
        self._input = f"/tmp/.input-{uuid.uuid4().hex[:8]}"
        self._has_input: bool | None = None

    async def run(self, call: ToolCall, *, timeout_s: float) -> Result:
        """Run one call of the tool. Raises what means that the sandbox is lost, or ends the rollout."""
        arguments = call.arguments
        command, own_s = str(arguments["command"]), arguments.get("timeout")
        notes = []
        if arguments.get("reset"):
            await self.close()
            notes.append("[a new shell was started]")
            if not command.strip():
                return _observation(call, notes[0])
        if arguments.get("is_input"):
            if self._running is None:
                return _observation(call, "Error: no command is running that could take input.")
            if (problem := await self._feed(command)) is not None:
                return _observation(call, problem)
        elif not command.strip():
            if self._running is None:
                return _observation(call, "Error: no command is running; an empty command waits for one that is.")
        elif self._running is not None:
            return _observation(
                call, "Error: the last command still runs. Send it input or C-c with is_input, wait with an empty command, or reset."
            )
        else:
            await self._start(command)
        assert self._running is not None
        limit_s = timeout_s if own_s is None else min(float(own_s), timeout_s)
        try:
            result = await self._running.wait(limit_s, None if own_s is not None else self._quiet_s)
        except ShellLostError:  # the next command starts a new one
            self._running = self._shell = None
            raise
        return self._seen(call, result, notes)

    async def close(self) -> None:
        """End what runs, and the shell."""
        running, self._running = self._running, None
        shell, self._shell = self._shell, None
        if running is not None:
            await running.close()
        if shell is not None:
            await shell.close()

    async def _start(self, command: str) -> None:
        if self._shell is None:
            self._shell = await self._sandbox.shell(cwd=self._workdir, user=self._user)
        if self._has_input is None:
            made = await self._sandbox.exec(["mkfifo", "-m", "600", self._input], user=self._user)
            self._has_input = made.ok
        text = f"eval {shlex.quote(command)} <>{self._input}" if self._has_input else command
        self._running = _Running(self._shell.stream(text))

    async def _feed(self, text: str) -> str | None:
        """Input for the running command, with the line's end that a terminal's Enter gives; or a signal. What is wrong with it, if so."""
        assert self._shell is not None
        if (signal := _SIGNALS.get(text.strip())) is not None:
            await self._shell.signal(signal)
            return None
        if text.strip().startswith("C-"):
            return f"Error: of the keys with Ctrl there are {', '.join(_SIGNALS)}."
        if not self._has_input:
            return "Error: commands cannot take input here."
        line = text if text.endswith("\n") else text + "\n"
        fed = await self._sandbox.exec(["sh", "-c", f"cat >{self._input}"], input=line, timeout=5, user=self._user)
        return None if fed.ok else "Error: the command does not read its input."

    def _seen(self, call: ToolCall, result: CommandResult | None, notes: list[str]) -> Result:
        assert self._running is not None
        output = shown(self._running.take(), WHOLE_BELOW, WHOLE_BELOW // 2)
        if result is None:
            waited = f"[the command still runs after {self._running.seconds:.0f} s: wait with an empty command, or send input or C-c]"
            return Result(Observation("\n".join([*notes, output, waited]), call.id, None, "running"))
        self._running = None
        cause = cause_of(result, oom_ends=self._oom_ends)
        if result.shell_restarted:
            notes.append("[the shell ended and was started again in the same directory]")
        place = f"[exit code {result.exit_code}{f', in {result.cwd}' if result.cwd else ''}]"
        return Result(Observation("\n".join([*notes, output, place]), call.id, result.exit_code, cause))


class _Running:
    """A command and the output that was not shown yet, of which both ends are held."""

    def __init__(self, stream: AsyncCommandStream) -> None:
        self._stream = stream
        self._clock = asyncio.get_running_loop().time
        self._began = self._printed = self._clock()
        self._held = bytearray()
        self._lost = 0
        self._reading = asyncio.create_task(self._read(), name="terminal-output")

    @property
    def seconds(self) -> float:
        return self._clock() - self._began

    async def wait(self, timeout_s: float, quiet_s: float | None) -> CommandResult | None:
        """Its result, or None when it still runs after ``timeout_s``, or has printed nothing for ``quiet_s``."""
        end = self._clock() + timeout_s
        self._printed = self._clock()
        while not self._reading.done():
            until = end if quiet_s is None else min(end, self._printed + quiet_s)
            if (left_s := until - self._clock()) <= 0:
                return None
            await asyncio.wait({self._reading}, timeout=left_s)
        await self._reading  # raises what ended the session
        return self._stream.result

    def take(self) -> str:
        """The output since the last look."""
        text = self._held.decode("utf-8", "replace")
        if self._lost:
            half = len(self._held) // 2
            head, tail = (bytes(part).decode("utf-8", "replace") for part in (self._held[:half], self._held[half:]))
            text = f"{head}\n[{self._lost} bytes are not here]\n{tail}"
        self._held.clear()
        self._lost = 0
        return text

    async def close(self) -> None:
        if not self._reading.done():
            self._reading.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._reading
        elif not self._reading.cancelled():
            self._reading.exception()

    async def _read(self) -> None:
        async for chunk in self._stream:
            self._printed = self._clock()
            self._held += chunk.data
            if (over := len(self._held) - _HELD_BYTES) > 0:
                middle = _HELD_BYTES // 2
                del self._held[middle : middle + over]
                self._lost += over


def _observation(call: ToolCall, text: str) -> Result:
    return Result(Observation(text, call.id))
