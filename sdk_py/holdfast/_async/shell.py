"""A living shell: its working directory, variables, functions and jobs stay from command to command.

Made by ``sandbox.shell()``. Commands run one after the other, each at most once. A lost connection is resumed without the caller doing
anything.
"""

from __future__ import annotations

from functools import partial
from types import TracebackType
from typing import Self

from holdfast._arguments import bad, command_id_of, content_of, output_limit, size_of
from holdfast._async.process import AsyncCommandStream, AsyncInteraction
from holdfast._async.running import outcome
from holdfast._async.transfers import send
from holdfast._errors import UnsupportedError
from holdfast._public import public
from holdfast._requests import Keep, Stderr, run_params
from holdfast._results import CommandResult
from holdfast._signals import signal_of
from holdfast._transport.aio.driver import SessionDriver
from holdfast._transport.aio.events import shielded
from holdfast._transport.aio.opening import opening
from holdfast._transport.session.command_call import Call
from holdfast._transport.session.sink import AnyEvent
from holdfast._transport.session.sinks import ShellSink


@public
class AsyncShell:
    """A bash (or POSIX sh) that lives in the sandbox.

    It survives lost connections; a shell with a name also survives ``sandbox.close()``.
    """

    def __init__(self, driver: SessionDriver, sink: ShellSink, *, named: bool = False) -> None:
        self._driver = driver
        self.named = named
        """Whether the caller gave it a name; only such shells continue after ``sandbox.close()``."""
        self._sink = sink
        info = sink.info or {}
        self.name: str | None = info["name"] if isinstance(info.get("name"), str) else None
        """The name by which another process can attach to it: ``sandbox.shell(name)``."""
        self.pid: int | None = info["pid"] if isinstance(info.get("pid"), int) else None
        """Its process id inside the sandbox."""
        self.kind: str = "sh" if info.get("shell") == "sh" else "bash"
        """``bash`` or ``sh``."""
        self.created: bool = info.get("created") is not False
        """Whether this call started it; False: a shell of that name existed already."""
        self.tty: bool = info.get("tty") is True
        """Whether its commands run on a terminal."""

    async def run(
        self,
        command: str,
        timeout: float | None = None,
        *,
        input: bytes | str | None = None,  # noqa: A002
        command_id: str | None = None,
        max_output_bytes: int | None = None,
        keep: Keep = "head",
        stderr: Stderr = "pipe",
    ) -> CommandResult:
        """Run ``command`` in the shell and return its result, whatever its exit code.

        After ``timeout`` seconds the command and all processes that it started are killed; the exit code is then 124, and the result has
        the output so far. ``command_id`` makes the call idempotent: a second call with the same id attaches to the same command. ``input``
        is the whole standard input. At most ``max_output_bytes`` of each stream are kept, and ``keep`` selects which part: the ``head``,
        the ``tail`` or ``both`` ends. ``stderr="stdout"`` writes both streams into one, in the order of writing: ``result.output``. Raises
        ``SandboxLostError``, ``OutcomeUnknownError``, ``ShellLostError``, ``SessionLostError`` and ``ServiceUnavailableError``. Cancelling
        the wait interrupts the command.
        """
        call = self._new_call(command, timeout, input, command_id, max_output_bytes, keep, stderr, collecting=True)
        return await outcome(self._driver, call, partial(self._sink.run, call))

    def stream(
        self,
        command: str,
        timeout: float | None = None,
        *,
        input: bytes | str | None = None,  # noqa: A002
        command_id: str | None = None,
        max_output_bytes: int | None = None,
        keep: Keep = "head",
        stderr: Stderr = "pipe",
    ) -> AsyncCommandStream:
        """Run ``command`` with live output: iterate for ``Chunk``s, then read ``result``.

        Arguments and errors are those of ``run``: ``command``, ``timeout``, ``input``, ``command_id``, ``max_output_bytes``, ``keep`` and
        ``stderr``. Chunks of the two streams come in the order in which they were read; with ``stderr="stdout"`` in the order of writing.
        """
        call = self._new_call(command, timeout, input, command_id, max_output_bytes, keep, stderr, collecting=False)
        return AsyncCommandStream(self._driver, call, partial(self._sink.run, call))

    @opening
    async def interact(
        self,
        command: str,
        timeout: float | None = None,
        *,
        command_id: str | None = None,
        max_output_bytes: int | None = None,
        keep: Keep = "head",
    ) -> AsyncInteraction:
        """Run ``command`` and talk with it: ``send`` what it reads, ``expect`` what it writes. Returns once it has started.

        Its standard error goes to its standard output. In a shell with a terminal (``shell(tty=True)``) ``send`` types keys; in another one
        the command has a pipe as its standard input, which ``close_stdin`` ends. Leaving the ``with`` block ends the command; the shell
        continues. ``timeout``, ``command_id``, ``max_output_bytes`` and ``keep`` are those of ``run``, and so are the errors.
        """
        call = self._new_call(command, timeout, None, command_id, max_output_bytes, keep, "stdout", collecting=False, piped=not self.tty)
        interaction = AsyncInteraction(self._driver, call)
        await interaction._begin(partial(self._sink.run, call))
        return interaction

    def _new_call(
        self,
        command: str,
        timeout: float | None,
        data: bytes | str | None,
        command_id: str | None,
        max_output_bytes: int | None,
        keep: Keep,
        stderr: Stderr,
        *,
        collecting: bool,
        piped: bool = False,
    ) -> Call:
        """A command that ``ShellSink.run`` sends; ``data`` is all of its standard input, which with ``piped`` follows later."""
        driver, options = self._driver, self._driver.options
        if data is not None and self.tty:
            raise bad("a command on a terminal reads typed keys and takes no other input", hint="shell.write() types them while it runs")
        limit = output_limit(max_output_bytes, options.max_output_bytes, keep)
        call = driver.engine.new_call(self._sink, command_id_of(command_id), limit, collecting=collecting)
        call.params = run_params(command, timeout, options.command_timeout_s, piped or data is not None, stderr)
        call.limit_s = call.params.get("timeout_s")
        if data is not None:
            call.input = content_of(data, "input")
        return call

    async def write(self, data: bytes | str) -> None:
        """Type on the shell's terminal (``shell(tty=True)``): ``"yes\\n"``, ``"\\x03"`` for Ctrl-C, ``"\\x04"`` for end of input.

        The keys go to the running command, or to the next one if none runs; keys that a command has not read are discarded when it ends.
        Waits while the terminal's buffer is full. ``data`` is bytes, or text as UTF-8.
        """
        self._check_terminal("write")
        keys = content_of(data)
        if keys and not await send(self._driver, self._sink, keys):
            raise self._sink.over()

    async def resize(self, rows: int, cols: int) -> None:
        """Set the size of the terminal in character cells; the running command gets SIGWINCH.

        ``rows`` and ``cols`` are from 1 to 4096, in the order of ``Terminal.resize``.
        """
        self._check_terminal("resize")
        size = size_of(rows, cols)
        if self._sink.ended:
            raise self._sink.over()
        self._driver.perform(self._sink.resize, *size)

    def _check_terminal(self, what: str) -> None:
        if not self.tty:
            hint = "open it with sandbox.shell(tty=True); run(input=…) gives a command its standard input"
            raise UnsupportedError("unsupported", f"{what}: this shell has no terminal", hint=hint)

    async def signal(self, name: str | int) -> None:
        """Send a signal (``"INT"``, ``"SIGTERM"``, 15, …) to the command that runs now. Does nothing when none runs.

        ``name`` is a name or a number.
        """
        number = signal_of(name)
        call = self._sink.current
        if call is not None:
            self._driver.perform(call.signal, number)

    async def close(self) -> None:
        """End the shell and all processes that it started."""
        await shielded(self._left, False)

    async def detach(self) -> None:
        """Leave the shell running; ``sandbox.shell(name)`` attaches to it again, from this process or another."""
        await shielded(self._left, True)

    async def _left(self, detach: bool) -> None:
        await self._leave(detach).wait(self._driver.options.cancel_timeout_s)

    def _leave(self, detach: bool) -> AnyEvent:
        """Send the request; returns the event that is set when it has ended."""
        self._driver.perform(self._sink.close, detach)
        return self._sink.changed

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.kind} {self.name}{' closed' if self._sink.ended else ''}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()
