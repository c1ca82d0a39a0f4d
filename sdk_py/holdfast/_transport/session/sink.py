"""The client's end of one channel, of any kind: its events, its parameters and its input.

Pure: the engine calls ``fact``, ``writable`` and ``fail`` while it dispatches. ``sinks`` defines what each kind of channel does with facts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import Accepted, Close, Item, Write
from holdfast_wire.limits import DATA_BYTES
from holdfast_wire.session.client_session import ClientSession

from holdfast._errors import from_agent, typed


class AnyEvent(Protocol):
    """The common interface of the events of both APIs: setting one wakes its waiters. ``wait`` blocks, or returns an awaitable."""

    def set(self) -> None: ...
    def clear(self) -> None: ...
    def wait(self, timeout_s: float | None = None) -> Any: ...


EventFactory = Callable[[], AnyEvent]


class Sink:
    """The client's end of one channel. ``changed`` is set when its state has changed, ``space`` when bytes may be written again."""

    has_commands = False
    """Whether the channel stays open after a command of it has ended."""

    def __init__(self, session: ClientSession, new_event: EventFactory) -> None:
        self.session = session
        self.number = 0
        self.changed = new_event()
        self.space = new_event()
        self.transmitted = False
        self.ended = False
        self.error: HoldfastError | None = None
        self.verdict: HoldfastError | None = None
        """What the service's record says about the end that the agent reports, while that report is handled."""
        self._queued: deque[tuple[memoryview, bool]] = deque()
        """At most parameters that did not fit the Open, and all of a command's input behind them."""

    def queue(self, data: bytes, *, eof: bool) -> None:
        """Send ``data`` as credit allows, and its end with ``eof``; what ``write`` gets afterwards follows."""
        self._queued.append((memoryview(data), eof))
        self._pump()

    def _pump(self) -> bool:
        """Send on what is queued; whether all of it is sent."""
        while self._queued:
            data, eof = self._queued[0]
            sent = self._send(data, eof)
            if sent < len(data):
                self._queued[0] = data[sent:], eof
                return False
            self._queued.popleft()
        return True

    def fact(self, item: Item) -> None:
        """Handle a fact. Raises ``ProtocolError`` if it is illegal in this state."""
        raise NotImplementedError

    def refusal(self, body: Any, **facts: Any) -> HoldfastError:
        """The exception for an agent's error map: the record's where it confirms the end that the agent reports, else what an agent may
        claim."""
        if self.verdict is None:
            return from_agent(body, **facts)
        return typed(self.verdict, **{**from_agent(body).detail, **facts})

    def accepted(self, item: Accepted) -> Sink:
        """The sink of a connection to this channel, a listener."""
        raise NotImplementedError

    def cancel(self, call: Any) -> None:
        """Cancel ``call``, a command of this channel."""
        raise NotImplementedError

    def writable(self) -> None:
        """Credit came back."""
        self._pump()
        self.space.set()

    def fail(self, why: HoldfastError, *, gave_up: bool) -> None:
        """The session is over; no fact follows. ``gave_up``: its commands continue to run, and another session may reach them."""
        self.end(why)

    def end(self, why: HoldfastError | None) -> None:
        """The channel has ended; no fact follows."""
        self.ended = True
        self._queued.clear()
        if self.error is None:
            self.error = why
        self.changed.set()
        self.space.set()

    def write(self, data: memoryview, eof: bool) -> int:
        """Send as much of ``data`` as there is credit for, and with ``eof`` the end after all of it. Returns the number of bytes sent, or
        -1 if the channel has ended."""
        if self.ended:
            return -1
        if not self._pump():
            self.space.clear()
            return 0
        return self._send(data, eof)

    def _send(self, data: memoryview, eof: bool) -> int:
        sent, size = 0, len(data)
        while sent < size:
            room = min(self.session.room(self.number), DATA_BYTES, size - sent)
            if room <= 0:
                self.space.clear()
                return sent
            piece = bytes(data[sent : sent + room])
            sent += room
            self.session.send(Write(self.number, piece, eof and sent == size))
        if eof and size == 0:
            self.session.send(Write(self.number, b"", True))
        return sent

    def close(self, detach: bool) -> None:
        """End the channel; with ``detach`` its command continues to run. ``changed`` is set when the channel has ended."""
        if self.number and not self.ended:
            self.changed.clear()
            self.session.send(Close(self.number, detach))

    def send(self, item: Any) -> None:
        """Send an imperative, unless the channel has ended."""
        if not self.ended:
            self.session.send(item)
