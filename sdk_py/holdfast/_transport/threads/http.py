"""One connection of the blocking API for HTTP requests to the service: ``aio.http``'s names.

Owns the socket and the sending of a request; ``http1`` reads the answer. ``_sync.http`` owns idle connections.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

from holdfast._transport.http1 import AnswerReader, chunked
from holdfast._transport.rest.answer import KEEPALIVE, is_readable
from holdfast._transport.rest.request import LocalFailureError, Service
from holdfast._transport.threads.loop_warning import warn_in_loop
from holdfast._transport.threads.net import connection_to

RECEIVE_BYTES = 256 * 1024


def home() -> object:
    """Where connections can be used: this process."""
    return os.getpid()


def connect(service: Service, timeout_s: float) -> Connection:
    """A new connection. Raises ``TimeoutError``, OSError, ``UnicodeError``."""
    made = connection_to(service.address, timeout_s, service.tls_context)
    for option in KEEPALIVE:
        made.setsockopt(*option)
    return Connection(made)


def abort_all(connections: list[Connection]) -> None:
    """Close them. In a fork that closes this process's descriptors; its parent's stay."""
    for connection in connections:
        connection.abort()


class Connection:
    """One connection to the service. A time limit is for each wait for the socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self.idle_since = 0.0
        self.reusable = False
        """Whether it may carry another request."""

    def __del__(self) -> None:
        # A client that was never closed warns of itself: its sockets need not warn as well.
        self._socket.close()

    def exchange(self, head: bytes, content: bytes | Iterator[bytes], timeout_s: float) -> AnswerReader:
        """Send a request and wait for its answer. Raises ``TimeoutError``, OSError, ``AnswerError``, ``LocalFailureError``."""
        warn_in_loop()
        connection, reader = self._socket, AnswerReader()
        connection.settimeout(timeout_s)
        pieces = iter((content,)) if isinstance(content, bytes) else chunked(_local(content))
        try:
            connection.sendall(head + next(pieces, b""))
            for piece in pieces:
                connection.sendall(piece)
        except (BrokenPipeError, ConnectionResetError):
            pass  # its answer may give the reason
        while not reader.done:
            reader.feed(connection.recv(RECEIVE_BYTES))
        self.reusable = reader.reusable
        return reader

    @property
    def usable(self) -> bool:
        """Whether the service has not ended it."""
        return not is_readable(self._socket.fileno())

    def abort(self) -> None:
        """Close it."""
        self._socket.close()


def _local(pieces: Iterator[bytes]) -> Iterator[bytes]:
    try:
        yield from pieces
    except OSError as why:
        raise LocalFailureError(why) from None
