"""Makes one connection of a blocking driver: name look-up, TCP, TLS and the WebSocket handshake, all blocking.

Owns no session and no retries: the driver's thread calls ``connect`` and takes over the socket.
"""

from __future__ import annotations

import socket
import time

from holdfast_wire.errors import HoldfastError

from holdfast._errors import certificate_refused
from holdfast._options import Options
from holdfast._transport.rest.request import Service
from holdfast._transport.session.websocket import WebSocket
from holdfast._transport.threads.net import connection_to

RECEIVE_BYTES = 64 * 1024


class NotConnectedError(Exception):
    """There is no connection; ``fatal`` is set where another attempt would fail as well."""

    def __init__(self, why: str, fatal: HoldfastError | None = None) -> None:
        super().__init__(why)
        self.fatal = fatal


def connect(options: Options, websocket: WebSocket, connect_s: float, answer_s: float) -> tuple[socket.socket, list[bytes]]:
    """The connected socket, not blocking, and the messages that arrived with the handshake. Raises ``NotConnectedError``.

    The handshake's answer may take ``answer_s``.
    """
    limit_s = connect_s
    service = Service(options)
    address = service.address
    connection: socket.socket | None = None
    fatal: HoldfastError | None = None
    try:
        connection = connection_to(address, limit_s, service.tls_context)
        limit_s = answer_s
        messages = _shake_hands(connection, websocket, limit_s)
        if websocket.open:
            connection.setblocking(False)
            return connection, messages
        why = "the connection was lost"
    except TimeoutError:
        why = f"no answer from {address.host}:{address.port} within {limit_s:.2g} s"
    except Exception as failure:  # noqa: BLE001  also a host name that cannot be encoded: the caller waits for an answer
        if (refused := getattr(failure, "verify_message", None)) is not None:
            fatal = certificate_refused(refused)
        why = f"cannot connect to {address.host}:{address.port}: {getattr(failure, 'strerror', None) or type(failure).__name__}"
    if connection is not None:
        connection.close()
    raise NotConnectedError(why, fatal)


def _shake_hands(connection: socket.socket, websocket: WebSocket, limit_s: float) -> list[bytes]:
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
