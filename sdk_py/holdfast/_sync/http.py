# Generated from ../_async by infra/scripts/generate_sync.py: edit that, then run `make generate`.
"""The HTTP client of one service: one request, one answer.

Owns the idle connections, which are kept for a while, and the errors of requests without an answer. ``_transport.aio.http`` owns a
connection, which carries one request at a time. No library: the usual ones take milliseconds of CPU time for a request beside a thousand
others, and longer to import than a short command takes altogether (decisions 0042, 0064).
"""

from __future__ import annotations

import time
from typing import Any

from holdfast._options import Options
from holdfast._transport.threads.http import Connection, abort_all, connect, home
from holdfast._transport.http1 import AnswerError
from holdfast._transport.rest.answer import KEPT, KEPT_S, Answer
from holdfast._transport.rest.request import LocalFailureError, Service, body_of, no_answer


class Http:
    """Requests to one service, with its key."""

    def __init__(self, options: Options) -> None:
        self.connected = False
        """Whether there may be connections to give back."""
        self._options = options
        self._service = Service(options)
        self._idle: list[Connection] = []
        """Replaced by another list when the client is closed: a connection in use returns to the list that it was taken from."""
        self._home: object = None

    def send(self, method: str, path: str, *, timeout_s: float, headers: dict[str, str] | None = None, **more: Any) -> Answer:
        """One exchange; ``more`` is ``json``, ``params`` or ``content``. Raises ``ServiceUnavailableError`` without an answer."""
        content, about = body_of(method, more)
        head = self._service.head(method, path, headers, about, more.get("params"))
        if self._home != home():  # a fork or another event loop cannot use the connections of this one
            abort_all(self._idle)
            self._idle, self._home = [], home()
        self.connected = True
        idle, reached = self._idle, False
        try:
            connection = _usable(idle) or connect(self._service, self._options.connect_timeout_s)
            reached = True
            try:
                reader = connection.exchange(head, content, timeout_s)
            except BaseException:
                connection.abort()
                raise
        except (LocalFailureError, OSError, AnswerError, UnicodeError) as failure:
            raise no_answer(failure, self._options, timeout_s, reached=reached) from None
        if connection.reusable and idle is self._idle and len(idle) < KEPT:
            connection.idle_since = time.monotonic()
            idle.append(connection)
        else:
            connection.abort()
        return Answer(reader.status, reader.headers, reader.body)

    def close(self) -> None:
        """Give the connections back."""
        idle, self._idle, self.connected = self._idle, [], False
        abort_all(idle)


def _usable(idle: list[Connection]) -> Connection | None:
    """A connection that the service has not closed; None where there is none."""
    while True:
        try:
            connection = idle.pop()
        except IndexError:  # also where another thread took the last one
            return None
        if time.monotonic() - connection.idle_since <= KEPT_S and connection.usable:
            return connection
        connection.abort()
