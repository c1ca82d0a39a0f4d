"""How a sandbox object reaches its agent: by a session that is attached when first needed, or by REST where WebSockets are blocked.

Owns when a driver is made, replaced or left to another process, and the choice between session and REST. Does not own the driver
(``_transport``) nor the operations over it (``sandbox``, its only subclass).
"""

from __future__ import annotations

from holdfast._async.rest import AsyncRest
from holdfast._errors import HoldfastError, ServiceUnavailableError, UnsupportedError, from_map
from holdfast._options import Options
from holdfast._public import public
from holdfast._session_token import SessionToken
from holdfast._transport.aio.driver import SessionDriver
from holdfast._transport.aio.events import Lock
from holdfast._transport.session.engine import elsewhere
from holdfast._transport.session.failures import GONE


@public
class AsyncAttachable:
    """The part of a sandbox that is its session."""

    def __init__(self, rest: AsyncRest, options: Options, sandbox_id: str, token: SessionToken | None) -> None:
        self.id = sandbox_id
        self._rest = rest
        self._options = options
        self._token = token
        self._driver: SessionDriver | None = None
        self._lock = Lock()
        self._by_rest = options.transport == "rest"

    def _in_use_now(self) -> None:
        """A driver is attached: closing the client closes this too."""
        raise NotImplementedError

    def _start_over(self) -> None:
        """Begin anew in this process or event loop: background work of the former one does not run here."""
        raise NotImplementedError

    @property
    def _fenced(self) -> bool:
        """Whether another client took the session over."""
        why = self._driver.engine.error if self._driver is not None else None
        return why is not None and why.code == "session_fenced"

    async def _attached(self) -> SessionDriver:
        """The driver, attached. A session that expired is replaced by a new one; what is gone or taken over stays so."""
        driver = self._driver
        if driver is not None and driver.engine.error is None and driver.here:
            return driver
        if self._by_rest:
            raise UnsupportedError(
                "unsupported", "this needs a session, and only REST is in use", hint="WebSockets must reach the service for it"
            )
        async with self._lock.own:
            driver = self._driver
            if driver is not None and not driver.here:
                if not driver.left_behind:
                    raise elsewhere()
                driver = self._driver = None  # it belongs to the other process; this one makes a session of its own
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
                self._in_use_now()
        return driver

    async def _begun(self, token: SessionToken | None) -> SessionDriver:
        """A driver that is attached. Raises why there is none; where only REST gets through, that is chosen for good."""
        driver = SessionDriver(self._options, self.id, token)
        try:
            await driver.start()
        except HoldfastError:
            if self._options.transport != "auto" or not driver.engine.not_holdfast:
                raise
            if not driver.engine.blocked:
                # Connections that end without an answer: something that swallows WebSockets, or an outage. A REST request shows which.
                if not await self._answers_rest():
                    raise
                driver = SessionDriver(self._options, self.id, token)
                try:
                    await driver.start()
                except HoldfastError:
                    self._by_rest = driver.engine.not_holdfast
                    raise
                return driver
            self._by_rest = True
            raise
        return driver

    async def _answers_rest(self) -> bool:
        try:
            await self._rest.get(self.id)
        except HoldfastError as why:
            return not isinstance(why, ServiceUnavailableError)
        return True

    async def _fallback(self) -> AsyncRest | None:
        """The REST client, where that is chosen or WebSockets do not pass; None where a session is."""
        if self._driver is None and not self._by_rest:
            try:
                await self._attached()
            except HoldfastError:
                if not self._by_rest:
                    raise
        return self._rest if self._by_rest else None
