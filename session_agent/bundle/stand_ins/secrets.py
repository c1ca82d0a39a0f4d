"""The bundle's ``secrets``: the kernel's random bytes; the standard library's module imports ``random`` and ``hmac``.

Owns the calls that the agent and its libraries make. ``build`` puts it in.
"""

from __future__ import annotations

import os
from _operator import _compare_digest as compare_digest

__all__ = ["compare_digest", "randbits", "token_bytes", "token_hex"]


def token_bytes(nbytes: int = 32) -> bytes:
    return os.urandom(nbytes)


def token_hex(nbytes: int = 32) -> str:
    return os.urandom(nbytes).hex()


def randbits(k: int) -> int:
    return int.from_bytes(os.urandom((k + 7) // 8)) >> -k % 8
