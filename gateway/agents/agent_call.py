"""One REST request to a session agent, for which the client has no session.

Owns one channel of an ``AgentConnection``: opening it, its input within the agent's credit, its facts in order. The end of the channel is
acknowledged only on request, because the agent may discard a command's output after that. Called by ``oneoff`` and ``orchard.terminal``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Final

import msgpack
from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import AnyItem, Close, Closed, Exited, Fact, Failed, Output, Write
from holdfast_wire.limits import CONTROL_SLACK, DATA_BYTES, DECODE_ITEMS, MESSAGE_BYTES, PARAMS_BYTES

from .agent_connection import AgentConnection

_OPEN_BYTES: Final = MESSAGE_BYTES - 1024
"""Parameters up to this size fit a message."""
_WAITING_FACTS: Final = 2 * CONTROL_SLACK
"""Most facts that may wait for the caller; their bytes are limited by the channel's window (PROTOCOL §5)."""


class AgentCall:
    """One channel: call ``open``, then read ``facts``, and call ``leave`` in any case."""

    def __init__(self, connection: AgentConnection) -> None:
        self._connection = connection
        self._facts: deque[Fact] = deque()
        self._changed = asyncio.Event()
        """Set after an event that the caller may wait for: a fact, credit, a Pong, the end of the connection."""
        self._reads = False
        """Whether a task is reading facts."""
        self._end: Fact | None = None
        self._detached = False
        self.number = 0
        """The channel's number, once it was opened."""

    @property
    def ended(self) -> bool:
        """The channel's last fact has come."""
        return self._end is not None

    @property
    def quiet(self) -> bool:
        """The channel is open, and no fact of it waits to be read."""
        return self._end is None and not self._facts and self._connection.error is None

    def open(self, kind: str, params: dict[str, Any]) -> None:
        """Open the channel, once. Raises ``AgentCallError``."""
        self.number = self._connection.open(self, kind, params)

    def begin(self, kind: str, params: dict[str, Any]) -> bytes:
        """As ``open``, also for parameters that are larger than a message: those are returned and must be written first (PROTOCOL §7.8)."""
        packed: bytes = msgpack.packb(params)
        items = max([len(value) for value in params.values() if isinstance(value, list | dict)], default=0)
        if len(packed) <= _OPEN_BYTES and items <= DECODE_ITEMS:
            self.open(kind, params)
            return b""
        if len(packed) > PARAMS_BYTES:
            message = f"the command and its variables have {len(packed)} bytes; the limit is {PARAMS_BYTES}"
            raise HoldfastError("arguments_too_long", message)
        self.open(kind, {"packed": len(packed)})
        return packed

    def send(self, item: AnyItem) -> None:
        """Queue an imperative, unless the channel has ended.

        Bytes need credit. It is sent when the request waits for facts, or soon after.
        """
        if self._end is None:
            self._connection.send(item)

    def detach(self) -> None:
        """Stop reading; the command continues to run."""
        self.send(Close(self.number, detach=True))
        self._detached = True

    async def write(self, data: bytes, *, eof: bool = False) -> None:
        """Send bytes within the agent's credit, with ``eof`` the end of input after them. Stops early when the channel has ended.

        Raises ``AgentCallError``.
        """
        view = memoryview(data)
        if eof and not view:
            self.send(Write(self.number, b"", eof=True))
        while view and self._end is None:
            piece = view[: min(DATA_BYTES, self._connection.room(self.number))]
            if piece:
                view = view[len(piece) :]
                self.send(Write(self.number, bytes(piece), eof=eof and not view))
                if view:
                    self._connection.flush()
            elif len(self._facts) > _WAITING_FACTS and not self._reads:
                self._connection.broke_protocol("it sent too many messages without granting credit")
                await self._wait()
            else:
                await self._wait()

    async def facts(self) -> AsyncIterator[Fact]:
        """Every fact of the channel, up to and including its last; credit for output is returned when it is read.

        Raises ``AgentCallError``.
        """
        self._reads = True
        while True:
            while self._facts:
                fact = self._facts.popleft()
                self._connection.taken(self.number, len(fact.data) if type(fact) is Output else 0, len(self._facts))
                yield fact
            if self._end is not None:
                return
            await self._wait()

    async def settled(self) -> list[Fact]:
        """The facts so far: up to the channel's last, or all that the agent has to report at the moment.

        A Pong may overtake facts that the agent has queued, but not facts that were sent with the previous Pong; therefore two pings are
        needed.
        """
        for _ in range(2):
            number = self._connection.ping()
            while self._end is None and not self._connection.ponged(number):
                if len(self._facts) > _WAITING_FACTS:  # no more facts are read
                    self._connection.broke_protocol("it sent too many messages that were not requested")
                if await self._wait():
                    number = self._connection.ping()  # the connection was resumed: Pongs of the previous connection do not arrive
        facts = list(self._facts)
        self._facts.clear()
        return facts

    def acknowledge(self) -> None:
        """Report that all facts have arrived: the agent may discard the output, and after five minutes the record."""
        if self._end is not None:
            self._connection.acknowledge(self.number)

    def leave(self) -> None:
        """The request is over.

        A command that has not ended continues to run; a channel that has ended and will not be read again is acknowledged.
        """
        if not self.number:
            return
        if isinstance(self._end, Closed | Failed):
            self.acknowledge()
        detached = self._detached
        if self._end is None and not detached:
            with contextlib.suppress(HoldfastError):  # an agent that grants no credit cannot be sent a Close: the connection is retired
                self.detach()
        self._connection.leave(self.number, detached=detached)

    # What the connection reports ------------------------------------------------------------------------------------

    def take(self, fact: Fact) -> bool:
        self._facts.append(fact)
        if isinstance(fact, Exited | Closed | Failed):
            self._end = fact
        self._changed.set()
        return len(self._facts) > _WAITING_FACTS

    def wake(self) -> None:
        self._changed.set()

    async def _wait(self) -> bool:
        """Wait for a fact, credit or a Pong. True when the connection broke and was resumed. Raises its error if it cannot be resumed."""
        if self._connection.error is not None:
            await self._connection.resume()
            return True
        self._connection.flush_queued()
        self._changed.clear()
        await self._changed.wait()
        return False
