# Generated from ../_async by infra/scripts/generate_sync.py: edit that, then run `make generate`.
"""Waiting for commands: until their end or chunk by chunk, and what a cancelled wait does to the command.

Owns ``outcome`` and the base class of streams, processes and terminals. Does not own how the agent's messages are collected
(``_transport.session.sinks``).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from holdfast._arguments import content_of, expected, wait_time_of
from holdfast._sync.patience import Patience, answered, ended, give_up
from holdfast._sync.transfers import send
from holdfast._errors import CommandFailedError, InputClosedError, ServiceUnavailableError, WaitTimeoutError
from holdfast._public import public
from holdfast._results import STDOUT, Chunk, CommandResult
from holdfast._signals import signal_of
from holdfast._transport.threads.driver import SessionDriver
from holdfast._transport.threads.events import Cancelled, shielded
from holdfast._transport.session.command_call import Call
from holdfast._transport.session.sinks import CommandSink, ShellSink

if TYPE_CHECKING:
    import re

EXPECT_BYTES = 1024 * 1024
"""How much output ``expect`` keeps."""
SHOWN_BYTES = 200


def outcome(driver: SessionDriver, call: Call, send: Callable[[], None]) -> CommandResult:
    """Send a command that collects its output, and wait for its result.

    A local cancellation, even before the command is sent, cancels the remote command, waits a bounded time for its end, and is raised
    again.
    """
    try:
        driver.perform(send)
        ended(driver, call)
    except Cancelled:
        shielded(cancel, driver, call)
        raise
    return call.result()


def cancel(driver: SessionDriver, call: Call) -> None:
    """End the remote command, and wait at most ``cancel_timeout_s`` until it has ended."""
    step_limit_s = driver.options.cancel_timeout_s / 2
    driver.perform(call.cancel)
    if not call.done and isinstance(call.sink, ShellSink) and not call.changed.wait(step_limit_s):
        driver.perform(call.kill)
    if not call.done:
        call.changed.wait(step_limit_s)


@public
class Running:
    """A running command: iterate it for live output, ``wait`` for its result, or leave its ``with`` block to end it."""

    def __init__(self, driver: SessionDriver, call: Call) -> None:
        self._driver = driver
        self._call = call
        self._patience: Patience | None = None
        """How long the command may still run; None without a limit."""
        self._unread: Chunk | None = None
        """What ``expect`` has read beyond its pattern."""

    @property
    def command_id(self) -> str:
        """The command's id; ``sandbox.follow(command_id)`` attaches to the command again."""
        return self._call.command_id

    @property
    def done(self) -> bool:
        """Whether the command has ended; there may still be unread output."""
        return self._call.done

    def _limit(self) -> None:
        """The time limit of the command begins."""
        limit_s = self._call.limit_s
        if limit_s is not None:
            self._patience = Patience(self._driver, limit_s + self._driver.options.answer_timeout_s)

    def read(self, timeout: float | None = None) -> Chunk | None:
        """The next chunk of output, None at the end. At most 1 MiB of output is buffered unread; then the command waits.

        Raises ``WaitTimeoutError`` after ``timeout`` seconds, and the typed error if the session ends first.
        """
        call = self._call
        timeout = wait_time_of(timeout)
        if self._unread is not None:
            unread, self._unread = self._unread, None
            return unread
        while True:
            over = call.done  # read first: all output that came before the end is then there
            chunk = self._driver.perform(call.take)
            if chunk is not None:
                return chunk
            if over:
                if call.error is not None:
                    raise call.error
                return None
            if timeout is None and self._patience is not None:
                if not self._patience.wait(call.changed):
                    give_up(self._driver, call)
            elif not call.changed.wait(timeout):
                raise WaitTimeoutError(message=f"no output within {timeout:g} s")

    def expect(self, pattern: str | bytes | re.Pattern[str] | re.Pattern[bytes], timeout: float | None = None) -> str:
        """Read until the output contains ``pattern``, and return the output up to its end; what follows is read next.

        ``pattern`` is a text, or a compiled regular expression; escape sequences of a terminal are part of the output. Output of both
        streams counts, and of a long one the last MiB. Raises ``WaitTimeoutError`` after ``timeout`` seconds; what was read until then is
        read again next. Raises ``CommandFailedError``, whose ``result`` is the result, if the command ends before.
        """
        wanted, seen, stream, end_s = expected(pattern), b"", STDOUT, None
        limit_s = wait_time_of(timeout)
        if limit_s is not None:
            end_s = time.monotonic() + limit_s
        try:
            while True:
                if (found := wanted.search(seen)) is not None:
                    before, seen = seen[: found.end()], seen[found.end() :]
                    return before.decode("utf-8", "replace")
                chunk = self.read(None if end_s is None else max(end_s - time.monotonic(), 0.0))
                if chunk is None:
                    shown, seen = seen[-SHOWN_BYTES:].decode("utf-8", "replace"), b""
                    message = f"the command ended before it wrote {wanted.pattern!r:.100}; the end of its output: {shown!r}"
                    raise CommandFailedError(message, self.wait())
                stream, seen = chunk.stream, (seen + chunk.data)[-EXPECT_BYTES:]
        finally:
            if seen:
                self._unread = Chunk(stream, seen)

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        chunk = self.read()
        if chunk is None:
            raise StopIteration
        return chunk

    def wait(self, timeout: float | None = None) -> CommandResult:
        """Wait for the result. It contains the output that was not read, up to the output limit.

        Raises ``WaitTimeoutError`` after ``timeout`` seconds. The command continues to run then, and also if the wait is cancelled.
        """
        call = self._call
        timeout = wait_time_of(timeout)
        self._driver.perform(call.collect)  # from now on only the end sets the event
        if timeout is None:
            ended(self._driver, call)
        elif not call.changed.wait(timeout):
            raise WaitTimeoutError(message=f"the command did not end within {timeout:g} s")
        return call.result()

    def signal(self, name: str | int) -> None:
        """Send a signal (``"INT"``, ``"SIGTERM"``, 15, …) to the command's process group; ``"KILL"`` ends its whole tree.

        ``name`` is a name or a number.
        """
        number, call = signal_of(name), self._call
        if call.error is not None and call.error.code == "session_lost":
            raise call.error  # the command may still run, and a signal would not reach it
        self._driver.perform(call.signal, number)

    def terminate(self) -> None:
        """Ask the command to end: SIGTERM."""
        self.signal("TERM")

    def kill(self) -> None:
        """Kill the command and all processes that it started."""
        self.signal("KILL")

    def detach(self) -> None:
        """Stop reading and leave the command running; ``sandbox.follow(command_id)`` attaches to it again."""
        sink = self._call.sink
        if isinstance(sink, CommandSink):
            self._driver.perform(sink.close, True)
        self._driver.perform(self._call.discard)

    def close(self) -> None:
        """End the command if it still runs, and wait a bounded time for that."""
        if not self._call.done:
            shielded(cancel, self._driver, self._call)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.command_id}{' done' if self.done else ''}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


@public
class Input(Running):
    """A running command that takes input."""

    _no_input = ""
    """Why this object cannot write input; empty if it can."""

    def _start(self, send: Callable[[], None]) -> None:
        """Return once the command has started; raises the reason if it could not."""
        call = self._call
        try:
            self._driver.perform(send)
            answered(self._driver, call.started_event, "the request for a command")
            self._limit()
        except ServiceUnavailableError:
            self._driver.perform(call.cancel)
            raise
        except Cancelled:
            shielded(cancel, self._driver, call)
            raise
        if not call.started and call.error is not None:
            raise call.error

    @property
    def pid(self) -> int | None:
        """The process id inside the sandbox."""
        pid = self._call.info.get("pid")
        return pid if isinstance(pid, int) else None

    def write(self, data: bytes | str) -> None:
        """Write to the command's input; waits while the command does not read. Raises ``InputClosedError`` if it never will read again.

        ``data`` is bytes, or text as UTF-8.
        """
        self._write(content_of(data), False)

    def _write(self, data: bytes, eof: bool) -> None:
        if self._no_input:
            raise InputClosedError("input_closed", self._no_input, fault="caller")
        if not send(self._driver, self._call.sink, data, eof, patience=self._patience):
            if not self._call.done and self._patience is not None and self._patience.left_s() <= 0.0:
                give_up(self._driver, self._call)
            raise self._call.error or InputClosedError("input_closed", "the command has ended and takes no input")
