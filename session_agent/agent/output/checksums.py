"""SHA-256 of streams: output of commands, and files.

OpenSSL's implementation is seven times as fast as CPython's own, but libcrypto takes 4 MiB of memory, and most agents hash only handshakes
and short output. Therefore the bundle's agent imports ``hashlib`` without OpenSSL (``bundle.entry``), and this module loads OpenSSL when
a stream becomes longer than ``SHORT_BYTES``.
"""

from __future__ import annotations

import hashlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import _Hash

SHORT_BYTES = 4096


class Sha256:
    """The hash of one stream. ``end`` frees the buffer of a short stream that will not grow any more."""

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
    except (ImportError, OSError):  # not installed, or no free descriptor to load it
        return hashlib.sha256(data)
    return openssl_sha256(data)
