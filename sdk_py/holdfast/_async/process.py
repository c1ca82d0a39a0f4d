"""Live processes, terminals, and the live output of one shell command.

These objects are thin wrappers of a ``Call``. Created by ``sandbox.start``, ``sandbox.terminal`` and ``shell.stream``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Self

from holdfast._arguments import size_of
from holdfast._async.running import AsyncInput, AsyncRunning, cancel
from holdfast._public import public
from holdfast._results import Chunk, CommandResult
from holdfast._transport.aio.driver import SessionDriver
from holdfast._transport.aio.events import Cancelled, shielded
from holdfast._transport.session.command_call import Call


@public
class AsyncProcess(AsyncInput):
    """A process in the sandbox: write, close_stdin, signal, iterate, wait. Leaving its ``with`` block ends it."""

    async def close_stdin(self) -> None:
        """Close the command's standard input, which is an end of file. Does nothing if it is closed already or the command has ended."""
        if not self._no_input and not self.done:
            await self._write(b"", True)
            self._no_input = "the command's standard input was closed"


@public
class AsyncInteraction(AsyncProcess):
    """A command of a living shell to talk with: ``send``, ``expect``, then ``wait`` for its result. Leaving the ``with`` block ends it."""

    async def send(self, data: bytes | str) -> None:
        """Write to its standard input. In a shell with a terminal type keys, such as ``"yes\\n"``, or ``"\\x03"`` for Ctrl-C.

        ``data`` is bytes, or text as UTF-8. Raises ``InputClosedError`` if the command never will read again.
        """
        await self.write(data)

    async def _begin(self, send: Callable[[], None]) -> None:
        """Return once the command has started, which commands before it in the shell may delay; raises the reason if it could not."""
        call = self._call
        try:
            self._driver.perform(send)
            await call.started_event.wait()
            self._limit()
        except Cancelled:
            await shielded(cancel, self._driver, call)
            raise
        if not call.started and call.error is not None:
            raise call.error


@public
class AsyncTerminal(AsyncInput):
    """A pseudo-terminal in the sandbox. Iterating it gives chunks of stream 1: the terminal's output with its escape sequences."""

    @property
    def name(self) -> str | None:
        """The name by which a client can attach to it again."""
        name = self._call.info.get("name")
        return name if isinstance(name, str) else None

    @property
    def created(self) -> bool:
        """Whether this call started it; False: it existed already."""
        return self._call.info.get("created") is not False

    async def resize(self, rows: int, cols: int) -> None:
        """Set the size in character cells; the program in the terminal gets SIGWINCH.

        ``rows`` and ``cols`` are from 1 to 4096.
        """
        self._driver.perform(self._call.resize, *size_of(rows, cols))


@public
class AsyncCommandStream:
    """One command of a shell with live output: iterate for chunks, then look at ``result``.

    The command starts with the first step of the iteration. Leaving the iteration early cancels the command.
    """

    _begun = False
    """Whether the command was sent. Also False if ``__init__`` was interrupted, because the finalizer reads it."""
    _abandoned = False

    def __init__(self, driver: SessionDriver, call: Call, send: Callable[[], None]) -> None:
        self._driver = driver
        self._call = call
        self._send = send
        self._running = AsyncRunning(driver, call)
        self._result: CommandResult | None = None

    def _started(self) -> AsyncRunning:
        if not self._begun:
            self._begun = True
            try:
                self._driver.perform(self._send)
                self._running._limit()
            except Cancelled:
                self._abandon()
                raise
            except BaseException:
                self._begun = False
                raise
        return self._running

    @property
    def result(self) -> CommandResult:
        """The outcome. Raises ``RuntimeError`` before the iteration has ended."""
        if self._result is None:
            if not self._call.done:
                raise RuntimeError("iterate to the end first, or await wait()")
            self._result = self._call.result()
        return self._result

    async def wait(self) -> CommandResult:
        """Read to the end and return the result."""
        running = self._started()
        try:
            self._result = await running.wait()
        except Cancelled:
            await running.close()
            raise
        return self._result

    def __aiter__(self) -> AsyncIterator[Chunk]:
        self._started()
        return _Chunks(self)

    async def __anext__(self) -> Chunk:
        running = self._started()
        try:
            chunk = await running.read()
        except Cancelled:
            await running.close()
            raise
        if chunk is None:
            self._result = self._call.result()
            raise StopAsyncIteration
        return chunk

    async def close(self) -> None:
        """Cancel the command if it still runs."""
        if self._begun:
            await self._running.close()

    async def __aenter__(self) -> Self:
        self._started()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _abandon(self) -> None:
        if self._begun and not self._call.done and not self._abandoned:
            self._abandoned = True
            self._driver.later(self._call.cancel)

    def __del__(self) -> None:
        self._abandon()


class _Chunks:
    """One iteration over a stream. Leaving the loop ends the iteration and cancels the command, also while the caller keeps the stream."""

    def __init__(self, stream: AsyncCommandStream) -> None:
        self._stream = stream

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        return await self._stream.__anext__()

    def __del__(self) -> None:
        stream = getattr(self, "_stream", None)  # not there where ``__init__`` was interrupted
        if stream is not None:
            stream._abandon()
