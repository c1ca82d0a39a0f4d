"""A channel without a session: records the frames of a handler, checks its credit and the legal order of facts.

Owns `FakeChannel`, `SilentConnection` and `serve`, for testing the agent's handlers directly on real files and sockets. The credit
check and the table of facts are those of the real session, so a handler that passes here cannot break the protocol there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import Closed, Fact, Failed, Opened, Output
from holdfast_wire.limits import DATA_BYTES, WINDOW_BYTES
from holdfast_wire.session.channels import State, next_state

from session_agent.agent.output.read_ahead import ReadAheadQuota
from session_agent.agent.output.records import Records
from session_agent.agent.settings import AgentSettings

DEADLINE_S = 60.0


class Context:
    """The part of the agent's context that file channels use."""

    def __init__(self, workdir: str, user: str = "") -> None:
        self.workdir = workdir
        self.read_ahead = ReadAheadQuota()
        self.records = Records()
        self.settings = AgentSettings(sandbox_id="s", token="t", user=user)


class SilentConnection:
    """A connection of a session that transmits nothing."""

    def wake(self, *, now: bool) -> None: ...
    def fence(self) -> None: ...


class FakeChannel:
    """One channel whose client reads at once (`reading`), or only when `read` is called."""

    number = 7

    def __init__(self, kind: str, params: dict[str, Any], *, window: int = WINDOW_BYTES, reading: bool = True, keep: bool = True) -> None:
        self.kind = kind
        self.params = params
        self.attached = True
        self.facts: list[Fact] = []
        self.output = bytearray()
        self.output_bytes = 0
        self.consumed = 0
        self.handler: Any = None
        self.ended = asyncio.Event()
        self.heard = asyncio.Event()
        self._state = State.OPENING
        self._window = window
        self._unread = 0
        self._reading = reading
        self._keep = keep
        self._input_waits: asyncio.Event = asyncio.Event()

    def send(self, fact: Fact) -> None:
        self._state = next_state(self.kind, self._state, fact)
        if isinstance(fact, Output):
            assert len(fact.data) <= min(DATA_BYTES, self.room()), "a handler sent more than its credit"
            self.output_bytes += len(fact.data)
            if self._keep:
                self.output += fact.data
            self._unread += len(fact.data)
            if self._reading and self._unread > self._window // 2:
                asyncio.get_running_loop().call_soon(self.read)
        if self._keep or not isinstance(fact, Output):
            self.facts.append(fact)
        self.heard.set()
        if isinstance(fact, Closed | Failed):
            self.ended.set()
            self._input_waits.set()

    def queue(self, fact: Fact) -> None:
        self.send(fact)

    def wake(self) -> None: ...

    def room(self) -> int:
        return self._window - self._unread

    @property
    def is_memory_full(self) -> bool:
        return False

    @property
    def settled(self) -> bool:
        return True

    def consume(self, size_bytes: int) -> None:
        self.consumed += size_bytes
        self._input_waits.set()

    def read(self) -> None:
        """The client reads all output, which returns the credit."""
        self._unread = 0
        if not self.ended.is_set():
            self.handler.writable()

    async def write(self, data: bytes, *, eof: bool = False, piece: int = DATA_BYTES) -> None:
        """Send input as a client would: in pieces, never beyond the window."""
        sent = 0
        start = self.consumed
        while sent < len(data) and not self.ended.is_set():
            while sent - (self.consumed - start) + piece > max(self._window, piece) and not self.ended.is_set():
                self._input_waits.clear()
                async with asyncio.timeout(DEADLINE_S):
                    await self._input_waits.wait()
            self.handler.write(data[sent : sent + piece], False)
            sent += piece
        if eof and not self.ended.is_set():
            self.handler.write(b"", True)

    async def used(self, size_bytes: int) -> None:
        """Wait until the handler has used that much input."""
        async with asyncio.timeout(DEADLINE_S):
            while self.consumed < size_bytes:
                self._input_waits.clear()
                await self._input_waits.wait()

    async def end(self) -> Fact:
        """Wait for the final fact and return it."""
        async with asyncio.timeout(DEADLINE_S):
            await self.ended.wait()
        return self.facts[-1]

    async def opened(self) -> dict[str, Any]:
        """The info of Opened."""
        info: dict[str, Any] = (await self.fact(Opened)).info
        return info

    async def fact(self, kind: type[Any]) -> Any:
        """Wait for the first fact of a kind and return it."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                for fact in self.facts:
                    if isinstance(fact, kind):
                        return fact
                assert not self.ended.is_set(), self.facts[-1]
                self.heard.clear()
                await self.heard.wait()

    async def result(self) -> dict[str, Any]:
        """The result in Closed; fails the test on Failed."""
        last = await self.end()
        assert isinstance(last, Closed), last
        return last.result

    async def error(self) -> dict[str, Any]:
        """The error in Failed; fails the test on Closed."""
        last = await self.end()
        assert isinstance(last, Failed), last
        return last.error


def serve(factory: Callable[..., Any], kind: str, workdir: object, params: dict[str, Any], user: str = "", **options: Any) -> FakeChannel:
    """Open a channel the way the session does: an error of the factory is a Failed. ``options`` are those of the channel, or it itself."""
    channel: FakeChannel = options.pop("channel", None) or FakeChannel(kind, params, **options)
    try:
        channel.handler = factory(Context(str(workdir), user), channel)
    except HoldfastError as error:
        channel.send(Failed(channel.number, error.to_map()))
    return channel
