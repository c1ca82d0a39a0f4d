"""What is in use with which key: requests, sessions, streams and previews that this replica serves at the moment.

Owns the registry, and ends what a key no longer permits: a key that is revoked, expires, or is removed from the keys file takes its open
sessions, streams and previews with it. The check looks at what the replica knows, so it costs nothing per command. Called by
``gateway.app`` around each handler.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from holdfast_wire.errors import HoldfastError

from gateway.identity.limits import Limits
from gateway.identity.principal import Principal, Scope

_ENDED: Final = "the API key of the request was revoked, has expired, or has lost a right"


class Use:
    """One request in progress: the principal of its key, the scope that it needs, and the owner and project that it names."""

    __slots__ = ("ended", "facts", "limits", "on_end", "owner", "principal", "project", "scope", "task")

    def __init__(self, principal: Principal, scope: Scope, owner: str | None, project: str | None) -> None:
        self.principal = principal
        self.scope = scope
        self.owner = owner
        self.project = project
        self.task = asyncio.current_task()
        self.ended = False
        self.limits: Sequence[tuple[str, Limits]] = ()
        """What holds for it, if an operator has set limits."""
        self.facts: dict[str, Any] = {}
        """What the handler adds to its entry in the audit log."""
        self.on_end: Callable[[], object] | None = None
        """Ends it in place of the cancellation of its task."""

    def end(self) -> None:
        """End the request. It may have begun its answer, or be a connection that was taken over."""
        self.ended = True
        if self.on_end is not None:
            self.on_end()
        elif self.task is not None:
            self.task.cancel()


class Uses:
    """All of one replica. ``admit`` raises where a key no longer permits what it once did."""

    def __init__(self, admit: Callable[[Use], None]) -> None:
        self._admit = admit
        self._uses: set[Use] = set()

    def __len__(self) -> int:
        return len(self._uses)

    def add(self, use: Use) -> None:
        self._uses.add(use)

    def discard(self, use: Use) -> None:
        self._uses.discard(use)

    def check(self) -> int:
        """End every use that its key no longer permits; returns how many. Keys are asked once each, not once for each use."""
        asked: dict[tuple[str, Scope, str, str | None, str | None], bool] = {}
        ended = 0
        for use in list(self._uses):
            principal = use.principal
            if not principal.credential:
                continue
            question = (principal.credential, use.scope, principal.owner, use.owner, use.project)
            permitted = asked.get(question)
            if permitted is None:
                permitted = asked[question] = self._permits(use)
            if not permitted:
                self._uses.discard(use)
                use.end()
                ended += 1
        return ended

    def _permits(self, use: Use) -> bool:
        try:
            self._admit(use)
        except HoldfastError:
            return False
        return True


def ended_error() -> HoldfastError:
    """The error of a request that was ended because its key no longer permits it."""
    return HoldfastError("key_invalid", _ENDED)
