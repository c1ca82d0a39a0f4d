"""The principal of a request: its owner, its key, and the scopes it has.

Owns the names of the scopes and the refusal of a request without the scope of its route. ``gateway.app`` sets the principal once for each
request; handlers pass it on to the use cases.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Protocol

from holdfast_wire.errors import HoldfastError


class Scope(StrEnum):
    """What a route requires of a key."""

    READ = "read"
    """Look at sandboxes, groups, jobs, images, events and recordings."""
    CREATE = "create"
    """Create, change and delete sandboxes and groups."""
    EXEC = "exec"
    """Sessions, commands, terminals, tunnels, previews and ports that the sandbox listens on."""
    FILES = "files"
    """Read and write files outside of sessions."""
    IMAGES = "images"
    """Import, pull and remove images."""
    ADMIN = "admin"
    """Act for other owners (``Principal.acting_for``)."""


OWNER: Final = re.compile(r"[A-Za-z0-9._@-]{1,64}")
"""The form of an owner."""
DEFAULT_SCOPES: Final = frozenset(Scope) - {Scope.ADMIN}
"""Of a key whose line names none."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who sends a request."""

    owner: str
    """Whose sandboxes these are. Another owner's are indistinguishable from those that do not exist."""
    key_id: str = ""
    """Names the key in logs and records; it reveals nothing about the key."""
    project: str = ""
    """The part of the owner that the key is limited to; "" for all."""
    scopes: frozenset[Scope] = DEFAULT_SCOPES

    def require(self, scope: Scope) -> None:
        """Raises HoldfastError ``scope_missing`` if the key does not have the scope."""
        if scope not in self.scopes:
            message = f"the API key of the request does not have the scope {scope.value!r}"
            raise HoldfastError("scope_missing", message, detail={"scope": scope.value})

    def acting_for(self, owner: str) -> Principal:
        """The same key in the place of another owner. Raises ``scope_missing`` if it is no operator's, and ``invalid_argument``."""
        if owner == self.owner:
            return self
        self.require(Scope.ADMIN)
        if not OWNER.fullmatch(owner):
            raise HoldfastError("invalid_argument", f"{owner[:100]!r} cannot be an owner", hint="1 to 64 letters, digits and . _ @ -")
        return replace(self, owner=owner)


class Identities(Protocol):
    """Where keys are looked up: the keys file, or another provider (stored keys, tokens of an identity provider)."""

    async def principal_of(self, key: str | None) -> Principal:
        """The principal of a key. Raises HoldfastError ``key_missing`` or ``key_invalid``."""
        ...

    async def principal_of_digest(self, digest: str) -> Principal:
        """The principal of the key with this SHA-256. Raises HoldfastError ``key_invalid``."""
        ...
