"""The request ``POST /adopt``, by which a pre-created spare becomes a sandbox (PROTOCOL §1.7).

Owns the authentication and the size limit of the body, and the validation of its fields. ``server`` applies the adoption, once and only
before any session. Called by ``connection`` for requests that are not an upgrade.
"""

from __future__ import annotations

import json
from typing import Any

from holdfast_wire.errors import HoldfastError
from holdfast_wire.fast_dataclass import dataclass
from holdfast_wire.http1 import HttpError, RequestHead
from holdfast_wire.proof import BODY_HEADER, DIAL_HEADER, check_body, dialled_nonce, seal_token

from session_agent.agent.request.params import mapping, text

BODY_BYTES = 1024 * 1024
"""Largest body; most of it is the environment."""
_ID_CHARACTERS = 256


@dataclass(frozen=True, slots=True)
class Adoption:
    """The new settings of the agent. ``env`` is added to the image's own; None leaves a setting unchanged."""

    sandbox_id: str
    incarnation: str
    token: str
    env: dict[str, str]
    labels: dict[str, str]
    workdir: str | None
    user: str | None


class AdoptRequest:
    """A request that arrives in pieces. ``feed`` returns None until it is complete; ``nonce`` goes into the proof of the answer."""

    def __init__(self, head: RequestHead, token: str) -> None:
        """Raises ``HoldfastError`` for a request that cannot become an adoption."""
        if head.target != "/adopt":
            raise HoldfastError("not_found", "the agent has no such path", hint="")
        # checked first: an unauthenticated caller gets no other error
        nonce = dialled_nonce(token, head.headers.get(DIAL_HEADER.lower(), ""))
        if nonce is None:
            raise HoldfastError("key_invalid", "the request has no valid proof", hint="")
        self.nonce = nonce
        try:
            length = head.content_length()
        except HttpError:
            length = None
        if length is None:
            raise HoldfastError("invalid_argument", "the request needs a Content-Length")
        if length > BODY_BYTES:
            raise HoldfastError("request_too_large", f"the request's body must have at most {BODY_BYTES} bytes")
        self._mac = head.headers.get(BODY_HEADER.lower(), "")
        self._length = length
        self._buffer = b""

    def feed(self, data: bytes, token: str) -> Adoption | None:
        """Accept bytes of the body. Raises ``HoldfastError`` if the body is invalid."""
        self._buffer += data
        if len(self._buffer) < self._length:
            return None
        body = self._buffer[: self._length]
        if not check_body(token, self.nonce, body, self._mac):
            raise HoldfastError("key_invalid", "the request's body is not authenticated", hint="")
        return read_adoption(body, token, self.nonce)


def read_adoption(body: bytes, token: str, nonce: str) -> Adoption:
    """Validate the body. Raises ``HoldfastError``; unknown keys are ignored."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        raise HoldfastError("invalid_json", "the body is not JSON") from None
    if not isinstance(given, dict):
        raise HoldfastError("invalid_json", "the body is not a JSON object")
    sealed = text(given, "token", "")
    if len(sealed) != 64 or not set(sealed) <= set("0123456789abcdef"):
        raise HoldfastError("invalid_argument", "token must be 64 hexadecimal digits, sealed")
    env = mapping(given, "env")
    for name in env:
        if not name or "=" in name:
            raise HoldfastError("invalid_argument", f"env: {name!r:.80} cannot be set")
    workdir = text(given, "workdir", None)
    if workdir and not workdir.startswith("/"):
        raise HoldfastError("invalid_argument", "workdir must be an absolute path")
    return Adoption(
        sandbox_id=_identifier(given, "sandbox_id"),
        incarnation=_identifier(given, "incarnation"),
        token=seal_token(token, nonce, sealed),
        env=env,
        labels=mapping(given, "labels"),
        workdir=workdir,
        user=text(given, "user", None),
    )


def _identifier(given: dict[str, Any], name: str) -> str:
    value = text(given, name, "")
    if not 0 < len(value) <= _ID_CHARACTERS or not (value.isascii() and value.isprintable()):
        raise HoldfastError("invalid_argument", f"{name} must be 1 to {_ID_CHARACTERS} printable ASCII characters")
    return value
