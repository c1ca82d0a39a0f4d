"""Connections to ports inside sandboxes, and the idle ones that HTTP may use again.

Owns which form a connection has (a socket that the runtime has made, else a ``tunnel`` channel to the sandbox's agent), how many idle ones
are kept and for how long, and the end of each. The bytes are those of the program that listens: nothing here reads them. The tunnels have
agent connections of their own, so that a large answer does not delay commands. Called by ``use_cases.previews``.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from holdfast_wire.errors import HoldfastError

from gateway.model.records import Record

from .kept_connections import KeptConnections
from .port_sockets import SocketConnection
from .port_tunnels import TunnelConnection

IDLE_S: Final = 4.0
"""How long an unused connection is kept: less than the five seconds after which common servers close theirs."""
_MOST_OF_PORT: Final = 8
_MOST: Final = 256
"""Most unused connections of one port, and of this replica; beyond that, the one that was unused longest is closed."""
_MOST_SOCKETS_OF_SANDBOX: Final = 64
_MOST_SOCKETS: Final = 1024
"""Most sockets into one sandbox, and of this replica, used or not: each holds memory of the kernel. Beyond that there are tunnels."""

_Key = tuple[str, str, int, str]


class PortConnection(Protocol):
    """One connection. ``read`` and ``write`` may be used at the same time, each by one task; a cancelled ``read`` ends the connection."""

    key: _Key
    used_before: bool
    """Whether it carried an earlier request: the program may have closed it at the moment it was used again."""

    async def read(self) -> bytes:
        """The next bytes, empty after the last. Raises ``HoldfastError``."""
        ...

    async def write(self, data: bytes) -> None:
        """Send bytes as fast as the program reads them; without effect once it has ended the connection. Raises ``HoldfastError``."""
        ...

    @property
    def reusable(self) -> bool:
        """Whether it is open and nothing has come that was not read."""
        ...

    def close(self) -> None:
        """End it; the program sees a reset if it was still sending."""
        ...


class PortConnections:
    """One per replica. ``connect_port`` makes the runtime's sockets, by sandbox, incarnation and port; None if it makes none."""

    def __init__(self, agents: KeptConnections, connect_port: Callable[[str, str, int], Awaitable[socket.socket]] | None = None) -> None:
        self._agents = agents
        self._connect_port = connect_port
        self._sockets: Counter[str] = Counter()
        """How many there are into each sandbox."""
        self._idle: OrderedDict[PortConnection, float] = OrderedDict()
        """When each is closed, in the loop's time. The latest used last."""
        self._timer: asyncio.TimerHandle | None = None
        """For the one that was unused longest, or earlier: one for all, since most connections are used again at once."""
        self._of_key: dict[_Key, list[PortConnection]] = {}

    def kept(self, record: Record, port: int, host: str = "") -> PortConnection | None:
        """An idle connection to ``port``, if there is one; the caller returns it with ``give_back`` or closes it."""
        while waiting := self._of_key.get((record.sandbox_id, record.incarnation, port, host)):
            connection = waiting[-1]
            self._take(connection)
            if connection.reusable:
                connection.used_before = True
                return connection
            connection.close()
        return None

    async def open_socket(self, record: Record, port: int) -> PortConnection | None:
        """A new connection to ``port`` on a loopback address of the sandbox by a socket of the runtime's.

        None if it makes none, if there are too many, or if it could not reach the port: a tunnel will, or report why not.
        """
        name = record.sandbox_id
        if self._connect_port is None or self._sockets[name] >= _MOST_SOCKETS_OF_SANDBOX or self._sockets.total() >= _MOST_SOCKETS:
            return None
        self._sockets[name] += 1
        connection = SocketConnection((name, record.incarnation, port, ""), lambda: self._released(name))
        try:
            connected = await self._connect_port(name, record.incarnation, port)
            try:
                await connection.adopt(connected)
            except BaseException:
                connected.close()
                raise
        except (HoldfastError, OSError):
            connection.close()
            return None
        except BaseException:
            connection.close()
            raise
        return connection

    async def open_tunnel(self, record: Record, port: int, host: str = "") -> TunnelConnection:
        """A new connection to ``port`` on ``host`` (default: the sandbox's loopback addresses) through the sandbox's agent.

        Raises ``HoldfastError`` if the agent cannot be reached. Whether the program accepts it is what ``opened`` returns.
        """
        call, end = await self._agents.begin(record)
        try:
            call.open("tunnel", {"port": port, **({"host": host} if host else {})})
        except BaseException:
            end()
            raise
        return TunnelConnection((record.sandbox_id, record.incarnation, port, host), call, end)

    def give_back(self, connection: PortConnection) -> None:
        """Keep a connection whose last answer has ended, if it may carry another request; else close it."""
        kept = self._of_key.setdefault(connection.key, [])
        if not connection.reusable or len(kept) >= _MOST_OF_PORT:
            if not kept:
                del self._of_key[connection.key]
            connection.close()
            return
        if len(self._idle) >= _MOST:
            self._expire(next(iter(self._idle)))
        kept.append(connection)
        loop = asyncio.get_running_loop()
        self._idle[connection] = at = loop.time() + IDLE_S
        if self._timer is None:
            self._timer = loop.call_at(at, self._expire_unused)

    def close(self) -> None:
        """Close the idle connections."""
        for connection in list(self._idle):
            self._expire(connection)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _released(self, name: str) -> None:
        self._sockets[name] -= 1
        if not self._sockets[name]:
            del self._sockets[name]

    def _expire_unused(self) -> None:
        loop, self._timer = asyncio.get_running_loop(), None
        while self._idle:
            connection, at = next(iter(self._idle.items()))
            if at > loop.time():
                self._timer = loop.call_at(at, self._expire_unused)
                return
            self._expire(connection)

    def _expire(self, connection: PortConnection) -> None:
        self._take(connection)
        connection.close()

    def _take(self, connection: PortConnection) -> None:
        del self._idle[connection]
        kept = self._of_key[connection.key]
        kept.remove(connection)
        if not kept:
            del self._of_key[connection.key]
