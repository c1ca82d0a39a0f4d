"""The handlers behind every file channel: they move bytes between a channel and the generator that does the file work.

``Outgoing`` reads from a ``Source`` as the client's credit allows; ``Incoming`` sends input to a ``Sink`` and returns credit after the
sink has taken it. Both are blocking code, in which ``finally`` releases everything and undoes what was not finished. Each runs one step at
a time on the loop's default thread pool, because a slow, throttled or remote disk can block a call for seconds while the agent has to keep
answering. ``ReadAheadQuota`` limits what all transfers together read ahead.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, ClassVar, TypeVar, cast

from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import STDOUT, Closed, Failed, Opened, Output
from holdfast_wire.limits import DATA_BYTES
from holdfast_wire.paths import shown
from holdfast_wire.session.halves import ByteCounter

from session_agent.agent.context import AgentContext
from session_agent.agent.process.users import User
from session_agent.agent.request.paths import os_failure
from session_agent.agent.session.channels import Channel, Handler

from .file_user import switched

log = logging.getLogger("session_agent.agent.files.transfers")

Info = dict[str, Any]
Source = Generator[Info | bytes | int, None, Info]
"""Yields the fields of ``Opened``, then the content in pieces of at most ``DATA_BYTES``; returns the fields of ``Closed``.

An empty piece ends a step, so that other transfers get the thread. A number is a descriptor: the next step follows when it is readable.
"""
Sink = Generator[Info, bytes | None, Info]
"""Yields the fields of ``Opened``, then ``{}`` for each piece that it was sent; gets None at the end, and returns those of ``Closed``."""

_T = TypeVar("_T")
_JOINED_BYTES = 64 * 1024
_MOST_NOTED = 100
"""Most names of changed files in one entry."""


def joined(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The content of ``pieces`` with small ones put together."""
    held = bytearray()
    for piece in pieces:
        if held and len(held) + len(piece) > _JOINED_BYTES:
            yield bytes(held)
            held.clear()
        held += piece
    yield bytes(held)


class Transfer(Handler):
    """The common base: runs one step of ``work`` at a time on a thread, and sends one final fact after the last step.

    ``path`` is what an ``OSError`` is about. With an ``actor`` every step runs as that user.
    """

    def __init__(self, channel: Channel, work: Source | Sink, path: str, actor: User | None) -> None:
        self._channel = channel
        self._work = work
        self._path = path
        self._actor = actor
        self._loop = asyncio.get_running_loop()
        self._busy = False
        self._ready = False
        self._over = False
        self._last: Closed | Failed | None = None
        self._step(lambda: cast("Info", next(work)), self._opened)

    def write(self, data: bytes, eof: bool) -> None:
        self._channel.consume(len(data))

    def writable(self) -> None:
        self._pump()

    def close(self, detach: bool) -> None:
        self._abort(Failed(self._channel.number, HoldfastError("cancelled", "the transfer was cancelled").to_map()))

    def drop(self) -> None:
        self._last = None  # the number may belong to another channel by the time the undo has finished
        self._abort(None)

    def _pump(self) -> None:
        raise NotImplementedError

    def _opened(self, info: Info) -> None:
        self._ready = True
        self._channel.send(Opened(self._channel.number, info))
        self._pump()

    def _forget(self) -> None:
        """The transfer is over: release what is not part of the work."""

    def _end(self, fact: Closed | Failed) -> None:
        """Send the final fact; the work has ended already."""
        self._over = True
        self._forget()
        self._channel.send(fact)

    def _abort(self, last: Closed | Failed | None) -> None:
        """Undo the work, then send ``last``: when the client reads it nothing of the transfer is left."""
        if self._over:
            return
        self._over, self._last = True, last
        self._forget()
        if not self._busy:
            self._undo()

    def _undo(self) -> None:
        def undone(_: None, error: BaseException | None) -> None:
            if isinstance(error, OSError):
                log.info("closing a transfer: %s", error.strerror)
            if self._last is not None:
                self._channel.send(self._last)

        self._run(self._work.close, undone)

    def _step(self, work: Callable[[], _T], done: Callable[[_T], None]) -> None:
        def stepped(result: _T | None, error: BaseException | None) -> None:
            self._busy = False
            if self._over:
                self._undo()
            elif error is not None:
                self._end(Failed(self._channel.number, self._typed(error).to_map()))
            else:
                done(cast("_T", result))

        self._busy = True
        self._run(work, stepped)

    def _run(self, work: Callable[[], _T], done: Callable[[_T | None, BaseException | None], None]) -> None:
        """Run ``work`` exactly once, on the thread pool; report its outcome on the loop.

        While a fork bomb in the sandbox uses all pids no thread can be started. The pool raises then, but keeps the job in its queue, where
        a running thread may still take it. So the loop runs the job itself, and whichever is first takes the lock.
        """
        taken = threading.Lock()

        def job() -> None:
            if not taken.acquire(blocking=False):
                return
            result, problem = None, None
            try:
                with contextlib.nullcontext() if self._actor is None else switched(self._actor):
                    result = work()
            except BaseException as error:  # noqa: BLE001  passed to ``done``
                problem = error
            with contextlib.suppress(RuntimeError):  # the loop is closed: the outcome is not needed any more
                self._loop.call_soon_threadsafe(done, result, problem)

        try:
            self._loop.run_in_executor(None, job)
        except RuntimeError:
            job()

    def _typed(self, error: BaseException) -> HoldfastError:
        if isinstance(error, HoldfastError):
            return error
        if isinstance(error, OSError):
            return os_failure(error, self._path)
        log.error("a transfer failed", exc_info=error)
        return HoldfastError("internal", f"a transfer failed: {type(error).__name__}")


class Outgoing(Transfer):
    """Sends a source to the client."""

    AHEAD_BYTES: ClassVar = 512 * 1024
    """Most bytes read from the source and not yet taken by the channel."""

    def __init__(self, channel: Channel, source: Source, path: str, context: AgentContext, actor: User | None = None) -> None:
        self._source = source
        self._ahead: deque[bytes] = deque()
        self._ahead_bytes = 0
        self._quota = context.read_ahead
        self._read_ahead = ByteCounter(self._quota.whole)
        self._listening = -1
        """The descriptor for which the next step waits, or -1."""
        self._result: Info | None = None
        super().__init__(channel, source, path, actor)

    def _pump(self) -> None:
        if self._over or not self._ready:
            return
        self._send_ahead()
        if self._result is not None:
            if not self._ahead:
                self._end(Closed(self._channel.number, self._result))
        elif not self._busy and self._listening < 0 and self._may_read():
            wanted = DATA_BYTES if self._quota.is_exceeded else self.AHEAD_BYTES - self._ahead_bytes
            self._read_ahead.add(wanted)
            self._step(lambda: self._read(wanted), self._taken)

    def _send_ahead(self) -> None:
        """Send what was read, as far as there is room."""
        channel, ahead = self._channel, self._ahead
        while ahead and (room := channel.room()) > 0:
            chunk = ahead.popleft()
            if len(chunk) > room:
                ahead.appendleft(chunk[room:])
                chunk = chunk[:room]
            self._ahead_bytes -= len(chunk)
            self._read_ahead.add(-len(chunk))
            channel.send(Output(channel.number, STDOUT, chunk))

    def _may_read(self) -> bool:
        if self._channel.is_memory_full or self._ahead_bytes > self.AHEAD_BYTES // 2:
            return False
        if self._quota.is_exceeded and self._channel.room() <= 0:
            return False
        return self._quota.may_read(self)

    def _read(self, wanted: int) -> tuple[list[bytes], int, Info | None]:
        """The next pieces, the descriptor that is to be waited for or -1, and the result if these are the last ones."""
        taken: list[bytes] = []
        while wanted >= DATA_BYTES or not taken:
            try:
                chunk = next(self._source)
            except StopIteration as end:
                return taken, -1, end.value
            if isinstance(chunk, int):
                return taken, chunk, None
            if not chunk:
                break
            taken.append(cast("bytes", chunk))
            wanted -= len(chunk)
        return taken, -1, None

    def _taken(self, read: tuple[list[bytes], int, Info | None]) -> None:
        chunks, listen, self._result = read
        self._ahead += chunks
        self._ahead_bytes += sum(map(len, chunks))
        self._read_ahead.add(self._ahead_bytes - self._read_ahead.held)
        if listen >= 0:
            self._listening = listen
            self._loop.add_reader(listen, self._readable)
        self._quota.done(self)
        self._pump()

    def _readable(self) -> None:
        self._stop_listening()
        self._pump()

    def _stop_listening(self) -> None:
        if self._listening >= 0:
            self._loop.remove_reader(self._listening)
            self._listening = -1

    def _forget(self) -> None:
        self._stop_listening()
        self._ahead.clear()
        self._ahead_bytes = 0
        self._read_ahead.clear()
        self._quota.forget(self)


class Incoming(Transfer):
    """Sends the client's input to a sink."""

    def __init__(self, channel: Channel, sink: Sink, path: str, actor: User | None = None) -> None:
        self._sink = sink
        self._waiting: list[bytes] = []
        self._eof = False
        self._finishing = False
        super().__init__(channel, sink, path, actor)

    def close(self, detach: bool) -> None:
        if not self._finishing:  # a commit in progress cannot be undone: the client gets its result
            super().close(detach)

    def write(self, data: bytes, eof: bool) -> None:
        if self._over or self._eof:
            self._channel.consume(len(data))
            return
        if data:
            self._waiting.append(data)
        self._eof = eof
        self._pump()

    def _pump(self) -> None:
        if self._over or self._busy or not self._ready:
            return
        if self._waiting:
            batch, self._waiting = self._waiting, []
            self._step(lambda: self._feed(batch), self._fed)
        elif self._eof:
            self._finishing = True
            self._step(lambda: finish(self._sink), lambda result: self._end(Closed(self._channel.number, result)))

    def _feed(self, batch: list[bytes]) -> int:
        for data in batch:
            self._sink.send(data)
        return sum(map(len, batch))

    def _fed(self, size_bytes: int) -> None:
        self._channel.consume(size_bytes)
        self._pump()


def noted(context: AgentContext, operation: str, path: str, sink: Sink) -> Sink:
    """``sink``, whose end those who follow the sandbox see (``output.journal``)."""
    result = yield from sink
    if context.records.journal is not None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            context.loop.call_soon_threadsafe(_note, context, operation, path, dict(result))
    return result


def _note(context: AgentContext, operation: str, path: str, result: Info) -> None:
    journal = context.records.journal
    if journal is not None:
        kept: Info = {name: result[name] for name in ("size", "sha256", "entries", "bytes", "success") if name in result}
        files = [name for name in result.get("files") or () if isinstance(name, str)][:_MOST_NOTED]
        journal.note("files_written", {"operation": operation, "path": shown(path), **kept, **({"files": files} if files else {})})


def finish(sink: Sink) -> Info:
    """Send the end of the input; returns the sink's result."""
    try:
        sink.send(None)
    except StopIteration as end:
        return cast("Info", end.value)
    raise AssertionError("the sink did not return at the end of its input")
