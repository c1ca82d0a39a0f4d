"""What a sandbox object has open beside its session, shells, tunnels and heartbeats, and the order in which it ends.

Owns the task of the heartbeats. Does not own the session (``attachable``), nor whether the sandbox is deleted (``sandbox``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from holdfast._async.rest import LEAST_BEAT_S, AsyncRest
from holdfast._async.shell import AsyncShell
from holdfast._errors import ClientClosedError, HoldfastError
from holdfast._transport.aio.driver import SessionDriver
from holdfast._transport.aio.events import Background, Event
from holdfast._transport.session.failures import GONE


class AsyncLifetime:
    """From the first use of a sandbox object to its end; another begins in another process or event loop, and after a reset."""

    def __init__(self, rest: AsyncRest, sandbox_id: str, fenced: Callable[[], bool]) -> None:
        self.heartbeat_s: float | None = None
        """The interval of the heartbeats, where they are sent."""
        self.shells: set[AsyncShell] = set()
        self.tunnels: set[Any] = set()
        """Of ``AsyncTunnel``, whose module imports that of the sandbox's session, which imports this one."""
        self._rest = rest
        self._id = sandbox_id
        self._fenced = fenced
        self._background = Background()
        self._stopped = Event()

    def beat(self, interval_s: float) -> None:
        """Send heartbeats from now on."""
        self.heartbeat_s = interval_s
        self._background.start(self._beat, interval_s, name=f"holdfast-heartbeat-{self._id}")

    async def _beat(self, interval_s: float) -> None:
        """Send heartbeats. The service expects further ones only after the first, which is sent at once."""
        while not self._fenced():
            try:
                await self._rest.heartbeat(self._id, max(interval_s, LEAST_BEAT_S), used=False)
            except ClientClosedError:
                return
            except HoldfastError as why:
                if why.code in GONE:
                    return
            if await self._stopped.wait(interval_s):
                return

    async def leave_shells(self, limit_s: float) -> None:
        """End the shells, and leave those with a name running; waits for all of them together, however many there are."""
        end = time.monotonic() + limit_s
        for changed in [shell._leave(shell.named) for shell in self.shells]:
            await changed.wait(max(end - time.monotonic(), 0.0))

    async def end(self, driver: SessionDriver | None) -> None:
        """Stop the heartbeats, close the tunnels and the session. What another process opened is left to it."""
        self._stopped.set()
        if driver is None or driver.here:
            for tunnel in list(self.tunnels):
                await tunnel.close()
        if driver is not None:
            await driver.close()
        await self._background.stop()
