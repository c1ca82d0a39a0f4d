"""A minimal gateway between an SDK and one agent: accepts the upgrade, dials the agent with the real proof, copies bytes.

Has no policy: no keys, no placement, and of REST only the sandbox's record. For tests of an agent in conditions that a whole stack cannot
produce.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast import AsyncSandbox, AsyncSandboxClient
from holdfast_wire.errors import HoldfastError

from gateway.agents.dial import dial_agent

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455 §1.3


READY_RECORD = {
    "sandbox_id": "sb-1", "namespace": "default", "image": "host", "block_network": True, "cpu": "1", "memory": "1Gi", "timeout": 60.0,
    "status": "ready", "ready": True,
}  # fmt: skip
"""The service's record of a sandbox that is ready."""


class Front:
    """Serves on a port of its own; ``endpoint`` and ``token`` are the agent's and may be changed at any time."""

    def __init__(self, endpoint: str, token: str) -> None:
        self.endpoint = endpoint
        self.token = token
        self.refusal = b""
        """A problem document that answers every further upgrade with 410."""
        self.leaving = ""
        """Why the record says that the sandbox will end soon. When its agent no longer answers, it has ended for that reason."""
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """Break every connection as a failing network would."""
        for writer in list(self._writers):
            writer.transport.abort()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if self.refusal:
                writer.write(_answer("410 Gone", self.refusal))
                return
            if b"upgrade: websocket" not in head.lower():
                planned = {"reason": self.leaving, "fault": "infrastructure", "message": "announced", "deadline": 1.0}
                record = {**READY_RECORD, "leaving": planned if self.leaving else None}
                writer.write(_answer("200 OK", json.dumps(record).encode()))
                return
            key = next(line.partition(b":")[2].strip() for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key"))
            try:
                dialled = await dial_agent(self.endpoint, self.token, 60.0)
            except HoldfastError:
                if self.leaving and self.endpoint != "unix:///nowhere":
                    gone = {"code": "sandbox_gone", "detail": "it has ended", "reason": self.leaving, "fault": "infrastructure"}
                    writer.write(_answer("410 Gone", json.dumps(gone).encode()))
                raise
            accept = base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest())
            writer.write(
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
                + accept
                + b"\r\n\r\n"
            )
            back = _Back(writer, dialled.transport)
            dialled.transport.set_protocol(back)
            if dialled.early:
                back.data_received(dialled.early)
            dialled.transport.resume_reading()
            while data := await reader.read(65536):
                dialled.transport.write(data)
            dialled.transport.close()
        except (OSError, asyncio.IncompleteReadError, HoldfastError):
            pass
        finally:
            self._writers.discard(writer)
            with contextlib.suppress(OSError):
                writer.close()


def _answer(status: str, body: bytes) -> bytes:
    kind = "application/json" if status.startswith("200") else "application/problem+json"
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


class _Back(asyncio.Protocol):
    """Copy the agent's bytes to the client in order, with back-pressure."""

    def __init__(self, writer: asyncio.StreamWriter, agent: asyncio.Transport) -> None:
        self._writer = writer
        self._agent = agent
        self._draining: asyncio.Task[None] | None = None

    def data_received(self, data: bytes) -> None:
        self._writer.write(data)
        if self._draining is None and self._writer.transport.get_write_buffer_size() > 1 << 20:
            self._agent.pause_reading()
            self._draining = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        with contextlib.suppress(OSError):
            await self._writer.drain()
        self._draining = None
        if not self._agent.is_closing():
            self._agent.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._writer.close()


@asynccontextmanager
async def sdk_on(endpoint: str, token: str, **options: float) -> AsyncIterator[tuple[AsyncSandbox, Front]]:
    """A sandbox object of the SDK that is connected to one agent, and the gateway between them."""
    front = Front(endpoint, token)
    await front.start()
    client = AsyncSandboxClient(front.url, "hf_" + "t" * 32, **options)  # type: ignore[arg-type]
    sandbox = client.get_sandbox("sb-1")
    try:
        yield sandbox, front
    finally:
        await sandbox.close()
        await client.close()
        await front.stop()
