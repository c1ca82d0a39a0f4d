"""Connections to ports inside sandboxes, each a ``tunnel`` channel to the sandbox's agent, and the idle ones that HTTP may use again.

Owns how many idle connections are kept and for how long, and the end of each. The bytes are those of the program that listens: nothing here
reads them. They have agent connections of their own, so that a large answer does not delay commands. Called by ``faces.previews``.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from holdfast_wire.frames import Failed, Opened, Output

from gateway.model.records import Record

from .agent_call import AgentCall
from .kept_connections import KeptConnections

IDLE_S: Final = 4.0
"""How long an unused connection is kept: less than the five seconds after which common servers close theirs."""
_MOST_OF_PORT: Final = 8
_MOST: Final = 256
"""Most unused connections of one port, and of this replica; beyond that, the one that was unused longest is closed."""

_Key = tuple[str, str, int, str]


class PortConnection:
    """One connection. ``read`` and ``write`` may be used at the same time, each by one task; a cancelled ``read`` ends the connection."""

    def __init__(self, key: _Key, call: AgentCall, release: Callable[[], None]) -> None:
        self.key = key
        self.used_before = False
        """Whether it carried an earlier request: the program may have closed it at the moment it was used again."""
        self._call = call
        self._release = release
        self._facts = call.facts()
        self._ended = False
        self._closed = False

    async def opened(self) -> Failed | None:
        """Wait until the program has accepted the connection; the reason if it has not. Raises ``AgentCallError``."""
        fact = await anext(self._facts, None)
        return None if isinstance(fact, Opened) else fact if isinstance(fact, Failed) else Failed(self._call.number, {})

    async def read(self) -> bytes:
        """The next bytes, empty after the last. Raises ``AgentCallError``."""
        while not self._ended:
            fact = await anext(self._facts, None)
            if isinstance(fact, Output) and fact.data:
                return fact.data
            self._ended = True
        return b""

    async def write(self, data: bytes) -> None:
        """Send bytes within the agent's credit; without effect once the program has ended the connection. Raises ``AgentCallError``."""
        await self._call.write(data)

    @property
    def reusable(self) -> bool:
        """Whether it is open and nothing has come that was not read."""
        return not self._closed and not self._ended and self._call.quiet

    def close(self) -> None:
        """End it; the program sees a reset if it was still sending."""
        if not self._closed:
            self._closed = True
            try:
                self._call.detach()
            finally:
                self._release()


class PortConnections:
    """One per replica."""

    def __init__(self, agents: KeptConnections) -> None:
        self._agents = agents
        self._idle: OrderedDict[PortConnection, asyncio.TimerHandle] = OrderedDict()
        """The latest used last."""
        self._of_key: dict[_Key, list[PortConnection]] = {}

    async def connect(self, record: Record, port: int, host: str = "", *, fresh: bool = False) -> PortConnection:
        """A connection to ``port`` on ``host`` (default: the sandbox's loopback addresses), an idle one unless ``fresh``.

        Raises ``HoldfastError`` if the agent cannot be reached. Whether the program accepts a new one is what ``opened`` returns.
        """
        key = (record.sandbox_id, record.incarnation, port, host)
        while not fresh and (waiting := self._of_key.get(key)):
            connection = waiting[-1]
            self._take(connection)
            if connection.reusable:
                connection.used_before = True
                return connection
            connection.close()
        call, end = await self._agents.begin(record)
        try:
            call.open("tunnel", {"port": port, **({"host": host} if host else {})})
        except BaseException:
            end()
            raise
        return PortConnection(key, call, end)

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
        self._idle[connection] = asyncio.get_running_loop().call_later(IDLE_S, self._expire, connection)

    def close(self) -> None:
        """Close the idle connections."""
        for connection in list(self._idle):
            self._expire(connection)

    def _expire(self, connection: PortConnection) -> None:
        self._take(connection)
        connection.close()

    def _take(self, connection: PortConnection) -> None:
        self._idle.pop(connection).cancel()
        kept = self._of_key[connection.key]
        kept.remove(connection)
        if not kept:
            del self._of_key[connection.key]
