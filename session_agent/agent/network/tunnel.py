"""The channel kind ``tunnel``: a TCP connection to a port inside the sandbox.

Owns the making of the connection. Its bytes are carried by ``socket_channel``.
"""

from __future__ import annotations

import asyncio
import errno
import os

from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import Closed, Failed, Opened

from session_agent.agent.context import AgentContext
from session_agent.agent.request.params import integer, text
from session_agent.agent.session.channels import Channel, Handler

from .socket_channel import SocketChannel

CONNECT_S = 10.0
"""Longest time a connection may take to be made."""


def open_tunnel(context: AgentContext, channel: Channel) -> Handler:
    """``tunnel {port, host?}``: Opened{host, port}, Write and Output both ways, Closed{sent, received}.

    The default host is loopback, first IPv4 and then IPv6, because some servers listen on only one of them.
    """
    port = integer(channel.params, "port", None, least=1, most=65535)
    if port is None:
        raise HoldfastError("invalid_argument", "a tunnel needs a port from 1 to 65535")
    host = text(channel.params, "host", None)
    if host is not None and (not host or len(host) > 253 or not host.isascii()):
        raise HoldfastError("invalid_argument", "host must be a name or an address")
    return Tunnel(channel, ("127.0.0.1", "::1") if host is None else (host,), port)


class Tunnel(SocketChannel):
    """One connection, from Open to its final fact."""

    def __init__(self, channel: Channel, hosts: tuple[str, ...], port: int) -> None:
        super().__init__(channel)
        self._port = port
        self._connecting = asyncio.get_running_loop().create_task(self._connect(hosts), name=f"tunnel to port {port}")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if self._over:
            transport.abort()
            return
        host, port = transport.get_extra_info("peername")[:2]
        self._channel.send(Opened(self._channel.number, {"host": host, "port": port}))
        self._established(transport)

    async def _connect(self, hosts: tuple[str, ...]) -> None:
        loop = asyncio.get_running_loop()
        failure: Exception = OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        for host in hosts:
            try:
                async with asyncio.timeout(CONNECT_S):
                    await loop.create_connection(lambda: self, host, self._port)
                return
            except (OSError, UnicodeError) as problem:  # TimeoutError is an OSError; a name may have no IDNA form
                if host == hosts[0]:
                    failure = problem
        number = getattr(failure, "errno", None) or 0  # negative: a failed look-up of the name
        reason = "timed out" if isinstance(failure, TimeoutError) else os.strerror(number) if number > 0 else str(failure)
        message = f"port {self._port} on {hosts[0]} cannot be reached: {reason}"
        error = HoldfastError("port_unreachable", message, hint=f"is anything listening on port {self._port}?")
        self._finish(Failed(self._channel.number, error.to_map()))

    def _lost(self, reason: str) -> Failed:
        message = f"the connection to port {self._port} was lost: {reason}"
        error = HoldfastError("port_unreachable", message, hint="the server ended the connection without closing it", detail=self._counts())
        return Failed(self._channel.number, error.to_map())

    def _finish(self, fact: Closed | Failed | None) -> None:
        if not self._over and self._connecting is not asyncio.current_task():
            self._connecting.cancel()
        super()._finish(fact)
