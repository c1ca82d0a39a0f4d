"""One channel's end in this process: its events, its parameters and its input, whatever the channel is for.

Pure: the engine calls ``fact``, ``writable`` and ``fail`` while it dispatches. What each kind of channel does with facts is in ``sinks``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import Close, Item, Write
from holdfast_wire.limits import DATA_BYTES
from holdfast_wire.session import ClientSession


class AnyEvent(Protocol):
    """What the events of both APIs have in common: setting one wakes its waiters. ``wait`` blocks, or gives what to await."""

    def set(self) -> None: ...
    def clear(self) -> None: ...
    def wait(self, timeout_s: float | None = None) -> Any: ...


EventFactory = Callable[[], AnyEvent]


class Sink:
    """One channel's end in this process. ``changed`` is set on news, ``space`` when bytes may be written again."""

    def __init__(self, session: ClientSession, new_event: EventFactory) -> None:
        self.session = session
        self.number = 0
        self.changed = new_event()
        self.space = new_event()
        self.transmitted = False
        self.ended = False
        self.error: HoldfastError | None = None
        self._params = memoryview(b"")

    def precede(self, params: bytes) -> None:
        """Send parameters that did not fit the Open, before any input and as credit allows."""
        self._params = memoryview(params)
        self.has_params()

    def has_params(self) -> bool:
        """Send on; whether all of them are sent."""
        if self._params:
            self._params = self._params[self._send(self._params, False) :]
        return not self._params

    def fact(self, item: Item) -> None:
        """A fact came. Raises ``ProtocolError`` when it makes no sense."""
        raise NotImplementedError

    def cancel(self, call: Any) -> None:
        """End ``call``, a command that travels on this channel."""
        raise NotImplementedError

    def writable(self) -> None:
        """Credit came back."""
        self.has_params()
        self.space.set()

    def fail(self, why: HoldfastError, *, gave_up: bool) -> None:
        """The session is over; no fact follows. ``gave_up``: its commands continue to run, and another session may reach them."""
        self.end(why)

    def end(self, why: HoldfastError | None) -> None:
        """Nothing more comes."""
        self.ended = True
        self._params = memoryview(b"")
        if self.error is None:
            self.error = why
        self.changed.set()
        self.space.set()

    def write(self, data: memoryview, eof: bool) -> int:
        """Send as much of ``data`` as there is credit for, and ``eof`` after all of it. Returns the bytes taken, -1 at the end."""
        if self.ended:
            return -1
        if not self.has_params():
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
        """End the channel, or with ``detach`` leave what runs running; ``changed`` is set when it has ended."""
        if self.number and not self.ended:
            self.changed.clear()
            self.session.send(Close(self.number, detach))

    def send(self, item: Any) -> None:
        """Send an imperative, unless the channel has ended."""
        if not self.ended:
            self.session.send(item)
