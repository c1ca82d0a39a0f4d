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
    """The principal of a token of this sandbox, also of one that has ended; None for any other text, or if there is no such sandbox."""
    entry = await gateway.store.get(sandbox_id)
    if entry is None:
        return None
    digest = sandbox_tokens.key_of(gateway.secrets, text, entry.sandbox_id, entry.incarnation)
    return None if digest is None else await _principal(gateway, entry, digest)


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


async def _principal(gateway: Gateway, entry: Record | Tombstone, digest: str) -> Principal | None:
    try:
        return await gateway.tenants.granted(digest, entry.owner, _SCOPES)
    except HoldfastError as error:
        if error.code != "key_invalid":
            raise
        return None
