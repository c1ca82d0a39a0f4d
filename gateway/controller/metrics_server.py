"""The controller's HTTP listener: ``/metrics`` for Prometheus, ``/healthz`` for a liveness probe.

Listens only where HOLDFAST_METRICS_PORT names a port; the controller offers nothing else. One short request a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

_HEAD_BYTES = 8192
_REQUEST_S = 5.0


@contextlib.asynccontextmanager
async def serve_metrics(host: str, port: int, metrics: Callable[[], str]) -> AsyncIterator[int]:
    """Serve until the block ends; yields the port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
                path = head.split(b" ", 2)[1] if head.count(b" ") >= 2 else b""
                texts = {b"/metrics": metrics, b"/healthz": _healthy}
                status, body = ("200 OK", texts[path]().encode()) if path in texts else ("404 Not Found", b"")
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {len(body)}\r\n"
                    "Connection: close\r\n\r\n".encode()
                    + body
                )
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, host, port, limit=_HEAD_BYTES)
    async with server:
        yield server.sockets[0].getsockname()[1]


def _healthy() -> str:
    return "ok\n"
