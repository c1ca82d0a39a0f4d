"""What a sandbox reaches its agent by: one link, attached when first needed, or REST where WebSockets do not pass.

Owns when a link is made, replaced or left to another process, and the choice between session and REST. Does not own the link's inside
(``_transport``) nor what is done over it (``sandbox``, its only subclass).
"""

from __future__ import annotations

from holdfast._async.rest import AsyncRest
from holdfast._errors import HoldfastError, ServiceUnavailableError, UnsupportedError, from_map
from holdfast._options import Options
from holdfast._public import public
from holdfast._session_token import SessionToken
from holdfast._transport.aio import Link, Lock
from holdfast._transport.command_call import GONE
from holdfast._transport.engine import elsewhere


@public
class AsyncAttachable:
    """The part of a sandbox that is its session."""

    def __init__(self, rest: AsyncRest, options: Options, sandbox_id: str, token: SessionToken | None) -> None:
        self.id = sandbox_id
        self._rest = rest
        self._options = options
        self._token = token
        self._link: Link | None = None
        self._lock = Lock()
        self._by_rest = options.transport == "rest"

    def _in_use_now(self) -> None:
        """A link is attached: closing the client closes this too."""
        raise NotImplementedError

    def _start_over(self) -> None:
        """This is another process or event loop than before: what ran for the sandbox runs there."""
        raise NotImplementedError

    @property
    def _fenced(self) -> bool:
        """Whether another client took the session over."""
        why = self._link.engine.error if self._link is not None else None
        return why is not None and why.code == "session_fenced"

    async def _attached(self) -> Link:
        """The link, attached. A session that expired is replaced by a new one; what is gone or taken over stays so."""
        link = self._link
        if link is not None and link.engine.error is None and link.here:
            return link
        if self._by_rest:
            raise UnsupportedError(
                "unsupported", "this needs a session, and only REST is in use", hint="WebSockets must reach the service for it"
            )
        async with self._lock.own:
            link = self._link
            if link is not None and not link.here:
                if not link.left_behind:
                    raise elsewhere()
                link = self._link = None  # it belongs to the other process; this one makes a session of its own
                self._start_over()
            if link is not None and link.engine.error is not None:
                if link.engine.error.code in GONE or self._fenced:
                    raise from_map(link.engine.error.to_map())
                await link.close()
                link = self._link = None
            if link is None:
                token, self._token = self._token, None
                link = await self._begun(token)
                self._link = link
                self._in_use_now()
        return link

    async def _begun(self, token: SessionToken | None) -> Link:
        """A link that is attached. Raises why there is none; where only REST gets through, that is chosen for good."""
        link = Link(self._options, self.id, token)
        try:
            await link.start()
        except HoldfastError:
            if self._options.transport != "auto" or not link.engine.not_holdfast:
                raise
            if not link.engine.blocked:
                # Connections that end without an answer: something that swallows WebSockets, or an outage. A REST request shows which.
                if not await self._answers_rest():
                    raise
                link = Link(self._options, self.id, token)
                try:
                    await link.start()
                except HoldfastError:
                    self._by_rest = link.engine.not_holdfast
                    raise
                return link
            self._by_rest = True
            raise
        return link

    async def _answers_rest(self) -> bool:
        try:
            await self._rest.get(self.id)
        except HoldfastError as why:
            return not isinstance(why, ServiceUnavailableError)
        return True

    async def _fallback(self) -> AsyncRest | None:
        """The REST client, where that is chosen or WebSockets do not pass; None where a session is."""
        if self._link is None and not self._by_rest:
            try:
                await self._attached()
            except HoldfastError:
                if not self._by_rest:
                    raise
        return self._rest if self._by_rest else None
