"""Adoption of a waiting agent: the gateway's half of ``POST /adopt`` (PROTOCOL §1.7).

Owns the request and the check of its answer: the agent proves that it took the new token, and which pod it is in. The runtime decides
which agent, and when.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Mapping
from typing import Any

from holdfast_wire.errors import HoldfastError
from holdfast_wire.proof import BODY_HEADER, DIAL_HEADER, IDENTITY_HEADER, PROOF_HEADER, body_mac, check_proof, dial_header, seal_token

from .dial import DialError
from .http_head import parse_head

_ANSWER_BYTES = 64 * 1024
"""Longest answer: an agent may be hostile."""


async def adopt_agent(endpoint: str, token: str, new_token: str, identity: Mapping[str, Any], timeout_s: float) -> None:
    """Give the agent that knows ``token`` the identity of ``new_token``.

    ``identity`` has ``sandbox_id``, ``incarnation``, ``env`` and ``labels``, and ``workdir`` and ``user`` where they are to change.
    ``endpoint`` is as ``dial_agent`` takes it. Raises ``DialError``, or the ``HoldfastError`` that the agent answers; after either the
    agent's identity is unknown, and it should be discarded.
    """
    address, _, expected = endpoint.partition("#")
    nonce = secrets.token_hex(16)
    body = json.dumps({**identity, "token": seal_token(token, nonce, new_token)}).encode()
    head = (
        "POST /adopt HTTP/1.1\r\nHost: agent\r\nConnection: close\r\nContent-Type: application/json\r\n"
        f"{DIAL_HEADER}: {dial_header(token, nonce)}\r\n{BODY_HEADER}: {body_mac(token, nonce, body)}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    try:
        async with asyncio.timeout(timeout_s):
            status, headers, answer = await _exchange(address, head.encode() + body)
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError) as error:
        raise DialError("agent_unreachable", "the waiting agent does not answer") from error
    if status != 200:
        raise _refusal(status, answer)
    proven = headers.get(IDENTITY_HEADER.lower(), "")
    if not check_proof(new_token, nonce, headers.get(PROOF_HEADER.lower(), ""), proven) or proven != (expected or proven):
        raise DialError("agent_identity", "the agent at the waiting agent's address did not take its new identity")


async def _exchange(address: str, request: bytes) -> tuple[int, dict[str, str], bytes]:
    scheme, _, where = address.partition("://")
    if scheme == "unix":
        reader, writer = await asyncio.open_unix_connection(where, limit=_ANSWER_BYTES)
    else:
        host, _, port = where.rpartition(":")
        reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), limit=_ANSWER_BYTES)
    try:
        writer.write(request)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            raise OSError("the answer's head is too long") from None
        status, headers = parse_head(head[:-4].decode("latin-1"))
        return status, headers, await reader.read(_ANSWER_BYTES)
    finally:
        writer.transport.abort()


def _refusal(status: int, answer: bytes) -> HoldfastError:
    try:
        body = json.loads(answer)
    except (ValueError, RecursionError):
        body = None
    if isinstance(body, dict) and isinstance(body.get("code"), str):
        return HoldfastError.from_map(body)
    return DialError("agent_unreachable", f"the waiting agent refused with status {status}")
