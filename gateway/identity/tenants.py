"""Projects and stored keys as values, their form as text, and what follows from them: the principal of a key, and who may act for whom.

Owns these values and no state. A project is a part of its members' namespaces: what ada makes in the project ``lab`` belongs to the owner
``ada+lab``, so names, groups, images, recordings and events of two projects never meet (decision 0120). Kept by ``gateway.tenants``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal, get_args

import orjson
from holdfast_wire.errors import HoldfastError

from .limits import Limits, read_limits
from .principal import OWNER, PROJECT, Principal, Scope, space_of

KEY_PREFIX: Final = "hfk_"
"""Every stored key begins with it, so that any other text is refused without a look at Redis."""
KEY_FORM: Final = re.compile(rf"{KEY_PREFIX}[A-Za-z0-9_-]{{43}}")
Sharing = Literal["none", "read", "use"]
"""What a member of a project may do with the sandboxes of its other members: nothing (the default), look at them, or all that the scopes of
the member's key permit."""


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key that was made by an operator. Times are seconds since the epoch."""

    key_id: str
    digest: str
    """SHA-256 of the key, in hexadecimal. The key itself has 256 random bits and is stored nowhere."""
    owner: str
    project: str
    """"" for none: the key then stands for the owner outside of all projects."""
    scopes: tuple[str, ...]
    created_at: float
    created_by: str = ""
    """The owner of the key that made it."""
    expires_at: float | None = None
    revoked_at: float | None = None
    replaced_by: str = ""
    """The id of the key that a rotation made in its place."""
    note: str = ""

    @property
    def principal(self) -> Principal:
        scopes = frozenset(Scope(scope) for scope in self.scopes)
        return Principal(space_of(self.owner, self.project), self.key_id, self.project, scopes, self.digest)

    def is_valid(self, now: float) -> bool:
        """Whether it is neither revoked nor expired. Whether its owner is still in its project is for ``Tenants.principal``."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True, slots=True)
class Project:
    """A project and its members, by owner."""

    name: str
    members: tuple[str, ...] = ()
    sharing: Sharing = "none"
    created_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Tenants:
    """All projects and stored keys at one version. Versions rise with every change."""

    version: int = 0
    keys: Mapping[str, StoredKey] = field(default_factory=dict)
    projects: Mapping[str, Project] = field(default_factory=dict)
    limits: Mapping[str, Limits] = field(default_factory=dict)
    """By subject: ``owner:ada``, ``owner:*``, ``project:lab``, ``key:ID``."""
    by_digest: Mapping[str, tuple[StoredKey, Principal]] = field(default_factory=dict)

    @classmethod
    def read(cls, version: int, entries: Mapping[str, str]) -> Tenants:
        """From entries by name. One that this version of Holdfast cannot read is left out, so that its key is not valid here."""
        keys: dict[str, StoredKey] = {}
        projects: dict[str, Project] = {}
        limits: dict[str, Limits] = {}
        for name, text in entries.items():
            kind, _, id_ = name.partition(":")
            try:
                if kind == "key":
                    keys[id_] = _key(id_, orjson.loads(text))
                elif kind == "project":
                    projects[id_] = _project(id_, orjson.loads(text))
                elif kind == "limits":
                    limits[id_] = read_limits(text)
            except (TypeError, ValueError, KeyError):
                continue
        return cls(version, keys, projects, limits, {key.digest: (key, key.principal) for key in keys.values()})

    def principal(self, digest: str, now: float) -> Principal | None:
        """The principal of the valid key with this digest; None if there is none."""
        found = self.by_digest.get(digest)
        if found is None:
            return None
        key, principal = found
        if not key.is_valid(now) or (key.project and key.owner not in self.members(key.project)):
            return None
        return principal

    def members(self, project: str) -> tuple[str, ...]:
        """The members of a project; nobody if there is no such project."""
        found = self.projects.get(project)
        return found.members if found else ()

    def acting(self, principal: Principal, owner: str | None, project: str | None) -> Principal:
        """The same key in the place of an owner and project that a request names; None names none.

        A key with the scope ``admin`` acts for everybody. A key of a project acts for another member of it as far as the project's setting
        ``sharing`` permits. A key without a project acts for its own owner in a project of which the owner is a member. Everything else
        raises ``scope_missing``, whether or not that owner, project or member exists, or ``invalid_argument``; ``key_invalid`` for a link.
        """
        mine = principal.member
        wanted_owner = mine if owner is None else owner
        wanted_project = project
        if wanted_project is None:
            wanted_project = principal.project if wanted_owner == mine or Scope.ADMIN not in principal.scopes else ""
        if (wanted_owner, wanted_project) == (mine, principal.project):
            return principal
        if principal.bound:
            hint = "leave out X-Holdfast-Owner and X-Holdfast-Project"
            raise HoldfastError("key_invalid", "a link or token is for the owner and project of its sandbox", hint=hint)
        if not OWNER.fullmatch(wanted_owner):
            raise HoldfastError(
                "invalid_argument", f"{wanted_owner[:100]!r} cannot be an owner", hint="1 to 64 letters, digits and . _ @ -"
            )
        if wanted_project and not PROJECT.fullmatch(wanted_project):
            raise HoldfastError(
                "invalid_argument", f"{wanted_project[:100]!r} cannot be a project", hint="1 to 40 small letters, digits and -"
            )
        scopes = self._scopes(principal, wanted_owner, wanted_project)
        if scopes is None:
            principal.require(Scope.ADMIN)
            scopes = principal.scopes
        return replace(principal, owner=space_of(wanted_owner, wanted_project), project=wanted_project, scopes=scopes)

    def _scopes(self, principal: Principal, owner: str, project: str) -> frozenset[Scope] | None:
        """What a key that is no operator's may do there; None if it may not act there at all."""
        if Scope.ADMIN in principal.scopes:
            return None
        members = self.members(project)
        if owner == principal.member:
            return principal.scopes if not principal.project and owner in members else None
        if principal.project != project or not project or owner not in members:
            return None
        return shared_scopes(self.projects[project], principal)


def shared_scopes(project: Project, principal: Principal) -> frozenset[Scope] | None:
    """What a member's key may do with what other members of the project own; None for nothing."""
    if project.sharing == "none":
        return None
    return principal.scopes & {Scope.READ} if project.sharing == "read" else principal.scopes


def write_key(key: StoredKey) -> str:
    """A key as text."""
    return orjson.dumps({name: value for name, value in asdict(key).items() if name != "key_id"}).decode()


def write_project(project: Project) -> str:
    """A project as text."""
    return orjson.dumps({name: value for name, value in asdict(project).items() if name != "name"}).decode()


def _key(key_id: str, fields: dict[str, Any]) -> StoredKey:
    key = StoredKey(key_id, **{**fields, "scopes": tuple(Scope(scope).value for scope in fields["scopes"])})
    if not OWNER.fullmatch(key.owner) or (key.project and not PROJECT.fullmatch(key.project)):
        raise ValueError("no owner or project")
    return key


def _project(name: str, fields: dict[str, Any]) -> Project:
    project = Project(name, **{**fields, "members": tuple(fields["members"])})
    if project.sharing not in get_args(Sharing):
        raise ValueError("no setting of this version")
    return project
