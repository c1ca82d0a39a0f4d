"""Where the facts of a channel go: one command's outcome, a living shell, or a transfer.

Pure: the engine calls ``fact``, ``writable`` and ``fail`` while it dispatches, callers read the state afterwards, and gates tell
them when to look. Nothing here waits, so the same code serves both faces. Whatever a fact holds is attacker input.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from holdfast_wire.errors import HoldfastError, ProtocolError
from holdfast_wire.frames import Closed, Exited, Failed, Gap, Item, Opened, Output, Run, Signal, Started, Write
from holdfast_wire.limits import DATA_BYTES, RUN_QUEUE, WINDOW_BYTES
from holdfast_wire.session import ClientSession

from holdfast._errors import error, from_map, typed
from holdfast._results import STDERR, STDOUT, Chunk, CommandResult, read_cause, read_streams, take

GONE = frozenset({"sandbox_gone", "sandbox_lost", "sandbox_failed", "sandbox_not_found"})
_PASSED_ON = frozenset({"session_fenced", "session_forbidden", "key_invalid", "key_missing"})


class AnyGate(Protocol):
    """What both faces' gates have in common: a flag that wakes who waits for it."""

    def set(self) -> None: ...
    def clear(self) -> None: ...


GateFactory = Callable[[], AnyGate]


class Sink:
    """One channel's end in this process. ``gate`` opens on news, ``space`` when bytes may be written again."""

    def __init__(self, session: ClientSession, gates: GateFactory) -> None:
        self.session = session
        self.number = 0
        self.gate = gates()
        self.space = gates()
        self.handed = False
        self.ended = False
        self.error: HoldfastError | None = None

    def fact(self, item: Item) -> None:
        """A fact came. Raises ``ProtocolError`` when it makes no sense."""
        raise NotImplementedError

    def writable(self) -> None:
        """Credit came back."""
        self.space.set()

    def fail(self, why: HoldfastError) -> None:
        """The session is over; no fact follows."""
        self.end(why)

    def end(self, why: HoldfastError | None) -> None:
        """Nothing more comes."""
        self.ended = True
        if self.error is None:
            self.error = why
        self.gate.set()
        self.space.set()

    def write(self, data: memoryview, eof: bool) -> int:
        """Send as much of ``data`` as there is credit for, and ``eof`` after all of it. Returns the bytes taken, -1 at the end."""
        if self.ended:
            return -1
        sent, size = 0, len(data)
        while sent < size:
            room = min(self.session.room(self.number), DATA_BYTES, size - sent)
            if room <= 0:
                return sent
            piece = bytes(data[sent : sent + room])
            sent += room
            self.session.send(Write(self.number, piece, eof and sent == size))
        if eof and size == 0:
            self.session.send(Write(self.number, b"", True))
        return sent

    def send(self, item: Any) -> None:
        """Send an imperative, unless the channel is over: then there is nobody left to tell."""
        if not self.ended:
            self.session.send(item)


class Call:
    """One command from its request to its outcome.

    While ``collecting``, output goes into the result and its credit back at once. Otherwise it waits in ``chunks`` (at most one
    window) until somebody takes it, and the process in the sandbox waits with it.
    """

    __slots__ = (
        "_eof",
        "_input",
        "_kept",
        "_sizes",
        "abandoned",
        "adopts_id",
        "chunks",
        "collecting",
        "command_id",
        "done",
        "dropped",
        "error",
        "exit",
        "gate",
        "handed",
        "info",
        "limit",
        "params",
        "received",
        "sink",
        "started",
        "started_gate",
    )

    def __init__(self, sink: Sink, gates: GateFactory, command_id: str, limit: int, *, collecting: bool) -> None:
        self.sink = sink
        self.command_id = command_id
        self.params: dict[str, Any] = {}
        self.limit = limit
        self.collecting = collecting
        self.abandoned = False
        self.adopts_id = False
        """Whether the command may be one that runs already, under the id it began with."""
        self.gate = gates()
        self.started_gate = gates()
        self.handed = False
        self.started = False
        self.info: dict[str, Any] = {}
        self.done = False
        self.exit: dict[str, Any] | None = None
        self.error: HoldfastError | None = None
        self.chunks: deque[Chunk] = deque()
        self.received = {STDOUT: 0, STDERR: 0}
        self.dropped = 0
        self._kept: dict[int, list[bytes]] = {STDOUT: [], STDERR: []}
        self._sizes = {STDOUT: 0, STDERR: 0}
        self._input: memoryview | None = None
        self._eof = False

    # Facts ------------------------------------------------------------------------------------------------------

    def on_started(self, item: Started) -> None:
        if self.adopts_id:
            self.command_id = item.command_id
        if item.command_id != self.command_id:
            raise ProtocolError("the agent started a command that was not asked for")
        self.started = True
        self.info = item.info
        self.started_gate.set()
        if self.abandoned:
            self.sink.send(Signal(self.sink.number, "KILL"))
        self.pump()

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
        else:
            self.chunks.append(Chunk(stream, data))
            self.gate.set()

    def on_gap(self, item: Gap) -> None:
        self.dropped += item.dropped

    def on_exited(self, item: Exited) -> None:
        if item.command_id != self.command_id:
            raise ProtocolError("the agent ended a command that was not asked for")
        self.exit = item.result
        self.finish(None)

    def finish(self, why: HoldfastError | None) -> None:
        """The end, one way or the other."""
        if self.done:
            return
        self.done = True
        self.error = why
        self._input = None
        self.started_gate.set()
        self.gate.set()

    def lose(self, why: HoldfastError) -> None:
        """The session ended before the outcome came: say what is known, and guess nothing."""
        self.finish(lost_command(why, self.command_id, self.facts()))

    def facts(self) -> dict[str, Any]:
        """What is known of a command whose outcome is not."""
        unknown = None if self.handed else False
        started = True if self.started else unknown
        return {"command_id": self.command_id, "accepted": started, "started": started, "received": dict(self.received)}

    # Output -----------------------------------------------------------------------------------------------------

    def take(self) -> Chunk | None:
        """The next live chunk; its credit goes back now. It is kept for the result too, up to the limit."""
        if not self.chunks:
            return None
        chunk = self.chunks.popleft()
        self._keep(chunk.stream, chunk.data)
        self.sink.session.consume(self.sink.number, len(chunk.data))
        return chunk

    def collect(self) -> None:
        """Nobody takes chunks any more: from now on output goes into the result only."""
        while self.take() is not None:
            pass
        self.collecting = True

    def discard(self) -> None:
        """Nobody wants the output: drop it, so that what runs can end."""
        self.limit = 0
        self.collect()

    def _keep(self, stream: int, data: bytes) -> None:
        free = self.limit - self._sizes[stream]
        if free <= 0:
            return
        kept = data if len(data) <= free else data[:free]
        self._sizes[stream] += len(kept)
        self._kept[stream].append(kept)

    # Input ------------------------------------------------------------------------------------------------------

    def give(self, data: bytes) -> None:
        """Standard input, all of it: sent as credit allows, then ended."""
        self._input = memoryview(data)
        self._eof = True

    def pump(self) -> None:
        """Send what input there is credit for."""
        if self._input is None or self.done:
            return
        sent = self.sink.write(self._input, self._eof)
        if sent < 0 or sent == len(self._input):
            self._input = None
        else:
            self._input = self._input[sent:]

    # Outcome ----------------------------------------------------------------------------------------------------

    def result(self) -> CommandResult:
        """The outcome. Raises the typed error when there is none, ``ProtocolError`` when the agent's account does not add up."""
        if self.error is not None:
            raise self.error
        if self.exit is None:
            raise RuntimeError("the command has not ended yet")
        if "error" in self.exit:  # refused before it ran, or its outcome could not be known (PROTOCOL §7.4)
            raise from_map(self.exit["error"], **self.facts())
        exit_, stdout, stderr = self.exit, self._kept[STDOUT], self._kept[STDERR]
        streams = read_streams(exit_.get("streams"))
        for stream, count in streams.items():
            if count.seen - count.dropped != self.received[stream]:
                raise ProtocolError(
                    f"the agent counted {count.seen - count.dropped} bytes of stream {stream}, {self.received[stream]} arrived"
                )
        shell = take(exit_, "shell", dict, default={})
        over = self._sizes[STDOUT] < self.received[STDOUT] or self._sizes[STDERR] < self.received[STDERR]
        return CommandResult(
            exit_code=take(exit_, "exit_code", int),
            stdout_bytes=stdout[0] if len(stdout) == 1 else b"".join(stdout),
            stderr_bytes=stderr[0] if len(stderr) == 1 else b"".join(stderr),
            duration_s=float(take(exit_, "duration_s", int, float, default=0.0)),
            command_id=self.command_id,
            timed_out=take(exit_, "timed_out", bool, default=False),
            truncated=over or self.dropped > 0 or take(exit_, "truncated", bool, default=False),
            signal=take(exit_, "signal", str),
            cause=read_cause(exit_.get("cause")),
            streams=streams,
            shell_restarted=take(shell, "restarted", bool, default=False),
            cwd=take(shell, "cwd", str),
        )


def lost_command(why: HoldfastError, command_id: str, facts: dict[str, Any]) -> HoldfastError:
    """The error of a command whose session ended with ``why``."""
    if why.code in GONE:
        message = f"the sandbox was lost while command {command_id} was under way: {why.message}"
        return error("sandbox_gone", message, reason=why.reason or "unknown", fault=why.fault, detail={**why.detail, **facts})
    if facts["started"] is False or why.code in _PASSED_ON or why.reason == "closed":
        return typed(why, **facts)
    message = f"the outcome of command {command_id} cannot be known: {why.message}"
    return error("outcome_unknown", message, reason=why.reason or why.code, fault=why.fault, detail=facts)


class CommandSink(Sink):
    """A channel that is one command: ``command``, ``follow`` and ``terminal``."""

    call: Call

    def fact(self, item: Item) -> None:
        kind = type(item)
        if kind is Output:
            self.call.on_output(item)  # type: ignore[arg-type]
        elif kind is Started:
            self.call.on_started(item)  # type: ignore[arg-type]
        elif kind is Exited:
            self.end(None)
            self.call.on_exited(item)  # type: ignore[arg-type]
        elif kind is Gap:
            self.call.on_gap(item)  # type: ignore[arg-type]
        elif kind is Failed:
            why = from_map(item.error, command_id=self.call.command_id)  # type: ignore[attr-defined]
            self.end(why)
            self.call.finish(why)

    def writable(self) -> None:
        self.call.pump()
        self.space.set()

    def fail(self, why: HoldfastError) -> None:
        if self.handed:
            self.call.handed = True
        self.call.lose(why)
        self.end(self.call.error or why)


class ShellSink(Sink):
    """A living shell. Its commands run one after the other; those that wait, wait here, so that a signal meets the right one."""

    def __init__(self, session: ClientSession, gates: GateFactory) -> None:
        super().__init__(session, gates)
        self.info: dict[str, Any] | None = None
        self.current: Call | None = None
        self.waiting: deque[Call] = deque()

    def run(self, call: Call) -> None:
        """Run ``call`` after those before it. Raises ``HoldfastError`` when the shell is over or too many wait."""
        if self.ended:
            raise self.over()
        if len(self.waiting) >= RUN_QUEUE:
            raise error("queue_full", f"{RUN_QUEUE} commands wait in this shell")
        if self.current is None:
            self._start(call)
        else:
            self.waiting.append(call)

    def withdraw(self, call: Call) -> bool:
        """Take back a command that still waits here; False when it is already with the agent."""
        if call not in self.waiting:
            return False
        self.waiting.remove(call)
        call.finish(error("cancelled", "the command was cancelled before it started", detail=call.facts()))
        return True

    def over(self) -> HoldfastError:
        """Why the shell takes no more commands."""
        why = self.error
        if why is None:
            return error("shell_lost", "the shell is closed", fault="caller", retryable=False)
        return from_map(why.to_map())

    def _start(self, call: Call) -> None:
        self.session.send(Run(self.number, call.command_id, call.params))
        self.current = call
        call.handed = self.session.attached
        self.handed = self.handed and call.handed

    def fact(self, item: Item) -> None:
        kind, call = type(item), self.current
        if kind is Opened:
            self.info = item.info  # type: ignore[attr-defined]
            self.gate.set()
        elif kind is Closed or kind is Failed:
            why = None if kind is Closed else from_map(item.error)  # type: ignore[attr-defined]
            self.end(why)
            self._drop(why or error("shell_lost", "the shell was closed while the command was under way"))
        elif call is None:
            raise ProtocolError(f"the agent sent {kind.__name__} while no command ran")
        elif kind is Output:
            call.on_output(item)  # type: ignore[arg-type]
        elif kind is Started:
            call.on_started(item)  # type: ignore[arg-type]
        elif kind is Gap:
            call.on_gap(item)  # type: ignore[arg-type]
        elif kind is Exited:
            self.current = None
            call.on_exited(item)  # type: ignore[arg-type]
            if self.waiting:
                self._start(self.waiting.popleft())

    def writable(self) -> None:
        if self.current is not None and self.current.started:
            self.current.pump()
        self.space.set()

    def fail(self, why: HoldfastError) -> None:
        if self.current is not None and self.handed:
            self.current.handed = True
        self.end(why)
        self._drop(why)

    def _drop(self, why: HoldfastError) -> None:
        calls = [*([self.current] if self.current else []), *self.waiting]
        self.current = None
        self.waiting.clear()
        for call in calls:
            call.lose(why)


class TransferSink(Sink):
    """A file, archive, patch or tunnel channel: opened, bytes both ways, closed with a result."""

    def __init__(self, session: ClientSession, gates: GateFactory) -> None:
        super().__init__(session, gates)
        self.opened: dict[str, Any] | None = None
        self.closed: dict[str, Any] | None = None
        self.chunks: deque[bytes] = deque()
        self.half_closed = False
        self.received = 0

    def fact(self, item: Item) -> None:
        kind = type(item)
        if kind is Output:
            data = item.data  # type: ignore[attr-defined]
            self.received += len(data)
            if data:
                self.chunks.append(data)
            else:
                self.half_closed = True
            self.gate.set()
        elif kind is Opened:
            self.opened = item.info  # type: ignore[attr-defined]
            self.gate.set()
            self.space.set()
        elif kind is Closed:
            self.closed = item.result  # type: ignore[attr-defined]
            self.end(None)
        elif kind is Failed:
            self.end(from_map(item.error))  # type: ignore[attr-defined]
        else:
            raise ProtocolError(f"the agent sent {kind.__name__} on a transfer")

    def take(self) -> bytes:
        """Bytes that have come, b"" when there are none yet; their credit goes back now."""
        if not self.chunks:
            return b""
        data = self.chunks.popleft()
        self.session.consume(self.number, len(data))
        return data

    def fail(self, why: HoldfastError) -> None:
        self.end(from_map(why.to_map()))


assert DATA_BYTES <= WINDOW_BYTES
