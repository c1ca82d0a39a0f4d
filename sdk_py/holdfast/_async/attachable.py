"""How a sandbox object reaches its agent: by a session that is attached when first needed, or by REST if WebSockets are blocked.

Owns when a driver is created, replaced or left to another process, the choice between session and REST, and the order in which the shells,
tunnels and connections of a sandbox object are closed. Does not own the driver (``_transport``), the sandbox's record and end
(``lifecycle``), nor the operations over a session (``sandbox``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from holdfast._async.rest import LEAST_BEAT_S, AsyncRest
from holdfast._async.shell import AsyncShell
from holdfast._errors import ClientClosedError, HoldfastError, ServiceUnavailableError, UnsupportedError, from_map
from holdfast._options import Options
from holdfast._public import public
from holdfast._results import SandboxInfo
from holdfast._session_token import SessionToken
from holdfast._transport.aio.driver import SessionDriver
from holdfast._transport.aio.events import Background, Event, Lock
from holdfast._transport.session.engine import wrong_process_error
from holdfast._transport.session.failures import GONE


class AsyncClientParts(Protocol):
    """What a sandbox object uses of its client, whose own module imports this one."""

    _rest: AsyncRest
    _options: Options
    _in_use: set[Any]
    """What is closed together with the client."""

    @property
    def _closed(self) -> bool: ...

    async def _create(self, body: dict[str, Any], *, shared: bool) -> tuple[SandboxInfo, str]: ...

    async def _forget(self, sandbox_id: str, key: str, status: str = "") -> None: ...

    async def close(self) -> None: ...


class AsyncResources:
    """The shells, tunnels and heartbeats of a sandbox object.

    A new object is created in another process or event loop, and after a reset.
    """

    def __init__(self, rest: AsyncRest, sandbox_id: str, fenced: Callable[[], bool]) -> None:
        self.heartbeat_s: float | None = None
        """The interval of the heartbeats; None if none are sent."""
        self.shells: set[AsyncShell] = set()
        self.tunnels: set[Any] = set()
        """The open tunnels and listeners (``AsyncTunnel``, ``AsyncListener``, whose modules import this one)."""
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
        """Send heartbeats, the first one at once."""
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

    def query_end(self, driver: SessionDriver) -> None:
        """Query the service's record: the sandbox's agent reports its end. Called in a step of the driver."""
        self._background.start(self._answer_end, driver, name=f"holdfast-end-{self._id}")

    async def _answer_end(self, driver: SessionDriver) -> None:
        driver.perform(driver.engine.answered, await self._rest.end_of(self._id, self._stopped))

    async def leave_shells(self, limit_s: float) -> None:
        """End the shells without a name, and detach from the others. Waits for all of them at the same time."""
        end = time.monotonic() + limit_s
        for changed in [shell._leave(shell.named) for shell in self.shells]:
            await changed.wait(max(end - time.monotonic(), 0.0))

    async def end(self, driver: SessionDriver | None) -> None:
        """Stop the heartbeats and close the tunnels and the session, except for what another process has opened."""
        self._stopped.set()
        if driver is None or driver.here:
            for tunnel in list(self.tunnels):
                await tunnel.close()
        if driver is not None:
            await driver.close()
        await self._background.stop()


@public
class AsyncAttachable:
    """The part of a sandbox that is its session."""

    def __init__(self, client: AsyncClientParts, sandbox_id: str, token: SessionToken | None) -> None:
        self.id = sandbox_id
        self._client: AsyncClientParts = client
        self._rest = client._rest
        self._options = client._options
        self._token = token
        self._driver: SessionDriver | None = None
        self._lock = Lock()
        self._by_rest = self._options.transport == "rest"
        self._resources = self._new_resources()

    def _new_resources(self) -> AsyncResources:
        return AsyncResources(self._rest, self.id, lambda: self._fenced)

    def _heartbeat(self, interval_s: float) -> None:
        self._client._in_use.add(self)
        self._resources.beat(interval_s)

    def _start_over(self) -> None:
        """Begin anew in this process or event loop: background work of the former one does not run here."""
        former, self._resources = self._resources, self._new_resources()
        if former.heartbeat_s is not None:
            self._heartbeat(former.heartbeat_s)

    @property
    def _fenced(self) -> bool:
        """Whether another client has taken the session over."""
        why = self._driver.engine.error if self._driver is not None else None
        return why is not None and why.code == "session_fenced"

    async def _attached(self) -> SessionDriver:
        """The attached driver.

        An expired session is replaced by a new one; a session that was taken over, or whose sandbox is gone, is not.
        """
        driver = self._driver
        if driver is not None and driver.engine.error is None and driver.here:
            return driver
        self._rest.check_open()
        if self._by_rest:
            raise UnsupportedError(
                "unsupported", "this operation needs a session, and this client uses only REST", hint="let WebSockets reach the service"
            )
        async with self._lock.own:
            driver = self._driver
            if driver is not None and not driver.here:
                if not driver.left_behind:
                    raise wrong_process_error()
                driver = self._driver = None  # it belongs to the other process; this one opens a session of its own
                self._start_over()
            if driver is not None and driver.engine.error is not None:
                if driver.engine.error.code in GONE or self._fenced:
                    raise from_map(driver.engine.error.to_map())
                await driver.close()
                driver = self._driver = None
            if driver is None:
                token, self._token = self._token, None
                driver = await self._begun(token)
                self._driver = driver
                self._client._in_use.add(self)
                if self._rest.closed:  # during the attach: closing the client did not find this driver
                    await driver.close()
                    self._rest.check_open()
        return driver

    async def _begun(self, token: SessionToken | None) -> SessionDriver:
        """Attach a new driver. Raises the reason if that fails; if only REST reaches the service, REST is used from then on."""
        answered = False
        while True:
            driver = SessionDriver(self._options, self.id, token)
            driver.engine.query = partial(self._resources.query_end, driver)
            try:
                await driver.start()
                return driver
            except HoldfastError:
                if self._options.transport != "auto" or not driver.engine.not_holdfast:
                    raise
                self._by_rest = answered or driver.engine.blocked
                # Connections that end without an answer: something that swallows WebSockets, or an outage. A REST request shows which.
                if self._by_rest or not await self._answers_rest():
                    raise
                answered = True

    async def _answers_rest(self) -> bool:
        try:
            await self._rest.get(self.id)
        except HoldfastError as why:
            return not isinstance(why, ServiceUnavailableError)
        return True

    async def _fallback(self) -> AsyncRest | None:
        """The REST client if REST was chosen or WebSockets are blocked; None if a session is used."""
        if self._driver is None and not self._by_rest:
            try:
                await self._attached()
            except HoldfastError:
                if not self._by_rest:
                    raise
        return self._rest if self._by_rest else None
