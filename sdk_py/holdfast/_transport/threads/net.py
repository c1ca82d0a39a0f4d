"""Sockets of the blocking API: connections to the service, and the listening sockets of tunnels, where each connection has a thread."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast._errors import InvalidArgumentError
from holdfast._results import Address
from holdfast._transport.threads.events import Background
from holdfast._urls import ServiceAddress

if TYPE_CHECKING:
    from ssl import SSLContext

PIECE_BYTES = 128 * 1024
PAUSE_S = 0.1
"""How long after a failed accept the next is tried."""


def connection_to(address: ServiceAddress, timeout_s: float, tls: SSLContext | None) -> socket.socket:
    """A connection over TCP, and TLS where a context is given; ``timeout_s`` bounds each step. Raises OSError, ``UnicodeError``."""
    # As bytes an ASCII name is looked up without the codec for other names, which takes a millisecond to import.
    host: Any = address.host.encode() if address.host.isascii() else address.host
    connection = socket.create_connection((host, address.port), timeout=timeout_s)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection if tls is None else tls.wrap_socket(connection, server_hostname=address.host)
    except BaseException:
        connection.close()
        raise


class Stream:
    """One accepted connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def read(self) -> bytes:
        """The next bytes, b"" at the end."""
        return self._connection.recv(PIECE_BYTES)

    def write(self, data: bytes) -> None:
        self._connection.sendall(data)

    def write_eof(self) -> None:
        self._connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        try:
            self._connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads
        except OSError:
            pass
        self._connection.close()


class Listener:
    """Accepts connections and serves each beside the others."""

    def __init__(self, serve: Callable[[Stream], None], background: Background) -> None:
        self._serve = serve
        self._background = background
        self._socket: socket.socket | None = None
        self._streams: set[Stream] = set()
        self._closed = threading.Event()
        self.address = Address("", 0)

    def start(self, host: str, port: int) -> None:
        """Listen. Raises ``InvalidArgumentError`` when that is not possible, for example because the port is in use."""
        try:
            self._socket = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise InvalidArgumentError("invalid_argument", f"cannot listen on {host}:{port}: {why}", hint="choose another port") from None
        self.address = Address(*self._socket.getsockname()[:2])
        self._background.start(self._accept, self._socket, name="holdfast-tunnel-accept")

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                if self._closed.wait(PAUSE_S):
                    return
                continue  # no descriptor was to spare; the next connection may find one
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as asyncio does for the other API
            stream = Stream(connection)
            try:
                self._background.start(self._one, stream, name="holdfast-tunnel")
            except RuntimeError:
                stream.close()  # no thread was to spare

    def _one(self, stream: Stream) -> None:
        self._streams.add(stream)
        try:
            if not self._closed.is_set():  # else ``close`` may not have seen it
                self._serve(stream)
        finally:
            self._streams.discard(stream)
            stream.close()

    def close(self) -> None:
        self._closed.set()
        listener, self._socket = self._socket, None
        if listener is not None:
            try:
                listener.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            listener.close()
        for stream in list(self._streams):
            stream.close()
