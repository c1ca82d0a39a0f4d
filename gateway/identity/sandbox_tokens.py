"""Tokens of one sandbox, for programs that work in it and do not have the key that obtained the token.

Owns the token's form and its derivation: from the service's secret, the sandbox's incarnation and the digest of the key, and from nothing
else, so that any replica can compute it again, and check what a program derived from it. Called by ``use_cases.sandbox_tokens``.
"""

from __future__ import annotations

import hmac
import re
from typing import Final

_FORM: Final = re.compile(r"hfs_([0-9a-f]{64})?_[0-9a-f]{40}")
_MAC_CHARACTERS: Final = 40


def sign(secret: str, sandbox_id: str, incarnation: str, key_digest: str) -> str:
    """The token: letters, digits and ``_``. ``key_digest`` is "" for a principal whose key cannot be looked up again."""
    mac = hmac.digest(secret.encode(), f"sandbox:{sandbox_id}:{incarnation}:{key_digest}".encode(), "sha256").hex()
    return f"hfs_{key_digest}_{mac[:_MAC_CHARACTERS]}"


def claimed_key(text: str) -> str:
    """The digest of the key in a text that has the form of a token, whether or not anybody signed it; "" for any other."""
    match = _FORM.fullmatch(text)
    return (match[1] or "") if match else ""


def key_of(secrets: tuple[str, ...], text: str, sandbox_id: str, incarnation: str) -> str | None:
    """The digest of the key of a token that was signed for this sandbox with one of ``secrets``; None for any other text."""
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    digest = match[1] or ""
    signed = [hmac.compare_digest(text, sign(secret, sandbox_id, incarnation, digest)) for secret in secrets]
    return digest if any(signed) else None
