"""Which sandbox a request to "the inside of a sandbox" is for, who sends it, and as which user of the sandbox.

Owns the names of E2B's headers, the form of its hosts (``PORT-SANDBOX.domain``) and its signatures of file URLs. A sandbox is named by its
id, which is unique in the service, because a signed URL names no owner; by an owner's key its name works too. The tokens themselves are in
``use_cases.sandbox_tokens``.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import time
from typing import Final

from holdfast_wire.errors import HoldfastError
from starlette.requests import HTTPConnection

from gateway.audit.lines import masked
from gateway.faces.table import gateway_of, note, parts
from gateway.identity.principal import Principal
from gateway.model.names import name_of
from gateway.model.records import Record
from gateway.use_cases import describe, sandbox_tokens

from .errors import ENDED, SandboxEndedError

ENVD_PORT: Final = 49983
"""The port under which E2B's SDKs expect the API inside of a sandbox."""
_ACCESS_HEADER: Final = "X-Access-Token"
_ID_HEADER: Final = "E2b-Sandbox-Id"
_ID: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,100}")
_TOKEN_CHARACTERS: Final = 200
_SIGNATURE_CHARACTERS: Final = 100


async def grant(connection: HTTPConnection) -> Principal | None:
    """The principal of a request with the token of its sandbox; None without a token, when it needs a key. Raises ``key_invalid``."""
    text = connection.headers.get(_ACCESS_HEADER)
    if not text:
        return None
    sandbox_id = sandbox_of(connection)
    try:
        found = await sandbox_tokens.granted(gateway_of(connection), sandbox_id, text) if len(text) <= _TOKEN_CHARACTERS else None
    except HoldfastError as error:
        raise ended(error) from None
    if found is None:
        raise HoldfastError(
            "key_invalid", f"{_ACCESS_HEADER} is not a token of this sandbox", hint="connect to the sandbox with an API key"
        )
    return found


async def signed_grant(connection: HTTPConnection) -> Principal | None:
    """As ``grant``, also for a URL that was signed with the token of its sandbox."""
    query = connection.query_params
    signature = query.get("signature")
    if connection.headers.get(_ACCESS_HEADER) or signature is None:
        return await grant(connection)
    sandbox_id = sandbox_of(connection)
    operation = "write" if connection.scope.get("method") == "POST" else "read"
    words = [query.get("path", ""), operation, query.get("username", "")]
    expires = query.get("signature_expiration")

    def matches(token: str) -> bool:
        return hmac.compare_digest(_signature([*words, token, *([expires] if expires is not None else [])]), signature)

    is_possible = len(signature) <= _SIGNATURE_CHARACTERS and signature.isascii()
    found = await sandbox_tokens.derived(gateway_of(connection), sandbox_id, matches) if is_possible else None
    if found is None:
        raise HoldfastError("key_invalid", "invalid signature", hint="")
    if expires is not None and not (expires.isdecimal() and int(expires[:20]) >= time.time()):
        raise HoldfastError("key_invalid", "signature is already expired", hint="")
    return found


def _signature(words: list[str]) -> str:
    digest = hashlib.sha256(":".join(words).encode("utf-8", "surrogatepass")).digest()
    return f"v1_{base64.b64encode(digest).decode().rstrip('=')}"


def sandbox_of(connection: HTTPConnection) -> str:
    """What the request calls its sandbox. Raises ``not_found`` if it names none."""
    label = connection.path_params.get("sandbox") or connection.headers.get(_ID_HEADER)
    if not label or not _ID.fullmatch(label):
        hint = f"send the header {_ID_HEADER}, or use the host {ENVD_PORT}-SANDBOX below the preview domain"
        raise HoldfastError("not_found", "the request names no sandbox", hint=hint)
    return str(label)


async def ready_record(connection: HTTPConnection) -> Record:
    """The requested sandbox. Raises ``SandboxEndedError`` if nothing can run in it."""
    gateway, principal = parts(connection)
    name = name_of(principal.owner, sandbox_of(connection))
    note(connection, sandbox=masked(name))
    try:
        return await describe.ready(gateway, principal, name)
    except HoldfastError as error:
        raise ended(error) from None


def ended(error: HoldfastError) -> HoldfastError:
    """``error``, in E2B's form if it says that nothing can run in the sandbox."""
    return SandboxEndedError(error) if error.code in ENDED and not isinstance(error, SandboxEndedError) else error


def requested_user(connection: HTTPConnection) -> str:
    """The user that ``Authorization: Basic`` names, as E2B's SDKs do; "" if it names none. Raises ``invalid_argument``."""
    scheme, _, credentials = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(credentials.strip(), validate=True).decode().partition(":")[0]
    except ValueError:
        raise HoldfastError("invalid_argument", "the credentials in Authorization are not base64 of USER:") from None
