# Generated from ../_async by infra/scripts/generate_sync.py: edit that, then run `make generate`.
"""The lifecycle of a sandbox on the client's side: the service's record of it, and its deletion, extension and reset.

Owns whether the sandbox is deleted, and the warning about a sandbox that is left behind. Does not own what is closed with the session
(``attachable``) or the operations in a sandbox (``sandbox``, the only subclass).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Never, Self
from warnings import warn

from holdfast._arguments import LIFETIME_MOST_S, seconds_up_to
from holdfast._sync.attachable import Attachable, ClientParts
from holdfast._sync.images import image_name_of
from holdfast._changes import update_body
from holdfast._errors import SandboxLostError, UnsupportedError, from_map, gone
from holdfast._public import public
from holdfast._requests import network_body
from holdfast._results import SandboxInfo, ending
from holdfast._session_token import SessionToken
from holdfast._transport.threads.events import shielded


@public
class Lifecycle(Attachable):
    """The part of a sandbox object that handles the service's record and the end of the sandbox."""

    def __init__(self, client: ClientParts, sandbox_id: str, info: SandboxInfo | None, token: SessionToken | None) -> None:
        super().__init__(client, sandbox_id, token)
        self._info = info
        self._deleted = False
        self._made_here = info is not None
        self._owns_client = False
        self._request: dict[str, Any] | None = None
        """The request that created it, if this client did."""

    @property
    def sandbox_id(self) -> str:
        """The id, under the name that REST and ``SandboxInfo`` use."""
        return self.id

    def info(self) -> SandboxInfo:
        """The service's record of the sandbox. It is requested once; ``refresh`` requests it again."""
        return self._info or self.refresh()

    def refresh(self) -> SandboxInfo:
        """Request the service's current record of the sandbox.

        Raises ``SandboxNotFoundError``; for a sandbox that has ended it is a ``SandboxGoneError``, which has the reason.
        """
        try:
            self._info = self._rest.get(self.id)
        except SandboxLostError as lost:
            raise gone(lost) from None
        return self._info

    def change_network(self, network: Mapping[str, Any]) -> SandboxInfo:
        """Change what the sandbox may reach from now on; ``network`` is as in ``create_sandbox``.

        Raises ``UnsupportedError`` if the runtime cannot.
        """
        self._info = self._rest.change(self.id, "network", network_body(network))
        return self._info

    def set_lifetime(self, lifetime_s: float) -> SandboxInfo:
        """Set the sandbox's end to ``lifetime_s`` seconds from now, at most 366 days; this may be earlier or later than before."""
        given_s = seconds_up_to(LIFETIME_MOST_S, lifetime_s, "lifetime_s", "to end it now, call delete()")
        self._info = self._rest.change(self.id, "lifetime", {"lifetime_s": given_s})
        return self._info

    def extend(self, seconds: float) -> SandboxInfo:
        """Postpone the sandbox's end by ``seconds``. A sandbox without a lifetime is not changed."""
        given_s = seconds_up_to(LIFETIME_MOST_S, seconds, "seconds", "to end it sooner, call set_lifetime(), which counts from now")
        self._info = self._rest.change(self.id, "lifetime", {"extend_s": given_s})
        return self._info

    def update(
        self,
        *,
        labels: Mapping[str, str | None] | None = None,
        lifetime_s: float | None = None,
        idle_timeout_s: float | None = None,
        heartbeat_timeout_s: float | None = None,
    ) -> SandboxInfo:
        """Change labels and limits of the sandbox in one step; what is not given stays.

        ``labels`` are set beside the others; the value None removes one. ``lifetime_s`` counts from now. ``idle_timeout_s`` and
        ``heartbeat_timeout_s`` count from now, too; 0 removes the limit. Raises ``InvalidArgumentError``.
        """
        self._info = self._rest.update(self.id, update_body(labels, lifetime_s, idle_timeout_s, heartbeat_timeout_s))
        return self._info

    def session_token(self) -> str:
        """A token with which another client can take over this session (``client.take_over``).

        It is a secret: treat it like a password. It is valid as long as the session exists: up to 15 minutes without a connection, and not
        after a ``close`` while nothing was running.
        """
        session = (self._attached()).engine.session
        return SessionToken(self.id, session.session_id, session.secret, session.agent_epoch, self._resources.heartbeat_s).write()

    def keep_alive(self) -> None:
        """Report that the sandbox is still needed: its idle time and its heartbeat time-out start again from zero."""
        self._rest.heartbeat(self.id)

    def reset(self, to: str | None = None) -> SandboxInfo:
        """Delete the sandbox with everything in it, and create it again with the same id and arguments.

        ``to`` is another image to create it from, such as a snapshot. Returns when it is ready. Shells, processes, terminals, watches and
        tunnels from before raise ``SessionLostError`` with reason ``reset``; the lifetime starts again. Raises ``UnsupportedError`` if
        another client created the sandbox, and the errors of ``create_sandbox``, after which the sandbox no longer exists.
        """
        body = self._request
        if body is None:
            hint = "delete it and create it again; only an object that create_sandbox() returned knows the arguments"
            raise UnsupportedError("unsupported", f"sandbox {self.id} was not created by this client: it cannot be reset", hint=hint)
        self._check_own()
        self._check_not_deleted()
        with self._lock.own:  # requests that are made during this wait use the new session
            driver, self._driver = self._driver, None
            if driver is not None and driver.here:
                driver.perform(driver.engine.reset)
            self._resources.end(driver)
            self._rest.delete(self.id)
            image = {} if to is None else {"image": image_name_of(to, "to")}
            self._info, key = self._client._create(body | image | {"exist_ok": False}, shared=False)
            if self._deleted:  # another task or thread deleted the sandbox during the reset: it found the old one, or none
                shielded(self._client._forget, self.id, key)
                self._check_not_deleted()
            self._start_over()
        return self._info

    def _check_not_deleted(self) -> None:
        if self._deleted:
            message = f"sandbox {self.id!r} was deleted: it cannot be reset"
            raise SandboxLostError("sandbox_gone", message, hint="create a new sandbox")

    def _check_own(self) -> None:
        """Raise if another client has taken the session over: that client now owns the sandbox."""
        driver = self._driver
        if driver is not None and driver.engine.error is not None and self._fenced:
            raise from_map(driver.engine.error.to_map())

    def delete(self) -> bool:
        """Delete the sandbox with everything in it. Returns False if it no longer existed."""
        self._deleted = True
        return shielded(self._delete)

    def _delete(self) -> bool:
        self._let_go()
        try:
            return self._rest.delete(self.id)
        finally:
            self._close_own_client()

    def close(self) -> None:
        """End this client's session: named shells and detached commands live on, unnamed shells and tunnels end; the sandbox stays."""
        shielded(self._close)

    def _close(self) -> None:
        driver = self._driver
        if driver is not None and driver.engine.error is None and driver.here:
            self._resources.leave_shells(self._options.cancel_timeout_s)
        self._let_go()
        self._close_own_client()

    def _close_own_client(self) -> None:
        if self._owns_client:
            self._client.close()

    def _let_go(self) -> None:
        self._made_here = False
        self._client._in_use.discard(self)
        driver = self._driver
        if not self._fenced:  # the error stays: a new session from here would disturb the client that took over
            self._driver = None
        self._resources.end(driver)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._fenced:
            self.close()  # another client owns it now
        else:
            self.delete()

    def __reduce__(self) -> Never:
        raise TypeError("a sandbox object cannot be copied or pickled: pass its id, and call client.get_sandbox(id) there")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}{ending(self._info)}>"

    def __del__(self) -> None:
        if getattr(self, "_made_here", False) and not self._client._closed:
            lives = ending(self._info) or " until it is deleted"
            message = f"sandbox {self.id} was neither deleted nor closed and keeps running{lives}: use 'with'"
            warn(message, ResourceWarning, stacklevel=2)
