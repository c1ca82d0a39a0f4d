"""Stored keys: made, listed, rotated and revoked by an operator.

Owns what a new key may be and when a key is removed for good. A key is shown once, in the answer that makes it; only its digest is kept.
Changes are in ``gateway.tenants``. Called by faces, for principals with the scope ``admin``.
"""

from __future__ import annotations

import base64
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from holdfast_wire.errors import HoldfastError

from gateway.identity.keys import KeyLine, Keys, digest_of
from gateway.identity.limits import write_limits
from gateway.identity.principal import DEFAULT_SCOPES, OWNER, PROJECT, Principal, Scope
from gateway.identity.tenants import KEY_PREFIX, StoredKey, Tenants, write_key
from gateway.tenants.copy import KEYS_MOST

from .service import Gateway

MOST_LIFE_S: Final = 3653 * 86400.0
MOST_GRACE_S: Final = 7 * 86400.0
_KEPT_S: Final = 30 * 86400.0
"""How long a key is listed after its end."""
_NOTE_CHARACTERS: Final = 200


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that is to be made. ``expires_at`` is in seconds since the epoch, None for never."""

    owner: str
    project: str = ""
    scopes: frozenset[Scope] = DEFAULT_SCOPES
    expires_at: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Listed:
    """A key in a list. ``in_file``: it is a line of the keys file, which this API does not change."""

    key: StoredKey
    used_at: float | None = None
    in_file: bool = False


async def create(gateway: Gateway, principal: Principal, new: NewKey) -> tuple[StoredKey, str]:
    """The new key, and its text, which nobody can see again. Raises ``invalid_argument``, ``quota_exceeded``."""
    _check(new)
    text = KEY_PREFIX + secrets.token_urlsafe(32)
    scopes = tuple(scope.value for scope in Scope if scope in new.scopes)
    now = time.time()
    key = StoredKey(
        new_id(), digest_of(text), new.owner, new.project, scopes, now, principal.member, expires_at=new.expires_at, note=new.note
    )

    def decide(tenants: Tenants) -> dict[str, str | None]:
        if new.project and new.owner not in tenants.members(new.project):
            hint = f"holdfast project create {new.project} --member {new.owner}, or project members {new.project} --add {new.owner}"
            raise HoldfastError("invalid_argument", f"{new.owner} is no member of a project {new.project!r}", hint=hint)
        return _added(tenants, key, now)

    await gateway.tenants.change(decide)
    return key, text


async def list_all(gateway: Gateway, owner: str = "", project: str = "") -> list[Listed]:
    """Every key, of an owner and a project if they are named, the latest first; keys of the keys file come last."""
    uses = await gateway.tenants.last_uses()
    stored = [Listed(key, uses.get(key.key_id)) for key in gateway.tenants.tenants.keys.values()]
    stored.sort(key=lambda one: (-one.key.created_at, one.key.key_id))
    others = gateway.tenants.others
    stored += [Listed(_of_line(line), in_file=True) for line in (others.lines() if isinstance(others, Keys) else ())]
    return [one for one in stored if owner in ("", one.key.owner) and project in ("", one.key.project)]


async def read(gateway: Gateway, key_id: str) -> Listed:
    """One key. Raises ``not_found``."""
    for one in await list_all(gateway):
        if one.key.key_id == key_id:
            return one
    raise _unknown(key_id)


async def rotate(gateway: Gateway, principal: Principal, key_id: str, grace_s: float) -> tuple[StoredKey, str]:
    """A new key with the owner, project, scopes, limits and end of another one, which ends after ``grace_s`` seconds.

    Raises ``not_found``.
    """
    text = KEY_PREFIX + secrets.token_urlsafe(32)
    now, new_key_id = time.time(), new_id()
    made: list[StoredKey] = []

    def decide(tenants: Tenants) -> dict[str, str | None]:
        old = _valid(gateway, tenants, key_id, now)
        new = replace(old, key_id=new_key_id, digest=digest_of(text), created_at=now, created_by=principal.member, replaced_by="")
        ends_at = now + grace_s if old.expires_at is None else min(now + grace_s, old.expires_at)
        made[:] = [new]
        held = tenants.limits.get(f"key:{key_id}")
        limits = {f"limits:key:{new_key_id}": write_limits(held)} if held else {}
        return limits | _added(tenants, new, now) | {f"key:{key_id}": write_key(replace(old, expires_at=ends_at, replaced_by=new_key_id))}

    await gateway.tenants.change(decide)
    return made[0], text


async def revoke(gateway: Gateway, key_id: str) -> StoredKey:
    """End a key at once, also what is in use with it. One that has ended stays as it is. Raises ``not_found``."""
    now = time.time()
    made: list[StoredKey] = []

    def decide(tenants: Tenants) -> dict[str, str | None]:
        old = _stored(gateway, tenants, key_id)
        made[:] = [old if old.revoked_at is not None else replace(old, revoked_at=now)]
        return {f"key:{key_id}": write_key(made[0])}

    await gateway.tenants.change(decide)
    return made[0]


def new_id() -> str:
    """The id of a new key: it names the key in lists and logs and reveals nothing about it."""
    return "key-" + base64.b32encode(secrets.token_bytes(10)).decode().lower()


def scopes_of(names: Sequence[str]) -> frozenset[Scope]:
    """Scopes by name; without any the default. Raises ``invalid_argument``."""
    known = {scope.value for scope in Scope}
    wrong = [name for name in names if name not in known]
    if wrong:
        raise HoldfastError("invalid_argument", f"there is no scope {wrong[0][:40]!r}", hint=f"scopes are {', '.join(Scope)}")
    return frozenset(Scope(name) for name in names) or DEFAULT_SCOPES


def _check(new: NewKey) -> None:
    if not OWNER.fullmatch(new.owner):
        raise HoldfastError("invalid_argument", f"{new.owner[:100]!r} cannot be an owner", hint="1 to 64 letters, digits and . _ @ -")
    if new.project and not PROJECT.fullmatch(new.project):
        raise HoldfastError("invalid_argument", f"{new.project[:100]!r} cannot be a project", hint="1 to 40 small letters, digits and -")
    if new.project and Scope.ADMIN in new.scopes:
        hint = "leave out the project for an operator's key"
        raise HoldfastError("invalid_argument", "a key of a project cannot have the scope admin, which is for all owners", hint=hint)
    if len(new.note) > _NOTE_CHARACTERS or not new.note.isprintable():
        raise HoldfastError("invalid_argument", f"note must have at most {_NOTE_CHARACTERS} printable characters")


def _added(tenants: Tenants, key: StoredKey, now: float) -> dict[str, str | None]:
    """The entry of a new key, and the removal of those that ended long ago. Raises ``quota_exceeded``."""
    ended = [old.key_id for old in tenants.keys.values() if (_ended_at(old) or now) < now - _KEPT_S]
    if len(tenants.keys) - len(ended) >= KEYS_MOST:
        raise HoldfastError("quota_exceeded", f"this service has {KEYS_MOST} keys already", hint="revoke keys that are not used")
    return {f"key:{old}": None for old in ended} | {f"key:{key.key_id}": write_key(key)}


def _ended_at(key: StoredKey) -> float | None:
    return min((at for at in (key.expires_at, key.revoked_at) if at is not None), default=None)


def _valid(gateway: Gateway, tenants: Tenants, key_id: str, now: float) -> StoredKey:
    key = _stored(gateway, tenants, key_id)
    if not key.is_valid(now):
        raise HoldfastError("invalid_argument", f"the key {key_id} has ended", hint="make a new one: holdfast key create")
    return key


def _stored(gateway: Gateway, tenants: Tenants, key_id: str) -> StoredKey:
    found = tenants.keys.get(key_id)
    if found is not None:
        return found
    others = gateway.tenants.others
    if isinstance(others, Keys) and any(line.principal.key_id == key_id for line in others.lines()):
        hint = "change its line in the keys file (HOLDFAST_KEYS_FILE), which is read again at once"
        raise HoldfastError("invalid_argument", f"the key {key_id} is one of the keys file", hint=hint)
    raise _unknown(key_id)


def _of_line(line: KeyLine) -> StoredKey:
    one = line.principal
    scopes = tuple(scope.value for scope in Scope if scope in one.scopes)
    return StoredKey(one.key_id, one.credential, one.member, one.project, scopes, 0.0, expires_at=line.expires_at)


def _unknown(key_id: str) -> HoldfastError:
    return HoldfastError("not_found", f"there is no key {key_id[:80]!r}", hint="`holdfast key list` shows the ids of all keys")
