"""The client's end of a listener in the sandbox, and of each connection that the agent accepts on it.

Pure, as ``sinks``. Owns the connections that the program has not taken yet; the session limits how many there are. What the agent reports
about a connection is untrusted.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from holdfast_wire.errors import HoldfastError, ProtocolError
from holdfast_wire.frames import Accepted, Closed, Failed, Item, Opened
from holdfast_wire.session.client_session import ClientSession

from holdfast._transport.session.failures import given_up
from holdfast._transport.session.sink import EventFactory
from holdfast._transport.session.sinks import TransferSink


class ConnectionSink(TransferSink):
    """One connection, whose channel the agent has opened."""

    def __init__(self, session: ClientSession, new_event: EventFactory, accepted: Accepted) -> None:
        super().__init__(session, new_event)
        self.number = accepted.channel
        self.transmitted = True
        peer = accepted.info.get("peer")
        self.peer: tuple[str, int] | None = None
        if isinstance(peer, list) and len(peer) == 2 and isinstance(peer[0], str) and isinstance(peer[1], int):
            self.peer = peer[0][:64], peer[1]

    def fact(self, item: Item) -> None:
        if not isinstance(item, Accepted):  # which has made this sink
            super().fact(item)

    def refuse(self) -> None:
        """Reset the connection, which the program did not take."""
        self.session.take(self.number)
        self.stop()


class ListenSink(TransferSink):
    """A listener. ``changed`` is set when a connection was accepted, or when it has ended."""

    def __init__(self, session: ClientSession, new_event: EventFactory) -> None:
        super().__init__(session, new_event)
        self.untaken: deque[ConnectionSink] = deque()
        self.closing = False
        self.over = new_event()
        """Set when it has ended."""
        self._new_event = new_event

    def accepted(self, item: Accepted) -> ConnectionSink:
        connection = ConnectionSink(self.session, self._new_event, item)
        if self.closing:
            connection.refuse()
        else:
            self.untaken.append(connection)
            self.changed.set()
        return connection

    def next(self) -> ConnectionSink | None:
        """Take the next connection. None if none waits: then ``changed`` is set with the next, or with the end."""
        if not self.untaken:
            if not self.ended:
                self.changed.clear()
            return None
        connection = self.untaken.popleft()
        self.session.take(connection.number)
        return connection

    def stop(self) -> None:
        """Stop listening, and reset the connections that were not taken."""
        self.closing = True
        while self.untaken:
            self.untaken.popleft().refuse()
        super().stop()

    def fact(self, item: Item) -> None:
        if isinstance(item, Opened):
            self.opened = item.info
            self.changed.set()
        elif isinstance(item, Closed):
            self.closed = item.result
            self.end(None)
        elif isinstance(item, Failed):
            self.end(self.refusal(item.error))
        else:
            raise ProtocolError(f"the agent sent {type(item).__name__} on a listener")

    def end(self, why: HoldfastError | None) -> None:
        super().end(why)
        self.over.set()

    def fail(self, why: HoldfastError, *, gave_up: bool) -> None:
        self.untaken.clear()
        if gave_up:
            why = given_up(why, "the listener", "sandbox.listen()", {})
        super().fail(why, gave_up=gave_up)


def place_of(info: dict[str, Any]) -> tuple[str, int]:
    """Host and port of an Opened; raises ``ProtocolError`` if it has none."""
    host, port = info.get("host"), info.get("port")
    if not isinstance(host, str) or not isinstance(port, int) or not 0 < port < 65536:
        raise ProtocolError("the agent has reported no port for a listener")
    return host[:64], port
