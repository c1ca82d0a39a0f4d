"""The bundle's ``hmac``: RFC 2104 on the hashes of the bundle's ``hashlib``; the standard library's module loads OpenSSL at import.

Owns the two calls that proofs are made of, and the comparison in constant time, which is the interpreter's. ``build`` puts it in.
"""

from __future__ import annotations

from _operator import _compare_digest as compare_digest
from collections.abc import Callable
from typing import Any

__all__ = ["compare_digest", "digest", "new"]
_INNER, _OUTER = (bytes(byte ^ pad for byte in range(256)) for pad in (0x36, 0x5C))


class HMAC:
    """A keyed hash of one message."""

    def __init__(self, key: bytes, msg: bytes | None, digestmod: Callable[..., Any]) -> None:
        self._hash = digestmod
        inner = digestmod()
        if len(key) > inner.block_size:
            key = digestmod(key).digest()
        key = key.ljust(inner.block_size, b"\0")
        inner.update(key.translate(_INNER))
        self._inner, self._outer = inner, key.translate(_OUTER)
        if msg is not None:
            self.update(msg)

    def update(self, msg: bytes) -> None:
        self._inner.update(msg)

    def digest(self) -> bytes:
        outer = self._hash(self._outer)
        outer.update(self._inner.digest())
        found: bytes = outer.digest()
        return found

    def hexdigest(self) -> str:
        return self.digest().hex()


def new(key: bytes, msg: bytes | None = None, digestmod: Callable[..., Any] | None = None) -> HMAC:
    if digestmod is None:
        raise TypeError("Missing required argument 'digestmod'.")
    return HMAC(key, msg, digestmod)


def digest(key: bytes, msg: bytes, digest: Callable[..., Any]) -> bytes:
    return HMAC(key, msg, digest).digest()
