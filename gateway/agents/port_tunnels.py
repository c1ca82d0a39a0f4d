"""One connection to a port inside a sandbox as a ``tunnel`` channel to the sandbox's agent, which every runtime has.

Owns the channel's facts as bytes. Made by ``port_connections``.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast_wire.frames import Failed, Opened, Output

from .agent_call import AgentCall


class TunnelConnection:
    """See ``port_connections.PortConnection``. Also raises ``AgentCallError``."""

    def __init__(self, key: tuple[str, str, int, str], call: AgentCall, release: Callable[[], None]) -> None:
        self.key = key
        self.used_before = False
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
        return not self._closed and not self._ended and self._call.quiet

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            try:
                self._call.detach()
            finally:
                self._release()
