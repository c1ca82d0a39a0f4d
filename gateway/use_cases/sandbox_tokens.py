"""Tokens of sandboxes: given to who may use a sandbox, and the principal of a request that carries one.

Owns what a token permits, which is what its key permits at the moment, in this one sandbox: a key that is removed or loses a scope takes
its tokens with it. Also the lookup of a sandbox by its id alone. Called by faces.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from holdfast_wire.errors import HoldfastError

from gateway.identity import sandbox_tokens
from gateway.identity.principal import Principal, Scope, member_of
from gateway.model.records import Record, Tombstone

from .service import Gateway

_SCOPES: Final = frozenset((Scope.READ, Scope.EXEC, Scope.FILES))
"""What a token can permit: to read about the sandbox, to run commands, to use files."""


def token_of(gateway: Gateway, principal: Principal, record: Record) -> str:
    """The token of the sandbox for the principal's key."""
    return sandbox_tokens.sign(gateway.secrets[0], record.sandbox_id, record.incarnation, principal.credential)


async def granted(gateway: Gateway, sandbox_id: str, text: str) -> Principal | None:
    """The principal of a token of this sandbox, also of one that has ended; None for any other text.

    Raises ``sandbox_not_found`` for a token of a valid key if there is no such sandbox, or one of an owner for whom the key may not act.
    Nobody else learns from the answer whether there is one: an id can be computed from the names of the owner and the sandbox.
    """
    entry = await gateway.store.get(sandbox_id)
    if entry is not None:
        digest = sandbox_tokens.key_of(gateway.secrets, text, entry.sandbox_id, entry.incarnation)
        if digest is not None:
            return await _principal(gateway, entry, digest)
    digest = sandbox_tokens.claimed_key(text)
    known = await _known(gateway, digest) if digest else None
    if known is not None and (entry is None or await _principal(gateway, entry, known.credential) is None):
        raise HoldfastError("sandbox_not_found", f"there is no sandbox {sandbox_id!r}")
    return None


async def derived(gateway: Gateway, sandbox_id: str, matches: Callable[[str], bool]) -> Principal | None:
    """The principal of the token for which ``matches`` is true, among those of the owner's own keys; None if there is none."""
    entry = await gateway.store.get(sandbox_id)
    if entry is None:
        return None
    found = None
    for digest in ("", *gateway.tenants.digests_of(member_of(entry.owner))):
        for secret in gateway.secrets:
            if matches(sandbox_tokens.sign(secret, entry.sandbox_id, entry.incarnation, digest)):
                found = digest
    return None if found is None else await _principal(gateway, entry, found)


async def _known(gateway: Gateway, digest: str) -> Principal | None:
    try:
        return await gateway.tenants.principal_of_digest(digest)
    except HoldfastError as error:
        if error.code != "key_invalid":
            raise
        return None


async def _principal(gateway: Gateway, entry: Record | Tombstone, digest: str) -> Principal | None:
    try:
        return await gateway.tenants.granted(digest, entry.owner, _SCOPES)
    except HoldfastError as error:
        if error.code != "key_invalid":
            raise
        return None
