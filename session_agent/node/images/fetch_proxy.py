"""The only way out of a pull: an HTTP proxy for the process that fetches an image, which has no network of its own.

Owns the check of each connection (``registries``), the connection itself, and the count of received bytes. It connects to the address that
was checked, so a name that resolves differently a moment later changes nothing. Where this machine itself has a proxy (``HTTPS_PROXY``),
connections go through that. Called by ``pull``.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import socket
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from session_agent.node.images.registries import RefusedError, Registries, is_public

_HEAD_BYTES = 64 * 1024
_HEAD_S = 30.0
_CONNECT_S = 30.0
_PIECE_BYTES = 256 * 1024
_CONNECTIONS = 32
"""Most connections of one pull at a time."""
_LINE = re.compile(rb"([A-Z]{1,16}) (\S{1,8192}) HTTP/1\.[01]")

_Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class FetchProxy:
    """Serves one pull on a socket that listens in the network namespace of its process.

    ``on_bytes`` is called with the number of bytes of each piece that was received; what it raises ends the connection.
    """

    def __init__(self, registries: Registries, on_bytes: Callable[[int], None], upstream: str = "") -> None:
        self._registries = registries
        self._on_bytes = on_bytes
        self._upstream = upstream
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self.refusal = ""
        """Why a connection was refused last."""

    async def start(self, listener: socket.socket) -> None:
        """Serve as an HTTP proxy."""
        self._servers.append(await asyncio.start_server(self._accepted(self._serve), sock=listener, limit=_HEAD_BYTES))

    async def forward(self, listener: socket.socket, host: str, port: int) -> None:
        """Forward every connection to ``host``, without a request for a proxy."""
        serve = functools.partial(self._forward, host, port)
        self._servers.append(await asyncio.start_server(self._accepted(serve), sock=listener, limit=_HEAD_BYTES))

    async def aclose(self) -> None:
        """End all connections."""
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _accepted(self, serve: _Serve) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if len(self._tasks) >= _CONNECTIONS:
                writer.transport.abort()
                return
            task = asyncio.get_running_loop().create_task(self._answer(serve, reader, writer), name="connection of a pull")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return accept

    async def _answer(self, serve: _Serve, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except RefusedError as error:
            self.refusal = str(error)
            writer.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_HEAD_S):
            head = await reader.readuntil(b"\r\n\r\n")
        line, _, fields = head.partition(b"\r\n")
        match = _LINE.fullmatch(line)
        if match is None:
            raise RefusedError("the request is not one for a proxy")
        method, target = match[1].decode(), match[2].decode("latin-1")
        url = urlsplit(f"//{target}" if method == "CONNECT" else target)
        host, port = url.hostname or "", url.port or (443 if method == "CONNECT" else 80)
        if not host or (method != "CONNECT" and url.scheme != "http"):
            raise RefusedError("the request is not one for a proxy")
        far = await self._connect(host, port)
        if method == "CONNECT":
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:  # one request for each connection: the next one may be for another host
            path = (url.path or "/") + (f"?{url.query}" if url.query else "")
            kept = [one for one in fields.split(b"\r\n") if one and not one.lower().startswith((b"connection:", b"proxy-"))]
            far[1].write(b"\r\n".join((f"{method} {path} HTTP/1.1".encode("latin-1"), *kept, b"connection: close", b"", b"")))
        await self._join((reader, writer), far)

    async def _forward(self, host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._join((reader, writer), await self._connect(host, port))

    async def _join(self, near: _Streams, far: _Streams) -> None:
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_copy(near[0], far[1], None))
                both.create_task(_copy(far[0], near[1], self._on_bytes))
        except ExceptionGroup:
            pass  # a connection broke, or the pull is over its size
        finally:
            far[1].close()

    async def _connect(self, host: str, port: int) -> _Streams:
        async with asyncio.timeout(_CONNECT_S):
            if self._upstream and not self._registries.names(host, port):
                return await self._through_upstream(host, port)
            failed: OSError | None = None
            for address in await self._registries.addresses(host, port):
                try:
                    return await asyncio.open_connection(address, port)
                except OSError as error:
                    failed = error
            raise failed or OSError(f"{host} has no address")

    async def _through_upstream(self, host: str, port: int) -> _Streams:
        """Through this machine's own proxy, which resolves the name where this machine cannot."""
        with contextlib.suppress(socket.gaierror):
            await self._registries.addresses(host, port)
        with contextlib.suppress(ValueError):
            if not is_public(host):
                raise RefusedError(f"{host} has no public address")
        url = urlsplit(self._upstream if "//" in self._upstream else f"http://{self._upstream}")
        reader, writer = await asyncio.open_connection(url.hostname, url.port or 80)
        writer.write(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        answer = await reader.readuntil(b"\r\n\r\n")
        if answer.split(b" ", 2)[1:2] != [b"200"]:
            writer.close()
            raise OSError(f"the proxy of this machine refused {host}:{port}")
        return reader, writer


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, on_bytes: Callable[[int], None] | None) -> None:
    while data := await reader.read(_PIECE_BYTES):
        if on_bytes is not None:
            on_bytes(len(data))
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
