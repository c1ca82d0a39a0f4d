"""Authentication: API keys to owners, and the deployment's secrets.

Owns the keys file (``<owner> <sha256 of the key>`` a line, re-read when it changes), and how a request carries its key. A key is never
stored, logged or compared in plain text: lookup is by hash, so that timing reveals nothing about a key.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path

from holdfast_wire.errors import HoldfastError

log = logging.getLogger("gateway.auth")

_LINE = re.compile(r"([A-Za-z0-9._@-]{1,64})\s+([0-9a-f]{64})")
_SECRET_LEAST, _SECRETS_MOST = 32, 5
_KEY_BYTES = 512
"""Longest accepted key; longer ones are not hashed in full."""


class Keys:
    """The keys file, re-read when its modification time or size changes."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._stamp: tuple[int, int] | None = None
        self._owners: dict[str, str] = {}

    def owner_of(self, key: str | None) -> str:
        """The owner a key belongs to. Raises HoldfastError ``key_missing`` or ``key_invalid``."""
        if not key:
            raise HoldfastError("key_missing", "the request has no API key")
        self._refresh()
        digest = hashlib.sha256(key.encode("utf-8", "replace")[: _KEY_BYTES + 1]).hexdigest()
        owner = self._owners.get(digest)
        if owner is None or len(key) > _KEY_BYTES:
            raise HoldfastError("key_invalid", "the API key of the request is not known")
        return owner

    def _refresh(self) -> None:
        try:
            status = os.stat(self._path)
            stamp = (status.st_mtime_ns, status.st_size)
            if stamp != self._stamp:
                self._owners = _parse(Path(self._path).read_text())
                self._stamp = stamp
        except OSError as error:
            if self._stamp is not None or not self._owners:
                log.warning("the keys file cannot be read: %s", error.strerror)
            self._stamp = None  # the known keys stay valid until the file is back


def _parse(text: str) -> dict[str, str]:
    owners = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition("#")[0].strip()
        if not line:
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            log.warning("line %d of the keys file is not '<owner> <sha256>' and is ignored", number)
            continue
        owners[match[2]] = match[1]
    return owners


def key_of(headers: Mapping[str, str]) -> str | None:
    """The key a request carries in ``X-API-Key`` or ``Authorization: Bearer``."""
    key = headers.get("x-api-key")
    if key:
        return key.strip()
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    return credentials.strip() or None if scheme.lower() == "bearer" else None


def read_secrets(path: Path, others: Path) -> tuple[str, ...]:
    """The deployment's signing secret, followed by the other accepted secrets in the file ``others`` (one a line; the file may be missing).

    Several secrets are accepted while the deployment rotates its secret; only the first is used for new signatures. Raises ``OSError`` when
    a file cannot be read, ``ValueError`` when a secret is too short or there are too many.
    """
    try:
        further = others.read_text().splitlines()
    except FileNotFoundError:
        further = []
    found = tuple(dict.fromkeys((path.read_text().strip(), *(line.strip() for line in further if line.strip()))))
    if len(found) > _SECRETS_MOST or any(len(secret) < _SECRET_LEAST for secret in found):
        raise ValueError(f"{path} and {others} must hold 1 to {_SECRETS_MOST} secrets, each of at least {_SECRET_LEAST} characters")
    return found
