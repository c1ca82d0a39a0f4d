"""Connections to agents that stay open for a moment after a REST request, so that later requests need not dial.

Owns how many are kept and for how long, and which may be used again. Dialling an agent, proving both identities and exchanging Hello and
Welcome take three round trips, which is most of the time of a small request. Concurrent requests to one sandbox share a connection. Losing
a connection loses nothing: any request can dial again. Called by ``oneoff``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from holdfast_wire.errors import HoldfastError

from gateway.model.records import Record

from .agent_call import AgentCall
from .agent_connection import AgentConnection
from .dial import Dialled

KEEP_S: Final = 10.0
"""How long an unused connection is kept."""
_MOST: Final = 512
"""Most connections kept; beyond that, the one that was unused longest is closed."""
_CALLS: Final = 64
"""Most requests that share a connection at a time; a further one has its own."""

_Key = tuple[str, str, str]


class _Kept:
    """A connection, how many requests use it, and its end when none does."""

    __slots__ = ("calls", "connection", "expiry")

    def __init__(self, connection: AgentConnection) -> None:
        self.connection = connection
        self.calls = 0
        self.expiry: asyncio.TimerHandle | None = None


class KeptConnections:
    """One per replica. ``dial`` reaches a sandbox's agent; it and the agent's greeting may take ``timeout_s`` each.

    If that fails, ``check`` is called with the owner and the name, and may raise a more specific error about the sandbox.
    """

    def __init__(
        self, dial: Callable[[Record], Awaitable[Dialled]], check: Callable[[str, str], Awaitable[object]], timeout_s: float
    ) -> None:
        self._dial = dial
        self._check = check
        self._timeout_s = timeout_s
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()
        """By sandbox, incarnation and endpoint; the latest used last. Unused ones have an ``expiry``."""
        self._closed = False

    def __len__(self) -> int:
        return len(self._kept)

    @contextlib.asynccontextmanager
    async def call(self, record: Record, *, own: bool = False) -> AsyncIterator[AgentCall]:
        """A request to the sandbox's agent. ``own``: on a connection that no other request uses. Raises ``HoldfastError``."""
        call, end = await self.begin(record, own=own)
        try:
            yield call
        finally:
            end()

    async def begin(self, record: Record, *, own: bool = False) -> tuple[AgentCall, Callable[[], None]]:
        """As ``call``, for a request that is over once the returned function was called."""
        key = (record.sandbox_id, record.incarnation, record.endpoint)
        used = None if own else await self._usable(key)
        if used is None:
            used = _Kept(AgentConnection(lambda: self._dial(record), self._timeout_s))
            used.calls = 1
            try:
                await used.connection.connect()
            except HoldfastError:
                await self._check(record.owner, record.name)
                raise
            if own or key in self._kept or not self._make_room():
                used.connection.retired = True
            else:
                self._kept[key] = used
        call = AgentCall(used.connection)

        def end() -> None:
            try:
                call.leave()
            finally:
                self._release(key, used)

        return call, end

    async def _usable(self, key: _Key) -> _Kept | None:
        kept = self._kept.get(key)
        if kept is None or kept.calls >= _CALLS:
            return None
        kept.calls += 1
        if kept.expiry is not None:
            kept.expiry.cancel()
            kept.expiry = None
        try:
            usable = not kept.connection.retired and kept.connection.error is None and await kept.connection.answers()
        except BaseException:
            self._release(key, kept)
            raise
        connection = kept.connection
        if not usable or connection.retired or connection.error is not None or self._kept.get(key) is not kept:
            kept.connection.retired = True
            self._release(key, kept)
            return None
        self._kept.move_to_end(key)
        return kept

    def _release(self, key: _Key, used: _Kept) -> None:
        used.calls -= 1
        retired = used.connection.retired or used.connection.error is not None or self._closed
        if retired and self._kept.get(key) is used:
            del self._kept[key]
        if used.calls:
            return
        if retired:
            used.connection.close()
        else:
            used.expiry = asyncio.get_running_loop().call_later(KEEP_S, self._drop, key)

    def _drop(self, key: _Key) -> None:
        self._kept.pop(key).connection.close()

    def _make_room(self) -> bool:
        """Whether one more connection may be kept; an unused one is closed to make room."""
        if self._closed:
            return False
        if len(self._kept) >= _MOST:
            unused = next((key for key, kept in self._kept.items() if kept.expiry is not None), None)
            if unused is None:
                return False
            self._expire_now(unused)
        return True

    def _expire_now(self, key: _Key) -> None:
        expiry = self._kept[key].expiry
        assert expiry is not None
        expiry.cancel()
        self._drop(key)

    def close(self) -> None:
        """Close the connections that no request uses, and each of the others after its last request."""
        self._closed = True
        for key in [key for key, kept in self._kept.items() if kept.expiry is not None]:
            self._expire_now(key)
