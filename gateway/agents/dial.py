"""Dialling a session agent: connect, upgrade, and prove both identities.

Owns the HTTP upgrade and the mutual proof: an address that was reassigned to another sandbox's agent learns nothing and is refused. The
connection is then used by ``sessions.relay`` or ``agent_call``.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from holdfast_wire.errors import HoldfastError
from holdfast_wire.proof import DIAL_HEADER, IDENTITY_HEADER, IDLE_HEADER, PROOF_HEADER, agent_token, check_proof, dial_header
from holdfast_wire.websocket_frames import accept_key

from .http_head import parse_head

_HEAD_BYTES = 16 * 1024
"""Longest answer to the upgrade: an agent may be hostile."""


class DialError(HoldfastError):
    """The agent could not be reached, or is not the expected one."""


@dataclass(frozen=True, slots=True)
class Dialled:
    """An upgraded connection, its reading paused, with the bytes that followed the upgrade.

    The new protocol calls ``transport.set_protocol``, consumes ``early`` and resumes reading.
    """

    transport: asyncio.Transport
    early: bytes
    idle_s: float | None = None
    """For how long the sandbox has not been used (PROTOCOL §1.8); None where its agent does not report it."""


async def dial(endpoint: str, secrets_: tuple[str, ...], sandbox_id: str, incarnation: str, timeout_s: float) -> Dialled:
    """Reach the agent of one incarnation, with whichever of the deployment's secrets it was created. Raises ``DialError``."""
    return await dial_any(endpoint, [agent_token(secret, sandbox_id, incarnation) for secret in secrets_], timeout_s)


async def dial_any(endpoint: str, tokens: Sequence[str], timeout_s: float) -> Dialled:
    """Reach the agent that knows one of ``tokens``, tried in order within the total time. Raises the first ``DialError``."""
    first: DialError | None = None
    end = asyncio.get_running_loop().time() + timeout_s
    for token in tokens:
        try:
            return await dial_agent(endpoint, token, max(end - asyncio.get_running_loop().time(), 0.01))
        except DialError as error:
            first = first or error
            if error.code != "agent_identity":
                break
    raise first or DialError("agent_identity", "no token is known")


async def dial_agent(endpoint: str, token: str, timeout_s: float) -> Dialled:
    """Reach the agent that knows ``token`` at ``unix:///path`` or ``tcp://host:port``; a cluster's endpoint ends in ``#<pod uid>``.

    Where the endpoint names a uid the agent must prove to be in that pod. Raises ``DialError``.
    """
    endpoint, _, expected = endpoint.partition("#")
    nonce = secrets.token_hex(16)
    key = base64.b64encode(secrets.token_bytes(16)).decode()
    scheme, _, address = endpoint.partition("://")
    loop = asyncio.get_running_loop()
    upgrade = _Upgrade(loop.create_future())
    transport: asyncio.Transport | None = None
    try:
        async with asyncio.timeout(timeout_s):
            if scheme == "unix":
                transport, _ = await loop.create_unix_connection(lambda: upgrade, address)
            elif scheme == "tcp":
                host, _, port = address.rpartition(":")
                transport, _ = await loop.create_connection(lambda: upgrade, host.strip("[]"), int(port))
            else:
                raise DialError("internal", "the placement of this sandbox has no usable endpoint")
            transport.write(
                b"GET /session HTTP/1.1\r\nHost: agent\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                b"Sec-WebSocket-Version: 13\r\n"
                + f"Sec-WebSocket-Key: {key}\r\n{DIAL_HEADER}: {dial_header(token, nonce)}\r\n\r\n".encode()
            )
            status, headers, early = await upgrade.answer
    except (OSError, TimeoutError, ValueError) as error:
        if transport is not None:
            transport.abort()
        raise DialError("agent_unreachable", "the sandbox's agent does not answer") from error
    except BaseException:
        if transport is not None:
            transport.abort()
        raise
    identity = headers.get(IDENTITY_HEADER.lower(), "")
    proven = check_proof(token, nonce, headers.get(PROOF_HEADER.lower(), ""), identity) and identity == (expected or identity)
    if status == 101 and headers.get("sec-websocket-accept") == accept_key(key) and proven:
        return Dialled(transport, early, _seconds(headers.get(IDLE_HEADER.lower(), "")))
    transport.abort()
    if status in (101, 403):
        raise DialError("agent_identity", "the agent at the sandbox's address is not the sandbox's own")
    raise DialError("agent_unreachable", f"the sandbox's agent refused the connection with status {status}")


def _seconds(text: str) -> float | None:
    try:
        return max(float(text), 0.0)  # NaN counts as 0
    except ValueError:
        return None


class _Upgrade(asyncio.Protocol):
    """Reads the head of the agent's answer, then stops reading."""

    def __init__(self, answer: asyncio.Future[tuple[int, dict[str, str], bytes]]) -> None:
        self.answer = answer
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not subclasses

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, early = self._buffer.partition(b"\r\n\r\n")
        if self.answer.done():
            return
        if not end:
            if len(self._buffer) > _HEAD_BYTES:
                self.answer.set_exception(OSError("the answer to the upgrade is too long"))
            return
        try:
            answer = parse_head(head.decode("latin-1"))
        except ValueError as error:
            self.answer.set_exception(OSError(f"not an HTTP answer: {error}"))
            return
        assert self._transport is not None
        self._transport.pause_reading()
        self.answer.set_result((*answer, early))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.answer.done():
            self.answer.set_exception(exc if isinstance(exc, OSError) else OSError("the agent closed the connection"))
