# Generated from ../_async by infra/scripts/generate_sync.py: edit that, then run `make generate`.
"""The HTTP client of one service: one request, one answer.

Owns the sending of a request, the idle connections that are kept for later requests, and the errors of requests without an answer.
``holdfast_wire.http1`` reads the answer; ``aio.net`` owns the socket. No library: the usual ones take milliseconds of CPU time for a
request beside a thousand others, and longer to import than a short command takes altogether (decisions 0042, 0064).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import IO, Any

from holdfast_wire.http1 import LAST_CHUNK, AnswerReader, HttpError, chunk

from holdfast._options import Options
from holdfast._transport.threads.events import run_blocking
from holdfast._transport.threads.net import Stream, abort_all, connect, home
from holdfast._transport.rest.answer import KEPT, KEPT_S, Answer, LocalFailureError, no_answer
from holdfast._transport.service import Service

_OK = 200


class Http:
    """Requests to one service, with its key."""

    def __init__(self, options: Options) -> None:
        self.connected = False
        """Whether there may be connections that have to be closed."""
        self._options = options
        self._service = Service(options)
        self._idle: list[tuple[Stream, float]] = []
        """Each with the time when it became idle. Replaced by another list when the client is closed: a connection in use returns to the
        list that it was taken from."""
        self._home: object = None

    def send(
        self, method: str, path: str, *, timeout_s: float, headers: dict[str, str] | None = None, into: IO[bytes] | None = None, **more: Any
    ) -> Answer:
        """One exchange; ``more`` is ``json``, ``params`` or ``content``. Raises ``ServiceUnavailableError`` without an answer.

        ``into``: where the body of an answer 200 is written, in place of the answer.
        """
        head, content = self._service.request(method, path, headers or {}, **more)
        if self._home != home():  # a fork or another event loop cannot use the connections of this one
            abort_all([stream for stream, _ in self._idle])
            self._idle, self._home = [], home()
        self.connected = True
        idle, connection, reusable = self._idle, None, False
        try:
            connection = _usable(idle) or connect(self._service, self._options.connect_timeout_s)
            connection.limit_s = timeout_s
            sent = _send(connection, head, content)
            reader = AnswerReader()
            while not reader.done:
                reader.feed(connection.read())
                if into is not None and reader.status == _OK:
                    run_blocking(into.write, reader.take_body())
            reusable = sent and reader.reusable and idle is self._idle and len(idle) < KEPT
        except (LocalFailureError, OSError, HttpError, UnicodeError) as failure:
            raise no_answer(failure, self._options, timeout_s, reached=connection is not None) from None
        finally:
            if reusable and connection is not None:
                idle.append((connection, time.monotonic()))
            elif connection is not None:
                connection.abort()
        return Answer(reader.status, reader.headers, reader.body)

    def begin(self, path: str, headers: dict[str, str], params: Any, *, timeout_s: float) -> tuple[Stream, AnswerReader]:
        """Send a GET request over a connection of its own, and return once its answer has begun; if that is not 200,
        once it is complete.

        The caller reads the rest and closes the connection. Raises ``ServiceUnavailableError`` without an answer.
        """
        head, _ = self._service.request("GET", path, headers, params=params)
        connection, begun = None, False
        try:
            connection = connect(self._service, self._options.connect_timeout_s)
            connection.limit_s = timeout_s
            connection.write(head)
            reader = AnswerReader()
            while not (reader.done or reader.status == _OK):
                reader.feed(connection.read())
            begun = True
            return connection, reader
        except (OSError, HttpError, UnicodeError) as failure:
            raise no_answer(failure, self._options, timeout_s, reached=connection is not None) from None
        finally:
            if connection is not None and not begun:
                connection.abort()

    def close(self) -> None:
        """Close the connections."""
        idle, self._idle, self.connected = self._idle, [], False
        abort_all([stream for stream, _ in idle])


class TracedHttp(Http):
    """Requests with a span each, whose context the service gets."""

    def send(
        self, method: str, path: str, *, timeout_s: float, headers: dict[str, str] | None = None, into: IO[bytes] | None = None, **more: Any
    ) -> Answer:
        from holdfast._transport.session.traced import request_span

        with request_span(method, path) as request:
            answer = super().send(
                method, path, timeout_s=timeout_s, headers={**(headers or {}), **request.headers}, into=into, **more
            )
            request.answered(answer.status)
        return answer


def _send(connection: Stream, head: bytes, content: bytes | Iterator[bytes]) -> bool:
    """Send a request.

    Returns False if not all of it was sent, because the service answered early or closed the connection, perhaps after an answer.
    """
    try:
        if isinstance(content, bytes):
            connection.write(head + content)
            return True
        connection.write(head)
        for piece in _chunks(content):
            if connection.answered():
                return False
            connection.write(piece)
        return True
    except (BrokenPipeError, ConnectionResetError):
        return False


def _chunks(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """A body of unknown length (RFC 9112 §7.1)."""
    try:
        for piece in pieces:
            if piece:
                yield chunk(piece)
    except OSError as why:
        raise LocalFailureError(why) from None
    yield LAST_CHUNK


def _usable(idle: list[tuple[Stream, float]]) -> Stream | None:
    """An idle connection that the service has not closed; None if there is none."""
    while True:
        try:
            connection, since = idle.pop()
        except IndexError:  # another thread may have taken the last one
            return None
        if time.monotonic() - since <= KEPT_S and connection.usable:
            return connection
        connection.abort()
