"""API keys: the file that lists them, and how a request carries one.

Owns the keys file, one key a line, re-read when it changes: ``<owner> <sha256 of the key>``, then optional columns: ``scopes=read,exec``
(without it all but ``admin``), ``id=<name for logs>``, ``project=<name>`` and ``expires=<date or time>``. A line with any other column is
ignored, so that a limit which this version does not know never becomes a key without limits. A key is never stored, logged or compared in
plain text: lookup is by hash, so that timing reveals nothing about a key. Stored keys are in ``tenants``.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from holdfast_wire.errors import HoldfastError

from .principal import DEFAULT_SCOPES, OWNER, PROJECT, Principal, Scope, space_of

log = logging.getLogger("gateway.identity")

_LINE: Final = re.compile(rf"({OWNER.pattern})\s+([0-9a-f]{{64}})((?:\s+\S+)*)")
_KEY_ID: Final = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_KEY_BYTES: Final = 512
"""Longest accepted key; longer ones are not hashed in full."""
_ID_DIGITS: Final = 12


@dataclass(frozen=True, slots=True)
class KeyLine:
    """One key of the file. ``expires_at`` is in seconds since the epoch."""

    principal: Principal
    expires_at: float | None


class Keys:
    """The keys file, re-read when its modification time or size changes."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._stamp: tuple[int, int] | None = None
        self._lines: dict[str, KeyLine] = {}

    async def principal_of(self, key: str | None) -> Principal:
        """See ``principal.Identities``."""
        if not key:
            raise HoldfastError("key_missing", "the request has no API key")
        if len(key) > _KEY_BYTES:
            raise unknown_key()
        return await self.principal_of_digest(digest_of(key))

    async def principal_of_digest(self, digest: str) -> Principal:
        """See ``principal.Identities``."""
        principal = self.current(digest)
        if principal is None:
            raise unknown_key()
        return principal

    def current(self, digest: str) -> Principal | None:
        """See ``principal.Identities``."""
        self._refresh()
        found = self._lines.get(digest)
        return found.principal if found is not None and (found.expires_at is None or time.time() < found.expires_at) else None

    def digests_of(self, owner: str) -> list[str]:
        """See ``principal.Identities``."""
        self._refresh()
        return [digest for digest, line in self._lines.items() if line.principal.member == owner]

    def lines(self) -> list[KeyLine]:
        """Every key of the file, for a list of all keys."""
        self._refresh()
        return list(self._lines.values())

    def _refresh(self) -> None:
        try:
            status = os.stat(self._path)
            stamp = (status.st_mtime_ns, status.st_size)
            if stamp != self._stamp:
                self._lines = _parse(Path(self._path).read_text())
                self._stamp = stamp
        except OSError as error:
            if self._stamp is not None or not self._lines:
                log.warning("the keys file cannot be read: %s", error.strerror)
            self._stamp = None  # the known keys stay valid until the file is back


def digest_of(key: str) -> str:
    """The SHA-256 by which a key is known."""
    return hashlib.sha256(key.encode("utf-8", "replace")[: _KEY_BYTES + 1]).hexdigest()


def unknown_key() -> HoldfastError:
    """The refusal of a key that is unknown, expired or revoked: all three look alike."""
    return HoldfastError("key_invalid", "the API key of the request is not known")


def _parse(text: str) -> dict[str, KeyLine]:
    lines = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition("#")[0].strip()
        if not line:
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            log.warning("line %d of the keys file is not '<owner> <sha256>' with optional columns, and is ignored", number)
            continue
        try:
            lines[match[2]] = _line(match[1], match[2], match[3].split())
        except ValueError as error:
            log.warning("line %d of the keys file is ignored: %s", number, error)
    return lines


def _line(owner: str, digest: str, columns: list[str]) -> KeyLine:
    """Raises ValueError for a column that cannot be used."""
    key_id, scopes, project, expires_at = digest[:_ID_DIGITS], DEFAULT_SCOPES, "", None
    for column in columns:
        name, _, value = column.partition("=")
        if name == "scopes":
            scopes = _scopes(value)
        elif name == "id" and _KEY_ID.fullmatch(value):
            key_id = value
        elif name == "project" and PROJECT.fullmatch(value):
            project = value
        elif name == "expires":
            expires_at = _moment(value)
        else:
            raise ValueError(f"{column[:100]!r} is no column of this version: scopes=read,create,…, id=NAME, project=NAME or expires=DATE")
    return KeyLine(Principal(space_of(owner, project), key_id, project, scopes, digest), expires_at)


def _moment(text: str) -> float:
    """A date, which means its beginning, or a date and time, in UTC unless it names another zone."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _scopes(text: str) -> frozenset[Scope]:
    known = {scope.value for scope in Scope}
    names = set(text.split(","))
    if not names <= known:
        raise ValueError(f"{text[:100]!r} is not a list of scopes; there are {', '.join(sorted(known))}")
    return frozenset(Scope(name) for name in names)


def key_of(fields: Mapping[bytes, bytes]) -> str | None:
    """The key a request carries in ``X-API-Key`` or ``Authorization: Bearer``. ``fields`` have names in small letters."""
    if key := fields.get(b"x-api-key"):
        return key.decode("latin-1").strip()
    scheme, _, credentials = fields.get(b"authorization", b"").decode("latin-1").partition(" ")
    return credentials.strip() or None if scheme.lower() == "bearer" else None
