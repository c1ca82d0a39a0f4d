"""The HTTP client of the blocking API: one request, one answer.

Owns the connections: each carries one request at a time, and idle ones are kept for a while. No library: the usual ones take longer to
import than a short command takes altogether (decision 0042).
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from holdfast._options import Options
from holdfast._transport.rest.answer import KEEPALIVE, KEPT, KEPT_S, Answer, is_readable, unreachable
from holdfast._transport.rest.http1 import AnswerError, AnswerReader, chunked
from holdfast._transport.rest.request import LocalFailureError, Service, body_of, reason
from holdfast._transport.threads.events import Lock
from holdfast._transport.threads.loop_warning import warn_in_loop
from holdfast._transport.threads.net import connection_to

if TYPE_CHECKING:
    from ssl import SSLContext

RECEIVE_BYTES = 256 * 1024


class Http:
    """Requests to one service, with its key."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._service = Service(options)
        self._client: list[tuple[socket.socket, float]] | None = None
        self._context: SSLContext | None = None
        self._pid = 0
        self._lock = Lock()

    def __del__(self) -> None:
        # A client that was never closed warns of itself: its sockets need not warn as well.
        for connection, _ in getattr(self, "_client", None) or ():
            connection.close()

    @property
    def connected(self) -> bool:
        """Whether there is a pool to give back."""
        return self._client is not None

    def send(self, method: str, path: str, *, timeout_s: float, headers: dict[str, str] | None = None, **more: Any) -> Answer:
        """One exchange; ``more`` is ``json``, ``params`` or ``content``. Raises ``ServiceUnavailableError`` without an answer."""
        warn_in_loop()
        content, about = body_of(method, more)
        body = iter((content,)) if isinstance(content, bytes) else chunked(_local(content))
        head = self._service.head(method, path, headers, about, more.get("params"))
        reached = False
        try:
            connection = self._idle() or self._connected()
            reached = True
            try:
                reader = self._exchange(connection, head, body, timeout_s)
            except BaseException:
                connection.close()
                raise
        except LocalFailureError as local:
            raise local.why from None
        except TimeoutError:
            why = f"no answer within {timeout_s:g} s" if reached else f"no connection within {self._options.connect_timeout_s:g} s"
            raise unreachable(self._options.url, why, reached=reached) from None
        except (OSError, AnswerError, UnicodeError) as failure:
            raise unreachable(self._options.url, reason(failure), reached=reached) from None
        if reader.reusable:
            self._keep(connection)
        else:
            connection.close()
        return Answer(reader.status, reader.headers, reader.body)

    def _exchange(self, connection: socket.socket, head: bytes, body: Iterator[bytes], timeout_s: float) -> AnswerReader:
        connection.settimeout(timeout_s)
        reader = AnswerReader()
        try:
            connection.sendall(head + next(body, b""))
            for piece in body:
                connection.sendall(piece)
        except (BrokenPipeError, ConnectionResetError):
            pass  # its answer may give the reason
        while not reader.done:
            reader.feed(connection.recv(RECEIVE_BYTES))
        return reader

    # Connections ------------------------------------------------------------------------------------------------

    def _connected(self) -> socket.socket:
        service = self._service
        if service.tls and self._context is None:
            import ssl

            self._context = ssl.create_default_context()
        connection = connection_to(service.host, service.port, self._options.connect_timeout_s, self._context)
        for option in KEEPALIVE:
            connection.setsockopt(*option)
        return connection

    def _idle(self) -> socket.socket | None:
        """A connection that was kept and that the service has not closed; None where there is none."""
        now = time.monotonic()
        while True:
            with self._lock.own:
                kept = self._client
                if kept is None or self._pid != os.getpid():  # a fork must not speak on its parent's connections
                    self._client, self._pid = [], os.getpid()
                    for inherited, _ in kept or ():
                        inherited.close()  # this process's descriptor; the parent's stays
                    return None
                if not kept:
                    return None
                connection, since = kept.pop()
            if now - since <= KEPT_S and not is_readable(connection.fileno()):
                return connection
            connection.close()

    def _keep(self, connection: socket.socket) -> None:
        with self._lock.own:
            if self._client is not None and self._pid == os.getpid() and len(self._client) < KEPT:
                self._client.append((connection, time.monotonic()))
                return
        connection.close()

    def close(self) -> None:
        """Give the connections back."""
        with self._lock.own:
            kept, self._client = self._client, None
        if kept is not None and self._pid == os.getpid():
            for connection, _ in kept:
                connection.close()


def _local(pieces: Iterator[bytes]) -> Iterator[bytes]:
    try:
        yield from pieces
    except OSError as why:
        raise LocalFailureError(why) from None
