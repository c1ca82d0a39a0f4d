"""The HTTP requests to a session agent: the upgrade to a session, and the adoption of a spare's agent (PROTOCOL §1.7).

Owns both HTTP requests and the mutual proof: an address that was reassigned to another sandbox's agent learns nothing and is refused. The
upgraded connection is then used by ``sessions.relay`` or ``agent_call``; the runtime decides which agent is adopted, and when.
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import httptools
from holdfast_wire.errors import Fault, HoldfastError
from holdfast_wire.proof import (
    BODY_HEADER,
    DIAL_HEADER,
    IDENTITY_HEADER,
    IDLE_HEADER,
    PROOF_HEADER,
    agent_token,
    body_mac,
    check_proof,
    dial_header,
    seal_token,
)
from holdfast_wire.websocket_frames import accept_key

from gateway.model.records import Record

_ANSWER_BYTES: Final = 80 * 1024
"""Limit of an answer with its body, because an agent may be hostile."""
_IDLE_S: Final = 2.0
"""Time limit of a request for the idle time."""
_PATIENCE_S: Final = 60.0
"""How long the end of a sandbox is delayed for an agent that does not answer: the work that keeps it busy may be a reason to wait."""


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
    """For how long the sandbox has not been used (PROTOCOL §1.8); None if its agent does not report it."""


async def dial(endpoint: str, secrets_: tuple[str, ...], sandbox_id: str, incarnation: str, timeout_s: float) -> Dialled:
    """Reach the agent of one incarnation, which was created with any one of the deployment's secrets. Raises ``DialError``."""
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
    raise first or DialError("agent_identity", "the gateway has no token for the sandbox's agent")


async def dial_agent(endpoint: str, token: str, timeout_s: float) -> Dialled:
    """Reach the agent that knows ``token`` at ``unix:///path`` or ``tcp://host:port``; a cluster's endpoint ends in ``#<pod uid>``.

    Where the endpoint names a uid the agent must prove to be in that pod. Raises ``DialError``.
    """
    nonce = secrets.token_hex(16)
    key = base64.b64encode(secrets.token_bytes(16)).decode()
    head = (
        "GET /session HTTP/1.1\r\nHost: agent\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: {key}\r\n{DIAL_HEADER}: {dial_header(token, nonce)}\r\n\r\n"
    )
    transport, (status, headers, early) = await _ask(endpoint, head.encode(), timeout_s)
    if status == 101 and headers.get("sec-websocket-accept") == accept_key(key) and _is_proven(endpoint, token, nonce, headers):
        return Dialled(transport, early, _seconds(headers.get(IDLE_HEADER.lower(), "")))
    transport.abort()
    if status in (101, 403):
        raise DialError("agent_identity", "the agent at the sandbox's address is not the sandbox's own", fault="workload")
    message = f"the sandbox's agent refused the connection with status {status}"
    raise DialError("agent_unreachable", message, fault="workload")


async def idle_time(secrets_: tuple[str, ...], record: Record) -> float | None:
    """For how many seconds a sandbox has been idle, which only its agent knows.

    None if its agent will never answer again; raises ``DialError`` if it may answer later.
    """
    try:
        dialled = await dial(record.endpoint, secrets_, record.sandbox_id, record.incarnation, _IDLE_S)
    except DialError:
        if record.expires_at is not None and time.time() - record.expires_at > _PATIENCE_S:
            return None
        raise
    dialled.transport.abort()
    return dialled.idle_s


async def adopt_agent(endpoint: str, token: str, new_token: str, identity: Mapping[str, Any], timeout_s: float) -> None:
    """Give the agent that knows ``token`` the identity of ``new_token``. The agent proves that it took it, and which pod it is in.

    ``identity`` has ``sandbox_id``, ``incarnation``, ``env`` and ``labels``, and ``workdir`` and ``user`` if they change. ``endpoint`` is
    as ``dial_agent`` takes it. Raises ``DialError``, or the ``HoldfastError`` that the agent answers; after either the agent's identity is
    unknown, and it should be discarded.
    """
    nonce = secrets.token_hex(16)
    body = json.dumps({**identity, "token": seal_token(token, nonce, new_token)}).encode()
    head = (
        "POST /adopt HTTP/1.1\r\nHost: agent\r\nConnection: close\r\nContent-Type: application/json\r\n"
        f"{DIAL_HEADER}: {dial_header(token, nonce)}\r\n{BODY_HEADER}: {body_mac(token, nonce, body)}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    transport, (status, headers, answer) = await _ask(endpoint, head.encode() + body, timeout_s)
    transport.abort()
    if status != 200:
        raise _refusal(status, answer)
    if not _is_proven(endpoint, new_token, nonce, headers):
        raise DialError("agent_identity", "the agent at the spare's address did not take the identity of the sandbox")


def _refusal(status: int, answer: bytes) -> HoldfastError:
    try:
        body = json.loads(answer)
    except (ValueError, RecursionError):
        body = None
    if isinstance(body, dict) and isinstance(body.get("code"), str):
        return HoldfastError.from_map(body)
    return DialError("agent_unreachable", f"the spare's agent refused the adoption with status {status}")


_Answer = tuple[int, dict[str, str], bytes]
"""Status, headers with names in lower case, and the bytes after them: the body or, after an upgrade, the first bytes of the session."""


async def _ask(endpoint: str, request: bytes, timeout_s: float) -> tuple[asyncio.Transport, _Answer]:
    """Send a request to an agent and read the answer. Raises ``DialError``."""
    scheme, _, address = endpoint.partition("#")[0].partition("://")
    loop = asyncio.get_running_loop()
    reader = _AnswerReader(loop.create_future())
    transport: asyncio.Transport | None = None
    try:
        async with asyncio.timeout(timeout_s):
            if scheme == "unix":
                transport, _ = await loop.create_unix_connection(lambda: reader, address)
            elif scheme == "tcp":
                host, _, port = address.rpartition(":")
                transport, _ = await loop.create_connection(lambda: reader, host.strip("[]"), int(port))
            else:
                raise DialError("internal", "the placement of this sandbox has no usable endpoint")
            transport.write(request)
            return transport, await reader.answer
    except BaseException as error:
        if transport is not None:
            transport.abort()
        if isinstance(error, OSError | TimeoutError | ValueError):
            # An agent that its workload controls can close its socket or not answer: only a failing network is the infrastructure's fault.
            closed = transport is not None or isinstance(error, ConnectionError | FileNotFoundError | BlockingIOError)
            fault: Fault = "workload" if closed else "infrastructure"
            raise DialError("agent_unreachable", "the sandbox's agent does not answer", fault=fault) from error
        raise


def _is_proven(endpoint: str, token: str, nonce: str, headers: Mapping[str, str]) -> bool:
    """Whether the agent knows the token and, where the endpoint names a uid, is in that pod."""
    identity, expected = headers.get(IDENTITY_HEADER.lower(), ""), endpoint.partition("#")[2]
    return check_proof(token, nonce, headers.get(PROOF_HEADER.lower(), ""), identity) and identity == (expected or identity)


def _seconds(text: str) -> float | None:
    try:
        return max(float(text), 0.0)  # NaN counts as 0
    except ValueError:
        return None


class _AnswerReader(asyncio.Protocol):
    """Reads an answer, then stops reading. Its body needs a Content-Length: the end of the connection does not complete it."""

    def __init__(self, answer: asyncio.Future[_Answer]) -> None:
        self.answer = answer
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self._received = 0
        self._complete = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not subclasses

    def data_received(self, data: bytes) -> None:
        if self.answer.done():
            return
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._body += data[upgrade.args[0] :]
        except httptools.HttpParserError as error:
            if not self._complete:  # bytes after an answer are ignored
                self._end(OSError(f"the agent's answer is not HTTP: {error}"))
                return
        if self._complete:
            self._end()
        elif self._received > _ANSWER_BYTES:
            self._end(OSError("the agent's answer is too long"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.answer.done():
            self.answer.set_exception(exc if isinstance(exc, OSError) else OSError("the agent closed the connection"))

    def _end(self, error: OSError | None = None) -> None:
        assert self._transport is not None
        self._transport.pause_reading()
        if error is not None:
            self.answer.set_exception(error)
        else:
            self.answer.set_result((self._parser.get_status_code(), self._headers, bytes(self._body)))

    # What the parser reports ----------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self._complete = True
