"""The thread behind a blocking link: it connects, resumes, and serves the socket while no caller waits on it.

Owns making connections and the pauses between attempts. It shares the link's state and lock; the steps themselves are the link's.
"""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from holdfast._errors import error
from holdfast._transport.websocket import WebSocket

if TYPE_CHECKING:
    from ssl import SSLContext

    from holdfast._transport.threads import Link

RECEIVE_BYTES = 64 * 1024
DOZE_S = 0.1
"""How long an idle connection is left alone: commands that follow each other do not wake this thread each time."""


class Keeper:
    """See the module. ``sleeps``: somebody leads, and whoever resigns last must ``stir`` it."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._stirred = threading.Event()
        self.sleeps = False
        self.thread = threading.Thread(target=self.run, name=f"holdfast-link-{link.engine.sandbox_id}", daemon=True)

    def stir(self) -> None:
        """There is something to do."""
        self._stirred.set()

    def run(self) -> None:
        """Connect, watch, connect again, until the session is over."""
        try:
            while self._link.engine.error is None:
                delay_s = self._connect()
                if delay_s is None:
                    self._watch()
                    delay_s = self._broken(self._link._websocket, "the connection was lost")
                if delay_s is None:
                    return
                self._pause(delay_s)
        except Exception as bug:
            with self._link._turn:
                self._link.engine.fail(error("internal", f"the session's thread ended: {bug!r}"))  # or its callers would wait for ever
            raise
        finally:
            with self._link._turn:
                self._link._hang_up()
            with self._link._turn.lock:
                self._link._finished = True
                self._link._close_pipe()

    def _pause(self, delay_s: float) -> None:
        until = time.monotonic() + delay_s
        woken: list[float] = []

        def wake(after_s: float) -> None:  # by the thread of the session that got through
            woken.append(time.monotonic() + after_s)
            self._stirred.set()

        peers = self._link.options.peers
        peers.wait(self, wake)
        try:
            while self._link.engine.error is None and (left := until - time.monotonic()) > 0:
                self._stirred.wait(left)
                self._stirred.clear()
                if woken and self._link.engine.may_wake():
                    until = min(until, woken[0])
        finally:
            peers.leave(self)

    def _broken(self, websocket: WebSocket | None, why: str) -> float | None:
        with self._link._turn:
            return self._link.engine.broken(websocket, why, time.monotonic())

    def _connect(self) -> float | None:
        """Make a connection and shake hands. Returns None when it stands, else the seconds until the next attempt."""
        parts = urlsplit(self._link.options.websocket_url)
        context = _tls_context() if self._link.tls else None
        port = parts.port or (443 if context else 80)
        limit_s = self._link.engine.attempt_s(time.monotonic())
        websocket = self._link.engine.websocket()
        connection: socket.socket | None = None
        why = "the connection was lost"
        try:
            connection = socket.create_connection((parts.hostname or "", port), timeout=limit_s)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is not None:
                connection = context.wrap_socket(connection, server_hostname=parts.hostname)
            messages = _shake(connection, websocket, limit_s)
            if websocket.open:
                connection.setblocking(False)
                self._adopt(connection, websocket, messages)
                return None
        except TimeoutError:
            why = f"no answer from {parts.hostname}:{port} within {limit_s:.2g} s"
        except Exception as failure:  # noqa: BLE001  also a name that is none: nobody else would tell
            if (refused := getattr(failure, "verify_message", None)) is not None:
                with self._link._turn:
                    self._link.engine.fail(error("agent_identity", f"the service's certificate is refused: {refused}"))
            why = f"cannot connect to {parts.hostname}:{port}: {getattr(failure, 'strerror', None) or type(failure).__name__}"
        if connection is not None:
            connection.close()
        delay_s = self._broken(websocket, why)
        return 0.0 if delay_s is None else delay_s

    def _adopt(self, connection: socket.socket, websocket: WebSocket, messages: list[bytes]) -> None:
        with self._link._turn:
            if self._link.engine.error is not None:
                connection.close()
                return
            now = time.monotonic()
            self._link._socket, self._link._websocket, self._link._unwritten = connection, websocket, b""
            self._link.engine.connected(websocket.headers, now)
            self._link.engine.receive(messages, now)
            self._link._flush()
            if self._link.tls:
                self._link._serve(connection)  # what TLS has decrypted already never shows up in poll
            self._link._promote()

    def _watch(self) -> None:
        """Serve the connection whenever nobody else does, until it goes."""
        while self._link.engine.error is None:
            connection = self._link._socket
            if connection is None:
                return
            with self._link._turn.lock:
                busy, leads = self._link._leader is not None, self._link._leads
                self.sleeps = busy
            if busy:
                self._stirred.wait()
                self.sleeps = False
                self._stirred.clear()
                continue
            self._stirred.wait(DOZE_S)
            self._stirred.clear()
            while (
                self._link._leader is None
                and self._link._leads == leads
                and self._link._socket is connection
                and self._link.engine.error is None
            ):
                self._link._serve_once(connection, None)


def _shake(connection: socket.socket, websocket: WebSocket, limit_s: float) -> list[bytes]:
    """The handshake, blocking."""
    until = time.monotonic() + limit_s
    connection.sendall(websocket.greeting())
    messages: list[bytes] = []
    while not websocket.open and not websocket.over:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        data = connection.recv(RECEIVE_BYTES)
        if data:
            messages += websocket.feed(data)
        else:
            websocket.feed_eof()
    return messages


def _tls_context() -> SSLContext:
    import ssl

    return ssl.create_default_context()
