"""SHA-256 of what comes in pieces: output of commands, files.

OpenSSL's is seven times as fast as CPython's own, but libcrypto costs an agent 4 MiB, and most agents only ever hash handshakes and short
output. So the bundle's agent imports ``hashlib`` without OpenSSL (``bundle.entry``), which is loaded here when a stream becomes long.
"""

from __future__ import annotations

import hashlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import _Hash

SHORT_BYTES = 4096


class Sha256:
    """One stream's. ``end`` frees what is kept for a stream that may become long."""

    __slots__ = ("_hash", "_kept")

    def __init__(self, data: bytes = b"") -> None:
        self._hash: _Hash | None = None
        self._kept = data
        if len(data) > SHORT_BYTES:
            self._kept = b""
            self.update(data)

    def update(self, data: bytes) -> None:
        if self._hash is None:
            if len(self._kept) + len(data) <= SHORT_BYTES:
                self._kept += data
                return
            self._hash, self._kept = _openssl(self._kept), b""
        self._hash.update(data)

    def end(self) -> None:
        if self._hash is None:
            self._hash, self._kept = hashlib.sha256(self._kept), b""

    def hexdigest(self) -> str:
        return (self._hash or hashlib.sha256(self._kept)).hexdigest()


def _openssl(data: bytes) -> _Hash:
    if sys.modules.get("_hashlib", sys) is None:
        del sys.modules["_hashlib"]
    try:
        from _hashlib import openssl_sha256
    except (ImportError, OSError):  # as while there is no descriptor left to open it with
        return hashlib.sha256(data)
    return openssl_sha256(data)
