"""The handlers behind every file channel: they move bytes between a channel and a source or a sink.

``Outgoing`` reads from a ``Source`` as the client's credit allows; ``Incoming`` writes input to a ``Sink`` and returns credit after the
sink has taken it. Sources and sinks are blocking code. Each runs one step at a time on the loop's default thread pool, because a slow,
throttled or remote disk can block a call for seconds while the agent has to keep answering. A transfer reads at most ``AHEAD_BYTES``
ahead; ``ReadAheadQuota`` limits all transfers together.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar, cast

from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import STDOUT, Closed, Failed, Opened, Output
from holdfast_wire.halves import ByteCounter
from holdfast_wire.limits import DATA_BYTES

from session_agent.agent.output.read_ahead import ReadAheadQuota
from session_agent.agent.session.channels import Channel, Handler

from .file_user import Actor

log = logging.getLogger("session_agent.agent.files.transfers")

AHEAD_BYTES = 512 * 1024
"""Most bytes read from a source and not yet taken by the channel."""

_T = TypeVar("_T")


class Work(Protocol):
    """The file work of a channel. Methods run on a thread, one at a time, and may block; ``close`` is the last and may be called twice."""

    def open(self) -> dict[str, Any]:
        """Prepare; returns the fields of ``Opened``."""
        ...

    def close(self) -> None:
        """Release everything, and undo what was not finished."""
        ...


class Source(Work, Protocol):
    """Work that reads."""

    def chunks(self) -> Iterator[bytes]:
        """The content in pieces of at most ``DATA_BYTES``. An empty piece ends a step, so that other transfers get the thread."""
        ...

    def result(self) -> dict[str, Any]:
        """The fields of ``Closed``, once ``chunks`` is exhausted."""
        ...


class Sink(Work, Protocol):
    """Work that writes."""

    def feed(self, data: bytes) -> None:
        """Accept the next bytes."""
        ...

    def finish(self) -> dict[str, Any]:
        """The input is complete: commit it; returns the fields of ``Closed``."""
        ...


class Transfer(Handler):
    """The common base: runs one step at a time on a thread, sends one final fact, and calls ``close`` after the last step.

    With an ``actor`` every step runs as that user.
    """

    def __init__(self, channel: Channel, work: Work, actor: Actor | None) -> None:
        self._channel = channel
        self._work = work
        self._actor = actor
        self._loop = asyncio.get_running_loop()
        self._busy = False
        self._ready = False
        self._over = False
        self._last: Closed | Failed | None = None
        self._step(work.open, self._opened)

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

    def _opened(self, info: dict[str, Any]) -> None:
        self._ready = True
        self._channel.send(Opened(self._channel.number, info))
        self._pump()

    def _end(self, fact: Closed | Failed) -> None:
        """Send the final fact; the work is closed already."""
        self._over = True
        self._channel.send(fact)

    def _abort(self, last: Closed | Failed | None) -> None:
        """Undo the work, then send ``last``: when the client reads it nothing of the transfer is left."""
        if self._over:
            return
        self._over, self._last = True, last
        if not self._busy:
            self._undo()

    def _undo(self) -> None:
        def undone(_: None, error: BaseException | None) -> None:
            if self._last is not None:
                self._channel.send(self._last)

        def undo() -> None:
            with self._acting():
                _quietly(self._work.close)

        _Job(self._loop, undo, undone).start()

    def _send_ahead(self, ahead: deque[bytes]) -> int:
        """Send pieces from the queue as far as there is room. Returns the number of bytes sent."""
        channel, sent_bytes = self._channel, 0
        while ahead and (room := channel.room()) > 0:
            chunk = ahead.popleft()
            if len(chunk) > room:
                ahead.appendleft(chunk[room:])
                chunk = chunk[:room]
            sent_bytes += len(chunk)
            channel.send(Output(channel.number, STDOUT, chunk))
        return sent_bytes

    def _acting(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._actor is None else self._actor.switched()

    def _step(self, work: Callable[[], _T], done: Callable[[_T], None]) -> None:
        def guarded() -> _T:
            with self._acting():
                try:
                    return work()
                except BaseException:
                    _quietly(self._work.close)
                    raise

        def stepped(result: _T | None, error: BaseException | None) -> None:
            self._busy = False
            if self._over:
                self._undo()
            elif error is not None:
                self._end(Failed(self._channel.number, _typed(error).to_map()))
            else:
                done(cast("_T", result))

        self._busy = True
        _Job(self._loop, guarded, stepped).start()


class Outgoing(Transfer):
    """Sends a source to the client."""

    def __init__(self, channel: Channel, source: Source, quota: ReadAheadQuota, actor: Actor | None = None) -> None:
        self._source = source
        self._chunks: Iterator[bytes] | None = None
        self._ahead: deque[bytes] = deque()
        self._ahead_bytes = 0
        self._quota = quota
        self._read_ahead = ByteCounter(quota.whole)
        self._result: dict[str, Any] | None = None
        super().__init__(channel, source, actor)

    def _pump(self) -> None:
        if self._over or not self._ready:
            return
        sent_bytes = self._send_ahead(self._ahead)
        self._ahead_bytes -= sent_bytes
        self._read_ahead.add(-sent_bytes)
        if self._result is not None:
            if not self._ahead:
                self._end(Closed(self._channel.number, self._result))
        elif not self._busy and self._may_read():
            wanted = DATA_BYTES if self._quota.is_exceeded else AHEAD_BYTES - self._ahead_bytes
            self._read_ahead.add(wanted)
            self._step(lambda: self._read(wanted), self._taken)

    def _may_read(self) -> bool:
        if self._channel.is_memory_full or self._ahead_bytes > AHEAD_BYTES // 2:
            return False
        if self._quota.is_exceeded and self._channel.room() <= 0:
            return False
        return self._quota.may_read(self)

    def _read(self, wanted: int) -> tuple[list[bytes], dict[str, Any] | None]:
        if self._chunks is None:
            self._chunks = self._source.chunks()
        taken: list[bytes] = []
        while wanted >= DATA_BYTES or not taken:
            chunk = next(self._chunks, None)
            if chunk is None:
                result = self._source.result()
                self._source.close()
                return taken, result
            if not chunk:
                break
            taken.append(chunk)
            wanted -= len(chunk)
        return taken, None

    def _taken(self, read: tuple[list[bytes], dict[str, Any] | None]) -> None:
        chunks, self._result = read
        self._ahead += chunks
        self._ahead_bytes += sum(map(len, chunks))
        self._read_ahead.add(self._ahead_bytes - self._read_ahead.held)
        self._quota.done(self)
        self._pump()

    def _end(self, fact: Closed | Failed) -> None:
        self._forget()
        super()._end(fact)

    def _abort(self, last: Closed | Failed | None) -> None:
        self._forget()
        super()._abort(last)

    def _forget(self) -> None:
        self._ahead.clear()
        self._ahead_bytes = 0
        self._read_ahead.clear()
        self._quota.forget(self)


class Incoming(Transfer):
    """Writes the client's input to a sink."""

    def __init__(self, channel: Channel, sink: Sink, actor: Actor | None = None) -> None:
        self._sink = sink
        self._waiting: list[bytes] = []
        self._eof = False
        self._finishing = False
        super().__init__(channel, sink, actor)

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
            self._step(self._finish, lambda result: self._end(Closed(self._channel.number, result)))

    def _feed(self, batch: list[bytes]) -> int:
        for data in batch:
            self._sink.feed(data)
        return sum(map(len, batch))

    def _finish(self) -> dict[str, Any]:
        result = self._sink.finish()
        self._sink.close()
        return result

    def _fed(self, size_bytes: int) -> None:
        self._channel.consume(size_bytes)
        self._pump()


class _Job(Generic[_T]):
    """One step on the thread pool. It runs exactly once and reports its outcome on the loop.

    While a fork bomb in the sandbox uses all pids no thread can be started. The pool raises then, but keeps the job in its queue, where a
    running thread may still take it. So the loop runs the job itself, and whichever is first takes the lock.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, work: Callable[[], _T], done: Callable[[_T | None, BaseException | None], None]
    ) -> None:
        self._loop = loop
        self._work = work
        self._done = done
        self._taken = threading.Lock()

    def start(self) -> None:
        """Queue it, or run it here if no thread can be started."""
        try:
            self._loop.run_in_executor(None, self)
        except RuntimeError:
            self()

    def __call__(self) -> None:
        if not self._taken.acquire(blocking=False):
            return
        result, problem = None, None
        try:
            result = self._work()
        except BaseException as error:  # noqa: BLE001  raised where it is awaited
            problem = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: the outcome is not needed any more
            self._loop.call_soon_threadsafe(self._done, result, problem)


def _typed(error: BaseException) -> HoldfastError:
    if isinstance(error, HoldfastError):
        return error
    log.error("a transfer failed", exc_info=error)
    return HoldfastError("internal", f"a transfer failed: {type(error).__name__}")


def _quietly(close: Callable[[], None]) -> None:
    try:
        close()
    except OSError as error:
        log.info("closing a transfer: %s", error.strerror)
