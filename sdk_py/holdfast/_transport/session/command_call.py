"""One command from its request to its outcome: start, output, exit, and what is known if the outcome never arrives.

Pure. ``sinks`` passes the channel's messages to it; their contents are untrusted.
"""

from __future__ import annotations

import codecs
from collections import deque
from typing import TYPE_CHECKING, Any

from holdfast_wire.errors import HoldfastError, ProtocolError
from holdfast_wire.frames import Exited, Gap, Item, Output, Resize, Signal, Started

from holdfast._errors import error
from holdfast._results import STDERR, STDOUT, Chunk, CommandResult, FieldReader, decoded_chunk, read_cause, read_not_executed, read_streams
from holdfast._transport.session.failures import lost_command

if TYPE_CHECKING:
    from holdfast._transport.session.sink import EventFactory, Sink

SMALL_BYTES = 4096
"""Unread pieces are merged up to this size: a separate object for a few bytes would take ten times as much memory."""
_UTF8 = codecs.getincrementaldecoder("utf-8")
_EXIT = FieldReader(
    (
        ("exit_code", (int,), None),
        ("duration_s", (int, float), 0.0),
        ("timed_out", (bool,), False),
        ("signal", (str,), None),
        ("shell", (dict,), None),
        ("late", (bool,), False),
        ("not_executed", (str,), None),
    )
)
_SHELL = FieldReader((("restarted", (bool,), False), ("cwd", (str,), None), ("lost", (list,), ())))


class Call:
    """One command from its request to its outcome.

    While ``collecting``, output is added to the result and its credit is returned at once. Otherwise it stays in ``chunks`` (at most one
    window) until the caller takes it, and the process in the sandbox blocks on it.
    """

    limit_s: float | None = None
    """The time after which the agent ends it."""
    refused: HoldfastError | None = None
    """The error that its Exited carries instead of a result."""

    def __init__(self, sink: Sink, command_id: str, limit: int, *, new_event: EventFactory, collecting: bool) -> None:
        self.sink = sink
        self.command_id = command_id
        self.params: dict[str, Any] = {}
        keep = getattr(limit, "keep", "head")  # see ``Bound``
        self._tail = {"head": 0, "tail": int(limit), "both": limit // 2}[keep]
        self.limit = limit - self._tail
        self.collecting = collecting
        self.abandoned = ""
        """The signal that is sent as soon as the command starts, because its result is no longer wanted; None otherwise."""
        self.adopts_id = False
        """Whether the command may be running already, because an earlier request used the same id."""
        self.changed = new_event()
        self.started_event: Any = None if collecting else new_event()
        self.transmitted = False
        self.started = False
        self.info: dict[str, Any] = {}
        self.done = False
        self.exit: dict[str, Any] | None = None
        self.error: HoldfastError | None = None
        self.chunks: deque[Chunk] = deque()
        self._unfinished: dict[int, bytes] = {}
        """By stream: the first bytes of a character whose others have not been taken yet."""
        self.received = {STDOUT: 0, STDERR: 0}
        self.dropped = {STDOUT: 0, STDERR: 0}
        self._kept: dict[int, list[bytes]] = {STDOUT: [], STDERR: []}
        self._sizes = {STDOUT: 0, STDERR: 0}
        self._tails: dict[int, tuple[deque[bytes], int]] = {STDOUT: (deque(), 0), STDERR: (deque(), 0)} if self._tail else {}
        self.input: bytes | None = None
        """All of the standard input of a command in a shell, which is sent when it has started."""

    @property
    def replayed(self) -> bool:
        """Whether it is a terminal that existed before: its output begins with a replay of the screen, not with its first byte."""
        return self.adopts_id and self.info.get("created") is False

    # Facts ------------------------------------------------------------------------------------------------------

    def fact(self, item: Item) -> None:
        """Handle a fact about the command. Raises ``ProtocolError`` if it is illegal in this state."""
        if isinstance(item, Output):
            self.on_output(item)
        elif isinstance(item, Exited):
            self.on_exited(item)
        elif isinstance(item, Started):
            self.on_started(item)
        elif isinstance(item, Gap):
            self.on_gap(item)

    def on_started(self, item: Started) -> None:
        if self.adopts_id:
            self.command_id = item.command_id
        if item.command_id != self.command_id:
            raise ProtocolError("the agent started a command that was not asked for")
        self.info = item.info
        self.begun()

    def begun(self) -> None:
        """The command has started: reported by Started or, in a shell, by the message that replaces it (PROTOCOL §7.2)."""
        self.started = True
        if self.started_event is not None:
            self.started_event.set()
        if self.abandoned:
            self.sink.send(Signal(self.sink.number, self.abandoned))
        if self.input is not None:
            self.sink.queue(self.input, eof=True)
            self.input = None

    def on_output(self, item: Output) -> None:
        stream, data = item.stream, item.data
        if stream not in self.received:
            raise ProtocolError("the agent answered an unknown output stream")
        if not data:
            return
        size = len(data)
        self.received[stream] += size
        if self.collecting:
            self._keep(stream, data)
            self.sink.session.consume(self.sink.number, size)
            return
        chunks = self.chunks
        if size <= SMALL_BYTES and chunks and chunks[-1].stream == stream and len(chunks[-1].data) <= SMALL_BYTES:
            chunks[-1] = Chunk(stream, chunks[-1].data + data)  # not taken yet: merge it with the next output
        else:
            chunks.append(Chunk(stream, data))
        self.changed.set()

    def on_gap(self, item: Gap) -> None:
        if item.stream not in self.dropped:
            raise ProtocolError("the agent answered an unknown output stream")
        self.dropped[item.stream] += item.dropped

    def on_exited(self, item: Exited) -> None:
        if item.command_id != self.command_id:
            raise ProtocolError("the agent ended a command that was not asked for")
        self.exit = item.result
        if "error" in item.result:  # refused before it ran, or its outcome is not known (PROTOCOL §7.4)
            self.refused = self.sink.refusal(item.result["error"], **self.facts())
        self.finish(None)

    def finish(self, why: HoldfastError | None) -> None:
        """Record the outcome: a result or an error."""
        if self.done:
            return
        self.done = True
        self.error = why
        self.input = None
        if self.started_event is not None:
            self.started_event.set()
        self.changed.set()

    def lose(self, why: HoldfastError) -> None:
        """The session ended before the outcome arrived: record an error with what is known."""
        self.finish(lost_command(why, self.command_id, self.facts()))

    def facts(self) -> dict[str, Any]:
        """What is known about a command without an outcome."""
        unknown = None if self.transmitted else False
        started = True if self.started else unknown
        return {"command_id": self.command_id, "accepted": started, "started": started, "received": dict(self.received)}

    # Output -----------------------------------------------------------------------------------------------------

    def take(self) -> Chunk | None:
        """The next chunk of live output; its credit is returned now.

        It is also added to the result, up to the limit. None if there is none yet: then ``changed`` is set with the next chunk, or at the
        end, after which it stays set.
        """
        if not self.chunks:
            if not self.done:
                self.changed.clear()
            return None
        chunk = self.chunks.popleft()
        self._keep(chunk.stream, chunk.data)
        self.sink.session.consume(self.sink.number, len(chunk.data))
        return self._decode(chunk)

    def _decode(self, chunk: Chunk) -> Chunk:
        """``chunk`` with a ``text`` that neither splits a character nor loses one, except at the end of the output."""
        before = self._unfinished.pop(chunk.stream, b"")
        if not before and chunk.data[-1] < 0x80:
            return chunk
        decoder = _UTF8("replace")
        text = decoder.decode(before + chunk.data)
        last = not self.chunks and self.done
        self._unfinished[chunk.stream] = b"" if last else decoder.getstate()[0]
        return decoded_chunk(chunk, text + decoder.decode(b"", final=True) if last else text)

    def collect(self) -> None:
        """Stop taking chunks: from now on output is only added to the result."""
        while self.take() is not None:
            pass
        self.collecting = True

    def discard(self) -> None:
        """Drop the output, so that the command does not block on it."""
        self.limit = self._tail = 0
        self.collect()

    def _keep(self, stream: int, data: bytes) -> None:
        free = self.limit - self._sizes[stream]
        if free > 0:
            kept = data if len(data) <= free else data[:free]
            self._sizes[stream] += len(kept)
            pieces = self._kept[stream]
            if len(kept) <= SMALL_BYTES and pieces and len(pieces[-1]) <= SMALL_BYTES:
                pieces[-1] += kept  # a separate piece for a few bytes would take ten times as much memory
            else:
                pieces.append(kept)
            if len(kept) == len(data):
                return
            data = data[free:]
        if self._tail:
            self._keep_tail(stream, data[-self._tail :])

    def _keep_tail(self, stream: int, data: bytes) -> None:
        pieces, size = self._tails[stream]
        size += len(data)
        if len(data) <= SMALL_BYTES and pieces and len(pieces[-1]) <= SMALL_BYTES:
            pieces[-1] += data
        else:
            pieces.append(data)
        while size - len(pieces[0]) >= self._tail:
            size -= len(pieces.popleft())
        self._tails[stream] = pieces, size

    def _output(self, stream: int) -> bytes:
        """The kept part of a stream."""
        pieces = self._kept[stream]
        if self._tail and (tail := self._tails[stream][0]):
            size = self._tails[stream][1]
            return b"".join(pieces) + b"".join(tail)[max(size - self._tail, 0) :]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    # Requests ---------------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Kill the command and all processes that it started; its output is no longer wanted."""
        self.discard()
        if not self.done:
            self.sink.cancel(self)

    def kill(self) -> None:
        """Kill a command of a shell that ``cancel`` did not end; if it has not started yet, as soon as it starts."""
        if self.started and not self.done:
            self.signal("KILL")
        else:
            self.abandoned = "KILL"

    def signal(self, name: str) -> None:
        """Send a signal to the command. Does nothing if it has ended."""
        if not self.done:
            self.sink.send(Signal(self.sink.number, name))

    def resize(self, rows: int, columns: int) -> None:
        """Set a terminal's size. Does nothing if it has ended."""
        if not self.done:
            self.sink.send(Resize(self.sink.number, rows, columns))

    # Outcome ----------------------------------------------------------------------------------------------------

    def result(self) -> CommandResult:
        """The result. Raises the typed error if there is none, and ``ProtocolError`` if the agent's byte counts are inconsistent."""
        if self.error is not None:
            raise self.error
        if self.exit is None:
            raise RuntimeError("the command has not ended yet")
        if self.refused is not None:
            raise self.refused
        exit_, received, dropped = self.exit, self.received, self.dropped
        stdout, stderr = self._output(STDOUT), self._output(STDERR)
        streams = read_streams(exit_.get("streams"), dropped)
        for stream, count in streams.items():
            if count.seen != received[stream] + dropped[stream] and not self.replayed:
                known = received[stream] + dropped[stream]
                raise ProtocolError(f"the agent counted {count.seen} bytes of stream {stream}, {known} arrived or were reported lost")
        cause = exit_.get("cause")
        exit_code, duration_s, timed_out, signal, shell, late, not_executed = _EXIT.read(exit_)
        restarted, cwd, lost = (False, None, ()) if shell is None else _SHELL.read(shell)
        if lost and not {*map(type, lost)} <= {str}:
            raise ProtocolError("the agent answered malformed names of what a shell has lost")
        if exit_code is None:  # no process ran
            why = read_cause(cause)
            message = (why and why.message) or "the command ended before a process of it ran"
            raise error("cancelled", message, reason=why.reason if why else None, detail={**self.facts(), "started": False})
        return CommandResult(
            exit_code=exit_code,
            stdout_bytes=stdout,
            stderr_bytes=stderr,
            duration_s=float(duration_s),
            command_id=self.command_id,
            timed_out=timed_out,
            truncated={STDOUT: len(stdout), STDERR: len(stderr)} != received or any(dropped.values()),
            late=late,
            not_executed=read_not_executed(not_executed),
            signal=signal,
            cause=None if cause is None else read_cause(cause, by_agent=True),
            streams=streams,
            shell_restarted=restarted,
            cwd=cwd,
            lost=tuple(lost),
        )
