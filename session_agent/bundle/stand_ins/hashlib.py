"""The bundle's ``hashlib``: the hashes that the agent uses, without OpenSSL until there is much to hash.

Owns the choice. OpenSSL's SHA-256 is seven times as fast as Python's own, but libcrypto costs an agent 4 MiB, and most agents only ever
hash handshakes and the output of short commands. So the first bytes of a stream are kept until it ends or becomes long. ``build`` gives
this text to the bundle instead of the standard library's module.
"""

from __future__ import annotations

from _blake2 import blake2b
from _sha1 import sha1  # type: ignore[import-not-found]
from typing import Any

try:
    from _sha2 import sha256 as _own  # type: ignore[import-not-found]  # Python 3.12 and newer
except ImportError:
    from _sha256 import sha256 as _own  # type: ignore[import-not-found]

__all__ = ["blake2b", "new", "sha1", "sha256"]
SHORT_BYTES = 16 * 1024
"""What is longer is hashed by OpenSSL."""
_room = 256 * 1024
"""How many more bytes may be kept for later, by all streams of the process together. Without room every stream is OpenSSL's."""


class sha256:  # noqa: N801 - the standard library's name
    """A SHA-256 that is computed when it is known how long its stream is."""

    name, digest_size, block_size = "sha256", 32, 64
    __slots__ = ("_hash", "_kept")

    def __init__(self, data: Any = b"", *, usedforsecurity: bool = True) -> None:
        self._kept = bytearray()
        self._hash: Any = None
        if data:
            self.update(data)

    def update(self, data: Any) -> None:
        global _room
        if self._hash is None:
            size = memoryview(data).nbytes
            if size <= _room and len(self._kept) + size <= SHORT_BYTES:
                self._kept += data
                _room -= size
                return
            _room += len(self._kept)
            self._hash, self._kept = _fast(self._kept), bytearray()
        self._hash.update(data)

    def __del__(self) -> None:
        global _room
        _room += len(self._kept)

    def copy(self) -> sha256:
        other = sha256(self._kept)
        if self._hash is not None:
            other._hash = self._hash.copy()
        return other

    def digest(self) -> bytes:
        found: bytes = (_own(self._kept) if self._hash is None else self._hash).digest()
        return found

    def hexdigest(self) -> str:
        return self.digest().hex()


def _fast(data: Any) -> Any:
    try:
        from _hashlib import openssl_sha256
    except (ImportError, OSError):  # as while there is no descriptor left to open it with
        return _own(data)
    return openssl_sha256(data)


def new(name: str, data: Any = b"", *, usedforsecurity: bool = True) -> Any:
    """A hash by its name. Raises ``ValueError`` for one that the agent does not use."""
    makers = {"sha1": sha1, "sha256": sha256, "blake2b": blake2b}
    if name not in makers:
        raise ValueError(f"unsupported hash type {name}")
    return makers[name](data)
