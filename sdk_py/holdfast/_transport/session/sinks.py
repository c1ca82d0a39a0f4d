"""The kinds of sinks: a command, a living shell, a transfer and a watch.

Pure: the engine calls ``fact``, ``writable`` and ``fail`` while it dispatches, callers read the state afterwards, and events notify them of
changes. No method waits, so the same code serves both APIs. The contents of facts are untrusted.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from holdfast_wire.errors import HoldfastError, ProtocolError
from holdfast_wire.frames import Close, Closed, Failed, Gap, Item, Opened, Output, Resize, Run
from holdfast_wire.limits import RUN_QUEUE
from holdfast_wire.session.client_session import ClientSession

from holdfast._errors import RemoteFileError, error, from_map
from holdfast._transport.session.command_call import SMALL_BYTES, Call
from holdfast._transport.session.failures import given_up
from holdfast._transport.session.sink import EventFactory, Sink

if TYPE_CHECKING:
    from holdfast._transport.session.engine import Engine


class CommandSink(Sink):
    """A channel with one command, of kind ``command``, ``follow`` or ``terminal``."""

    call: Call

    def fact(self, item: Item) -> None:
        call = self.call
        if isinstance(item, Failed):
            call.finish(self.refusal(item.error, command_id=call.command_id))
        else:
            call.fact(item)
        if call.done:
            self.end(call.error)

    def end(self, why: HoldfastError | None) -> None:
        super().end(why)
        # A reference cycle would keep the output until the next full garbage collection, which the size of the output does not trigger.
        del self.call

    def fail(self, why: HoldfastError, *, gave_up: bool) -> None:
        call = self.call
        call.transmitted |= self.transmitted
        if gave_up and call.started_event is not None and call.started:
            name = call.info.get("name")
            again = f"sandbox.terminal(name={name!r})" if isinstance(name, str) else f"sandbox.follow({call.command_id!r})"
            call.finish(given_up(why, f"command {call.command_id}", again, call.facts()))
        else:
            call.lose(why)
        self.end(call.error or why)

    def cancel(self, call: Call) -> None:
        """Cancel its command."""
        if self.number:
            self.send(Close(self.number, False))
        else:
            call.finish(_unsent(call))


def new_command(engine: Engine, command_id: str, limit: int, *, collecting: bool = True) -> Call:
    """A command that ``open_command`` will send.

    The caller has this object before the command is sent, and so can cancel it at any time.
    """
    sink = CommandSink(engine.session, engine.new_event)
    sink.call = call = engine.new_call(sink, command_id, limit, collecting=collecting)
    return call


def open_command(engine: Engine, call: Call, kind: str, params: dict[str, Any], input_: bytes | None = None) -> None:
    """Open a ``command``, ``follow`` or ``terminal`` channel; ``input_`` is the whole standard input."""
    call.limit_s = params.get("timeout_s")
    call.adopts_id = kind == "terminal" and "name" in params
    engine.open(kind, params, call.sink)
    if input_ is not None:
        call.sink.queue(input_, eof=True)


class ShellSink(Sink):
    """A living shell. Its commands run one after the other. They are queued on the client, so that a signal reaches the right command."""

    has_commands = True

    def __init__(self, session: ClientSession, new_event: EventFactory) -> None:
        super().__init__(session, new_event)
        self.info: dict[str, Any] | None = None
        self.current: Call | None = None
        self.shared = False
        """Whether other clients may run commands in it."""
        self.waiting: deque[Call] = deque()

    def run(self, call: Call) -> None:
        """Queue ``call``. Raises ``HoldfastError`` if the shell has ended or too many commands are queued."""
        if self.ended:
            raise self.over()
        if len(self.waiting) >= RUN_QUEUE:
            raise error("queue_full", f"{RUN_QUEUE} commands already wait in this shell")
        if self.current is None:
            self._start(call)
        else:
            self.waiting.append(call)

    def cancel(self, call: Call) -> None:
        """Interrupt the running command, or remove a queued command that was not sent yet."""
        if call is self.current:
            call.signal("INT")
            if not call.started:
                call.abandoned = "INT"  # it may be queued behind another client's command, where no signal reaches it yet
            return
        if call in self.waiting:
            self.waiting.remove(call)
        call.finish(_unsent(call))

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of the shell's terminal."""
        self.send(Resize(self.number, rows, columns))

    def over(self) -> HoldfastError:
        """Why the shell accepts no more commands."""
        why = self.error
        if why is None:
            return error("shell_lost", "the shell is closed", fault="caller", retryable=False)
        return from_map(why.to_map())

    def _start(self, call: Call) -> None:
        self.session.send(Run(self.number, call.command_id, call.params))
        self.current = call
        call.transmitted = self.session.attached
        self.transmitted = self.transmitted and call.transmitted

    def fact(self, item: Item) -> None:
        call = self.current
        if isinstance(item, Opened):
            self.info = item.info
            self.changed.set()
        elif isinstance(item, (Closed, Failed)):
            why = self.refusal(item.error) if isinstance(item, Failed) else None
            self.end(why)
            self._drop(why or error("shell_lost", "the shell was closed while the command was under way"))
        elif call is None:
            raise ProtocolError(f"the agent sent {type(item).__name__} while no command ran")
        else:
            if not call.started and isinstance(item, (Output, Gap)):
                call.begun()
            call.fact(item)
            if call.done:
                self.current = None
                self._queued.clear()  # the rest of its input
                if self.waiting:
                    self._start(self.waiting.popleft())

    def fail(self, why: HoldfastError, *, gave_up: bool) -> None:
        if self.current is not None and self.transmitted:
            self.current.transmitted = True
        name = (self.info or {}).get("name")
        if gave_up and isinstance(name, str):
            why = given_up(why, "the shell", f"sandbox.shell({name!r})", {})
        self.end(why)
        self._drop(why)

    def _drop(self, why: HoldfastError) -> None:
        calls = [*([self.current] if self.current else []), *self.waiting]
        self.current = None
        self.waiting.clear()
        for call in calls:
            call.lose(why)


def _unsent(call: Call) -> HoldfastError:
    return error("cancelled", "the command was cancelled before it was sent", detail=call.facts())


class TransferSink(Sink):
    """A file, archive, patch or tunnel channel: opened, bytes both ways, closed with a result."""

    path: Any = None
    """The path of the file, for error messages."""

    def __init__(self, session: ClientSession, new_event: EventFactory) -> None:
        super().__init__(session, new_event)
        self.opened: dict[str, Any] | None = None
        self.closed: dict[str, Any] | None = None
        self.chunks: deque[bytes] = deque()
        self.half_closed = False

    def fact(self, item: Item) -> None:
        if isinstance(item, Output):
            if data := item.data:
                if self.chunks and len(data) + len(self.chunks[-1]) <= SMALL_BYTES:
                    data = self.chunks.pop() + data
                self.chunks.append(data)
            else:
                self.half_closed = True
            self.changed.set()
        elif isinstance(item, Opened):
            self.opened = item.info
            self.changed.set()
            self.space.set()
        elif isinstance(item, Closed):
            self.closed = item.result
            self.end(None)
        elif isinstance(item, Failed):
            self.end(self.refusal(item.error))
        else:
            raise ProtocolError(f"the agent sent {type(item).__name__} on a transfer")

    def take(self) -> bytes | None:
        """Received bytes, whose credit is returned now; b"" at the end.

        None if there are none yet: then ``changed`` is set with the next.
        """
        if self.chunks:
            data = self.chunks.popleft()
            self.session.consume(self.number, len(data))
            return data
        if self.half_closed or self.ended:
            return b""
        self.changed.clear()
        return None

    def stop(self) -> None:
        """End the transfer: its content is no longer needed."""
        self.chunks.clear()
        self.close(False)

    def discard_unread(self) -> None:
        """Drop the unread bytes and return their credit; ``changed`` is set with the next fact."""
        while self.chunks:
            self.session.consume(self.number, len(self.chunks.popleft()))
        if not self.ended:
            self.changed.clear()

    def fail(self, why: HoldfastError, *, gave_up: bool) -> None:
        self.end(from_map(why.to_map()))

    def end(self, why: HoldfastError | None) -> None:
        if isinstance(why, RemoteFileError) and why.filename is None:
            why.filename = self.path
        super().end(why)


class WatchSink(TransferSink):
    """Events of files. If the session is given up, its events are lost and cannot be requested again."""

    def fail(self, why: HoldfastError, *, gave_up: bool) -> None:
        if gave_up:
            why = given_up(why, f"the watch of {self.path}", "sandbox.files.watch(), after looking at what has changed,", {})
        super().fail(why, gave_up=gave_up)
