"""The principal of a request: its owner, its key, and the scopes it has.

Owns the names of the scopes and the refusal of a request without the scope of its route. ``gateway.app`` sets the principal once for each
request; handlers pass it on to the use cases.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
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
    """Act for other owners (``tenants.Tenants.acting``), and manage keys, projects and limits."""


OWNER: Final = re.compile(r"[A-Za-z0-9._@-]{1,64}")
"""The form of an owner."""
PROJECT: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
"""The form of a project."""
_BETWEEN: Final = "+"
"""Between owner and project in a namespace: neither contains it."""
DEFAULT_SCOPES: Final = frozenset(Scope) - {Scope.ADMIN}
"""Of a key whose line names none."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who sends a request."""

    owner: str
    """Whose sandboxes these are: an owner, or the part of an owner in a project (``space_of``). What belongs to another one is
    indistinguishable from what does not exist."""
    key_id: str = ""
    """Names the key in logs and records; it reveals nothing about the key."""
    project: str = ""
    """The project; "" for what the owner has outside of all projects."""
    scopes: frozenset[Scope] = DEFAULT_SCOPES
    credential: str = ""
    """The SHA-256 of the key, by which ``Identities.current`` knows whether it is still valid; "" if that cannot be asked."""

    bound: bool = False
    """Whether it is of a signed link or token, which acts for ``owner`` and nobody else, whatever its key may do."""

    @property
    def member(self) -> str:
        """The owner without the project."""
        return member_of(self.owner)

    def require(self, scope: Scope) -> None:
        """Raises HoldfastError ``scope_missing`` if the key does not have the scope."""
        if scope not in self.scopes:
            message = f"the API key of the request does not have the scope {scope.value!r}"
            raise HoldfastError("scope_missing", message, detail={"scope": scope.value})


def space_of(owner: str, project: str) -> str:
    """What names, groups, images and recordings of an owner in a project belong to; the owner itself without a project."""
    return f"{owner}{_BETWEEN}{project}" if project else owner


def member_of(space: str) -> str:
    """The owner in a namespace of ``space_of``."""
    return space.partition(_BETWEEN)[0]


def project_of(space: str) -> str:
    """The project in a namespace of ``space_of``; "" for none."""
    return space.partition(_BETWEEN)[2]


class Identities(Protocol):
    """Where keys are looked up: the keys file, or another provider (stored keys, tokens of an identity provider)."""

    async def principal_of(self, key: str | None) -> Principal:
        """The principal of a key. Raises HoldfastError ``key_missing`` or ``key_invalid``."""
        ...

    async def principal_of_digest(self, digest: str) -> Principal:
        """The principal of the key with this SHA-256. Raises HoldfastError ``key_invalid``."""
        ...

    def current(self, digest: str) -> Principal | None:
        """The principal of the key with this SHA-256 as it is known now; None if the key is not valid any more. Never waits."""
        ...

    def digests_of(self, owner: str) -> list[str]:
        """The SHA-256 of the keys of an owner, in all projects and outside; those of a provider that cannot list them are missing."""
        ...
