"""TCP connections of the asynchronous API: to the service, for requests, and those that a tunnel accepts.

Owns the received bytes that are not read yet. Sessions use their own protocol class (``driver``), which buffers none. ``threads.net`` has
the same names.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast._transport.aio.events import Background, Event
from holdfast._transport.proxies import ANSWER_BYTES, Proxy
from holdfast._transport.rest.answer import KEEPALIVE, RESET, is_readable
from holdfast._urls import ServiceAddress

if TYPE_CHECKING:
    from holdfast._transport.service import Service

_MOST_BYTES = 128 * 1024
"""With more unread bytes than this, the socket is not read."""


def home() -> object:
    """The event loop in which connections can be used: the running one."""
    return asyncio.get_running_loop()


async def connect(service: Service, timeout_s: float) -> Stream:
    """A new connection to the service. Raises ``TimeoutError``, OSError, ``UnicodeError``."""
    stream = Stream()
    try:
        async with asyncio.timeout(timeout_s):
            await open_connection(service, lambda: stream)
    except BaseException as why:
        stream.abort()
        if isinstance(why, TimeoutError) and service.proxy is not None:
            raise service.proxy.unreachable(why) from None
        raise
    for option in KEEPALIVE:
        stream.transport.get_extra_info("socket").setsockopt(*option)
    return stream


async def dial(host: str, port: int, timeout_s: float) -> Stream:
    """A connection to an address of this machine or its network. Raises ``TimeoutError``, OSError, ``UnicodeError``."""
    stream = Stream()
    async with asyncio.timeout(timeout_s):
        await asyncio.get_running_loop().create_connection(lambda: stream, host, port)
    return stream


async def open_connection(service: Service, protocol: Callable[[], asyncio.Protocol]) -> None:
    """Connect a protocol to the service, through its proxy if it has one. Raises OSError, ``UnicodeError``."""
    loop, address = asyncio.get_running_loop(), service.address
    if service.proxy is None:
        await loop.create_connection(protocol, address.host, address.port, ssl=service.tls_context)
        return
    tunnel = await _tunnel(loop, service.proxy, address)
    try:
        name = address.host if address.tls else None
        await loop.create_connection(protocol, sock=tunnel, ssl=service.tls_context, server_hostname=name)
    except BaseException:
        tunnel.close()
        raise


async def _tunnel(loop: asyncio.AbstractEventLoop, proxy: Proxy, address: ServiceAddress) -> socket.socket:
    """A connection that the proxy has connected to the service."""
    failure = OSError(0, "its name has no address")
    try:
        places = await loop.getaddrinfo(proxy.host, proxy.port, type=socket.SOCK_STREAM)
    except OSError as why:
        raise proxy.unreachable(why) from None
    for family, kind, protocol, _, place in places:
        tunnel = socket.socket(family, kind, protocol)
        try:
            tunnel.setblocking(False)
            tunnel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(tunnel, place)
            await loop.sock_sendall(tunnel, proxy.request(address))
            received = b""
            while not proxy.answered(received):
                if not (data := await loop.sock_recv(tunnel, ANSWER_BYTES)):
                    raise proxy.ended()
                received += data
            return tunnel
        except OSError as why:
            tunnel.close()
            failure = why
        except BaseException:
            tunnel.close()
            raise
    raise proxy.unreachable(failure)


async def abort_all(streams: list[Stream]) -> None:
    """Close them without waiting for unsent bytes."""
    for stream in streams:
        stream.abort()
    if streams:
        await asyncio.sleep(0)  # transports close in the next iteration of the loop


class Stream(asyncio.Protocol):
    """One connection. A read or write that waits longer than ``limit_s`` for the socket raises ``TimeoutError``."""

    def __init__(self, accepted: Callable[[Stream], None] | None = None) -> None:
        self.limit_s: float | None = None
        self.transport: Any = None
        self._loop = asyncio.get_running_loop()
        self._accepted = accepted
        self._arrived = bytearray()
        self._failure: Exception | None = None
        self._input = Event()
        """Set while there are unread bytes, and permanently once no more will come."""
        self._room = Event()
        """Set unless the transport has too many unsent bytes."""
        self._room.set()
        self._over = False

    async def read(self) -> bytes:
        """The next bytes, b"" at the end."""
        if not await self._input.wait(self.limit_s):
            raise TimeoutError
        data = bytes(self._arrived)
        self._arrived.clear()
        if self._over:
            if not data and self._failure is not None:
                raise self._failure
            return data
        self._input.clear()
        if len(data) > _MOST_BYTES:
            self.transport.resume_reading()
        return data

    async def write(self, data: bytes) -> None:
        """Send ``data``; waits while the transport has too many unsent bytes."""
        if self.transport.is_closing():  # asyncio would log a warning for each further write
            raise self._failure or BrokenPipeError("the connection has ended")
        self.transport.write(data)
        if not await self._room.wait(self.limit_s):
            raise TimeoutError
        if self._failure is not None:
            raise self._failure

    async def answered(self) -> bool:
        """Whether bytes have arrived before the request was sent completely.

        A failing write would drop received bytes that are not read yet.
        """
        for _ in range(2):
            await asyncio.sleep(0)
        return self._input._is_set

    @property
    def usable(self) -> bool:
        """Whether an idle connection is open and has received no unexpected bytes."""
        transport = self.transport
        return not self._input._is_set and not transport.is_closing() and not is_readable(transport.get_extra_info("socket").fileno())

    async def write_eof(self) -> None:
        if self.transport.can_write_eof():
            self.transport.write_eof()

    async def close(self) -> None:
        """Close the connection once all bytes are sent."""
        self.transport.close()

    def reset(self) -> None:
        """Close the connection at once, by a reset, so that the other side does not take it for an end."""
        self.transport.get_extra_info("socket").setsockopt(*RESET)
        self.abort()

    def abort(self) -> None:
        """Close the connection at once. Does nothing in another event loop than its own."""
        if self.transport is not None and asyncio._get_running_loop() is self._loop:
            self.transport.abort()

    # asyncio.Protocol -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        if self._accepted is not None:
            self._accepted(self)

    def data_received(self, data: bytes) -> None:
        self._arrived += data
        self._input.set()
        if len(self._arrived) > _MOST_BYTES:
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        self._over = True
        self._input.set()
        return self.transport.get_extra_info("sslcontext") is None  # without TLS it may still be written to

    def connection_lost(self, exc: Exception | None) -> None:
        self._over, self._failure = True, exc
        self._input.set()
        self._room.set()

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()


async def listen(host: str, port: int, accepted: Callable[[Stream], None], _background: Background) -> asyncio.Server:
    """Listen on a local port; each connection is passed to ``accepted``. Raises OSError, OverflowError."""
    return await asyncio.get_running_loop().create_server(lambda: Stream(accepted), host, port)
