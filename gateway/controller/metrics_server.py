"""The controller's HTTP listener: ``/metrics`` for Prometheus, ``/healthz`` for a liveness probe.

Listens only where HOLDFAST_METRICS_PORT names a port; the controller offers nothing else. One short request a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from holdfast_wire.http1 import HttpError, read_request_head
from holdfast_wire.http1 import answer as http_answer

_HEAD_BYTES = 8192
_REQUEST_S = 5.0


@contextlib.asynccontextmanager
async def serve_metrics(host: str, port: int, metrics: Callable[[], str]) -> AsyncIterator[int]:
    """Serve until the block ends; yields the port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
                texts = {"/metrics": metrics, "/healthz": _healthy}
                try:
                    text = texts.get(read_request_head(head[:-4]).target)
                    status, body = (404, b"") if text is None else (200, text().encode())
                except HttpError:
                    status, body = 400, b""
                writer.write(http_answer(status, {"Content-Type": "text/plain; version=0.0.4"}, body))
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, host, port, limit=_HEAD_BYTES)
    async with server:
        yield server.sockets[0].getsockname()[1]


def _healthy() -> str:
    return "ok\n"
