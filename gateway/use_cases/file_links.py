"""Signed links to files: made for a sandbox's file, and the principal of a request that carries one.

Owns how long a link is valid, and that it permits no more than its key does at the moment. Called by ``faces.rest``.
"""

from __future__ import annotations

import time
from typing import Final, Literal

from holdfast_wire.errors import HoldfastError

from gateway.identity import file_links
from gateway.identity.file_links import FileLink
from gateway.identity.principal import Principal, Scope

from .service import Gateway

LINK_S: Final = 900.0
"""How long a link is valid unless its request says otherwise."""
MOST_LINK_S: Final = 7 * 86400.0


async def link(
    gateway: Gateway, principal: Principal, name: str, path: str, method: Literal["GET", "PUT"], user: str, expires_s: float
) -> tuple[str, int]:
    """The text of a new link to a file of the owner's sandbox, and when it expires. Raises what ``Gateway.ready`` raises."""
    record = await gateway.ready(principal.owner, name)
    expires_at = int(time.time() + expires_s)
    made = FileLink(name, record.owner, record.incarnation, path, method, user, expires_at, principal.credential)
    return file_links.sign(gateway.secrets[0], made), expires_at


async def granted(gateway: Gateway, text: str, name: str, method: str) -> tuple[FileLink, Principal]:
    """The link and the principal of a request of this method to this sandbox's files. Raises ``key_invalid``."""
    found = file_links.read(gateway.secrets, text, time.time())
    if found is not None and (found.name, found.method) == (name, "GET" if method == "HEAD" else method):
        principal = await gateway.tenants.granted(found.key_digest, found.owner, frozenset({Scope.FILES}))
        record = await gateway.record(found.owner, name)
        if record.incarnation == found.incarnation:
            return found, principal
    hint = "make a new link: POST /sandboxes/{sandbox_id}/files/links"
    raise HoldfastError("key_invalid", "the link to a file has expired, or is not for this request", hint=hint)
