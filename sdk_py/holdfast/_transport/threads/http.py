"""The HTTP client of the blocking API: one request, one answer.

Owns the connections: each carries one request at a time, and idle ones are kept for a while. No library: the one that the asynchronous
API uses takes longer to import than a short command takes altogether (decision 0042).
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from holdfast._options import Options
from holdfast._transport.rest.answer import KEEPALIVE, KEPT, Answer, unreachable
from holdfast._transport.rest.http1 import AnswerError, AnswerReader, chunked, request_head
from holdfast._transport.threads.events import Lock
from holdfast._transport.threads.loop_warning import warn_in_loop

if TYPE_CHECKING:
    from ssl import SSLContext

RECEIVE_BYTES = 256 * 1024
KEPT_S = 5.0
"""How long an idle connection is kept: servers close theirs after about as long."""


class Http:
    """Requests to one service, with its key."""

    def __init__(self, options: Options) -> None:
        self._options = options
        parts = urlsplit(options.url)
        self._tls = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port or (443 if self._tls else 80)
        self._prefix = parts.path
        self._headers = {
            "Host": parts.netloc.rpartition("@")[2],
            "Accept": "*/*",
            "X-API-Key": options.api_key,
            "User-Agent": "holdfast-python",
        }
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
        body, about = _body(method, more)
        params = more.get("params")
        target = f"{self._prefix}{path}{'?' + urlencode(_pairs(params)) if params else ''}"
        head = request_head(method, target, {**self._headers, **about, **(headers or {})})
        reached = False
        try:
            connection = self._idle() or self._connected()
            reached = True
            try:
                reader = self._exchange(connection, head, body, timeout_s)
            except BaseException:
                connection.close()
                raise
        except _LocalFailureError as local:
            raise local.why from None
        except TimeoutError:
            why = f"no answer within {timeout_s:g} s" if reached else f"no connection within {self._options.connect_timeout_s:g} s"
            raise unreachable(self._options.url, why, reached=reached) from None
        except (OSError, AnswerError, UnicodeError) as failure:
            why = getattr(failure, "verify_message", None) or getattr(failure, "strerror", None) or str(failure) or type(failure).__name__
            raise unreachable(self._options.url, why, reached=reached) from None
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
        connection = socket.create_connection((self._host, self._port), timeout=self._options.connect_timeout_s)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for option in KEEPALIVE:
                connection.setsockopt(*option)
            return self._wrapped(connection) if self._tls else connection
        except BaseException:
            connection.close()
            raise

    def _wrapped(self, connection: socket.socket) -> socket.socket:
        if self._context is None:
            import ssl

            self._context = ssl.create_default_context()
        return self._context.wrap_socket(connection, server_hostname=self._host)

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
            if now - since <= KEPT_S and not _is_readable(connection):
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


def _is_readable(connection: socket.socket) -> bool:
    """Whether bytes that no request asked for are there to read: most often the end of the connection."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


def _body(method: str, more: dict[str, Any]) -> tuple[Iterator[bytes], dict[str, str]]:
    """The bytes of a request's body, and the headers that describe it."""
    if "json" in more:
        import json

        data = json.dumps(more["json"], ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        return iter((data,)), {"Content-Type": "application/json", "Content-Length": str(len(data))}
    content = more.get("content")
    if content is None:
        return iter(()), {} if method in ("GET", "DELETE") else {"Content-Length": "0"}
    if isinstance(content, bytes):
        return iter((content,)), {"Content-Length": str(len(content))}
    return chunked(_local(content)), {"Transfer-Encoding": "chunked"}


class _LocalFailureError(Exception):
    """What was to be sent could not be read here."""

    def __init__(self, why: OSError) -> None:
        super().__init__()
        self.why = why


def _local(pieces: Iterator[bytes]) -> Iterator[bytes]:
    try:
        yield from pieces
    except OSError as why:
        raise _LocalFailureError(why) from None


def _pairs(params: Any) -> list[tuple[str, str]]:
    items = params.items() if isinstance(params, dict) else params
    return [(name, str(value).lower() if isinstance(value, bool) else str(value)) for name, value in items]
