"""Agents that only prove their identity: for tests with a thousand pods, where processes would dominate the measurement."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib

from holdfast_wire.proof import DIAL_HEADER, IDENTITY_HEADER, PROOF_HEADER, answer_dial

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class ThinAgent:
    """Listens on its pod's address and answers dials, nothing else."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._token = environment["HOLDFAST_AGENT_TOKEN"]
        self._uid = environment["HOLDFAST_AGENT_POD_UID"]
        self._host, _, self._port = environment["HOLDFAST_AGENT_LISTEN"].removeprefix("tcp://").rpartition(":")
        self._server: asyncio.Server | None = None
        self._over = asyncio.Event()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._answer, self._host, int(self._port))

    async def ended(self) -> int:
        await self._over.wait()
        return 0

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self._over.set()

    kill = stop

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
            proof = answer_dial(self._token, headers.get(DIAL_HEADER, ""), self._uid)
            if proof is None:
                writer.write(b"HTTP/1.1 403 Forbidden\r\n\r\n")
            else:
                accept = base64.b64encode(hashlib.sha1(headers["Sec-WebSocket-Key"].encode() + _GUID).digest()).decode()
                lines = ("HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade", f"Sec-WebSocket-Accept: {accept}")
                writer.write("\r\n".join([*lines, f"{PROOF_HEADER}: {proof}", f"{IDENTITY_HEADER}: {self._uid}", "", ""]).encode())
            await writer.drain()
            await reader.read()
        writer.close()
