"""TCP connections of the blocking API: to the service, and those that a tunnel accepts, each in a thread.

``aio.net`` has the same names.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast._transport.proxies import ANSWER_BYTES, Proxy
from holdfast._transport.rest.answer import KEEPALIVE, RESET, is_readable
from holdfast._transport.threads.events import Background
from holdfast._urls import ServiceAddress

if TYPE_CHECKING:
    from holdfast._transport.service import Service

PIECE_BYTES = 128 * 1024
PAUSE_S = 0.1
"""Pause after an accept that failed."""


_warned = False


def warn_in_loop() -> None:
    """Warn once per process if this thread runs an event loop, which a blocking call would stop.

    Called where a connection is made, not for every command. Without asyncio loaded there is no loop, and it is not loaded for this.
    """
    global _warned
    asyncio = sys.modules.get("asyncio")
    if _warned or asyncio is None or asyncio._get_running_loop() is None:
        return
    _warned = True
    level = 2
    while sys._getframe(level).f_globals.get("__name__", "").startswith("holdfast."):
        level += 1
    warnings.warn(
        "SandboxClient blocks the event loop that runs here: use AsyncSandboxClient, or asyncio.to_thread()",
        RuntimeWarning,
        stacklevel=level + 1,
    )


def connection_to(service: Service, timeout_s: float) -> socket.socket:
    """A connection to the service, with TLS if it has it; ``timeout_s`` limits each step. Raises OSError, ``UnicodeError``."""
    address, tls = service.address, service.tls_context
    connection = _connection(address.host, address.port, timeout_s) if service.proxy is None else _tunnel(service.proxy, address, timeout_s)
    try:
        return connection if tls is None else tls.wrap_socket(connection, server_hostname=address.host)
    except BaseException:
        connection.close()
        raise


def _connection(host: str, port: int, timeout_s: float) -> socket.socket:
    # As bytes an ASCII name is looked up without the codec for other names, which takes a millisecond to import.
    place: Any = host.encode() if host.isascii() else host
    connection = socket.create_connection((place, port), timeout=timeout_s)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection
    except BaseException:
        connection.close()
        raise


def _tunnel(proxy: Proxy, address: ServiceAddress, timeout_s: float) -> socket.socket:
    """A connection that the proxy has connected to the service."""
    connection: socket.socket | None = None
    try:
        connection = _connection(proxy.host, proxy.port, timeout_s)
        connection.sendall(proxy.request(address))
        received = b""
        while not proxy.answered(received):
            if not (data := connection.recv(ANSWER_BYTES)):
                raise proxy.ended()
            received += data
        return connection
    except BaseException as why:
        if connection is not None:
            connection.close()
        if isinstance(why, OSError):
            raise proxy.unreachable(why) from None
        raise


def home() -> object:
    """The process in which connections can be used: this one."""
    return os.getpid()


def connect(service: Service, timeout_s: float) -> Stream:
    """A new connection to the service, for requests. Raises ``TimeoutError``, OSError, ``UnicodeError``."""
    warn_in_loop()
    connection = connection_to(service, timeout_s)
    for option in KEEPALIVE:
        connection.setsockopt(*option)
    return Stream(connection)


def dial(host: str, port: int, timeout_s: float) -> Stream:
    """A connection to an address of this machine or its network. Raises ``TimeoutError``, OSError, ``UnicodeError``."""
    connection = socket.create_connection((host, port), timeout=timeout_s)
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Stream(connection)


def abort_all(streams: list[Stream]) -> None:
    """Close the connections. In a forked process this closes only its own descriptors, not those of its parent."""
    for stream in streams:
        stream.abort()


class Stream:
    """One connection. A read or write that waits longer than ``limit_s`` for the socket raises ``TimeoutError``."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def __del__(self) -> None:
        # A client that was never closed warns itself, so its sockets do not have to.
        self.abort()

    @property
    def limit_s(self) -> float | None:
        return self._connection.gettimeout()

    @limit_s.setter
    def limit_s(self, limit_s: float | None) -> None:
        self._connection.settimeout(limit_s)

    def read(self) -> bytes:
        """The next bytes, b"" at the end."""
        return self._connection.recv(PIECE_BYTES)

    def write(self, data: bytes) -> None:
        self._connection.sendall(data)

    def answered(self) -> bool:
        """Always False: a body is sent to its end, or until that fails. Readable bytes may belong to TLS alone."""
        return False

    @property
    def usable(self) -> bool:
        """Whether an idle connection is open and has received no unexpected bytes."""
        return not is_readable(self._connection.fileno())

    def write_eof(self) -> None:
        self._connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        try:
            self._connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads
        except OSError:
            pass
        self.abort()

    def reset(self) -> None:
        """Close the connection at once, by a reset, so that the other side does not take it for an end."""
        self._connection.setsockopt(*RESET)
        self.close()

    def abort(self) -> None:
        """Close it at once."""
        self._connection.close()


def listen(host: str, port: int, accepted: Callable[[Stream], None], background: Background) -> Server:
    """Listen on a local port; each connection is passed to ``accepted`` in a thread of ``background``. Raises OSError, OverflowError."""
    server = Server(socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET))
    background.start(server.accept, accepted, name="holdfast-tunnel-accept")
    return server


class Server:
    """A listening socket, with those methods of ``asyncio.Server`` that are used."""

    def __init__(self, listener: socket.socket) -> None:
        self.sockets = [listener]
        self._closed = threading.Event()

    def accept(self, accepted: Callable[[Stream], None]) -> None:
        """Accept connections until the socket is closed."""
        while True:
            try:
                connection, _ = self.sockets[0].accept()
            except OSError:
                if self._closed.wait(PAUSE_S):
                    return
                continue  # no descriptor was free; one may be free for the next connection
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as asyncio does in the other API
            stream = Stream(connection)
            try:
                accepted(stream)
            except RuntimeError:
                stream.close()  # no thread could be started

    def close(self) -> None:
        self._closed.set()
        try:
            self.sockets[0].shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.sockets[0].close()
