"""What happens in one sandbox, followed over as many connections to its agent as it takes.

Owns the channel ``activity``, its renewal from the last position, and the gaps where something may be missing. It waits for nothing in the
sandbox, and no client's session passes through it. ``activity_reports`` reads what the agent sends. Called by ``recordings`` and
``use_cases.followed``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import Closed, Failed, Opened, Output

from gateway.model.records import Record

from .activity_reports import Fact, ReportReader
from .agent_call import AgentCall
from .kept_connections import KeptConnections

ENDED: Final = frozenset({"sandbox_gone", "sandbox_not_found", "sandbox_failed"})
"""Errors after which there is nothing to follow."""
_PAUSES_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_EPOCH_CHARACTERS: Final = 64


class ActivityChannel:
    """Follows one incarnation of a sandbox. ``find`` is its record, and raises ``HoldfastError`` when it has none."""

    def __init__(
        self,
        connections: KeptConnections,
        find: Callable[[], Awaitable[Record]],
        *,
        incarnation: str,
        content: bool = False,
        usage_s: float | None = None,
        age_s: float | None = None,
        opened: Callable[[], None] = lambda: None,
    ) -> None:
        """``opened`` is called when the agent has begun to report, after each loss again."""
        self._connections = connections
        self._find = find
        self._incarnation = incarnation
        self._params: dict[str, Any] = {"content": content, "usage_s": usage_s}
        self._age_s = age_s
        self.epoch = ""
        self.position: int | None = None
        """The position of the last fact that was read, by the agent's journal ``epoch``."""
        self._opened = opened

    async def facts(self) -> AsyncIterator[list[Fact]]:
        """The facts as they come, until the sandbox ends. Raises the error of its end."""
        pauses = iter(_PAUSES_S)
        pause_s = _PAUSES_S[-1]
        while True:
            try:
                async for facts in self._connected():
                    pauses = iter(_PAUSES_S)
                    yield facts
            except HoldfastError as error:
                if error.code in ENDED:
                    raise
            pause_s = next(pauses, pause_s)
            await asyncio.sleep(pause_s)

    async def _connected(self) -> AsyncIterator[list[Fact]]:
        record = await self._find()
        if record.incarnation != self._incarnation:
            raise HoldfastError("sandbox_gone", f"sandbox {record.name!r} has ended, and its id is another sandbox's")
        call, end = await self._connections.begin(record, own=bool(self._params["content"]))
        try:
            async for facts in self._followed(call):
                yield facts
        finally:
            end()

    async def _followed(self, call: AgentCall) -> AsyncIterator[list[Fact]]:
        params = {name: value for name, value in self._params.items() if value is not None}
        if self.position is not None:
            params |= {"after": self.position, "epoch": self.epoch}
        elif self._age_s is not None:
            params["age_s"] = self._age_s
        call.open("activity", params)
        reader = ReportReader()
        async for fact in call.facts():
            if isinstance(fact, Opened):
                gaps = self._begun(fact.info)
                self._opened()
                if gaps:
                    yield gaps
            elif isinstance(fact, Output):
                facts = reader.feed(fact.data)
                for one in facts:
                    if one.get("n") is not None:
                        self.position = one["n"]
                if facts:
                    yield facts
            elif isinstance(fact, Closed | Failed):
                return

    def _begun(self, info: dict[str, Any]) -> list[Fact]:
        epoch, following = info.get("epoch"), info.get("next")
        continued = self.position is not None and epoch == self.epoch
        self.epoch = epoch[:_EPOCH_CHARACTERS] if isinstance(epoch, str) else ""
        self.position = following - 1 if type(following) is int and 0 < following < 2**53 else 0
        if info.get("missing") is True and not continued:
            return [{"type": "gap", "time": time.time(), "message": "the sandbox's agent no longer has all that happened before"}]
        return []
