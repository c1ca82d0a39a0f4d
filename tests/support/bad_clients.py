"""Clients without a key that misbehave: ``python -m tests.support.bad_clients KIND HOST PORT SOURCE`` runs one kind, from the
address SOURCE, until its input ends.

Owns the kinds. Each opens ``CONNECTIONS`` connections and keeps them busy in its way; what the server closes is opened again. It prints one
line when all have begun. Called by the suite of unauthenticated clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable

CONNECTIONS = 100
_PAUSE_S = 0.05
"""Between two attempts of one connection: a kind costs the server by what it sends, not by how often."""
_GET = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
_UPGRADE = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
_WEBSOCKET = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
_POST = b"POST /sandboxes HTTP/1.1\r\nHost: x\r\n"


def _once(data: bytes) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        while await reader.read(65536):
            pass

    return behave


def _drip(first: bytes, drop: bytes) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        while not writer.is_closing() and not reader.at_eof():
            writer.write(drop)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(reader.read(65536), _PAUSE_S)

    return behave


async def _reads_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 100)
    await asyncio.sleep(3600)


async def _leaves(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(_GET)
    writer.transport.abort()


KINDS: dict[str, Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]] = {
    "upgrade heads": _once(_GET.replace(b"\r\n\r\n", b"\r\n" + _UPGRADE + b"\r\n") * 400),
    "pipelined heads": _once(_GET * 400),
    "empty lines": _drip(_GET, b"\r\n"),
    "slow head": _drip(b"GET /health HTTP/1.1\r\nX: ", b"a"),
    "body after the answer": _drip(_POST + b"Content-Length: 1000000000\r\n\r\n", b"a"),
    "tiny chunks": _once(_POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 5000),
    "malformed chunk": _once(_POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"),
    "no host": _once(b"GET /health HTTP/1.1\r\n\r\n" * 100),
    "two hosts": _once(b"GET /health HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n"),
    "tls": _once(b"\x16\x03\x01\x02\x00\x01\x00"),
    "endless head": _once(b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 200_000),
    "many fields": _once(b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(300)) + b"\r\n"),
    "session without a key": _once(b"GET /sandboxes/x/session HTTP/1.1\r\nHost: x\r\n" + _WEBSOCKET + b"\r\n" + b"\x82\x80abcd" * 1000),
    "silent": _once(b""),
    "reads nothing": _reads_nothing,
    "leaves": _leaves,
}
SAMPLE = ("upgrade heads", "empty lines", "tiny chunks")


async def _again(kind: str, host: str, port: int, source: str, begun: asyncio.Semaphore) -> None:
    first = True
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(host, port, local_addr=(source, 0))
            if first:
                begun.release()
                first = False
            try:
                await KINDS[kind](reader, writer)
            finally:
                writer.transport.abort()
        await asyncio.sleep(_PAUSE_S)


async def _main(kind: str, host: str, port: int, source: str) -> None:
    begun = asyncio.Semaphore(0)
    async with asyncio.TaskGroup() as clients:
        tasks = [clients.create_task(_again(kind, host, port, source, begun)) for _ in range(CONNECTIONS)]
        for _ in tasks:
            await begun.acquire()
        print("begun", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        for task in tasks:
            task.cancel()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
