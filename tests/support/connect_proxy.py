"""An HTTP proxy that opens tunnels (CONNECT, RFC 9110 §9.3.6) for clients with its user and password, on loopback.

Owns one server in a thread with a loop of its own. Requests other than CONNECT, and those without the right credentials, are refused as a
company's proxy does. ``tunnels`` counts what was opened, before the client is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from base64 import b64encode
from typing import Self


class ConnectProxy:
    """The proxy. ``answer``, if set, is sent instead of opening a tunnel; ``None`` opens them."""

    def __init__(self, user: str = "user", password: str = "pa ss") -> None:
        self._credentials = f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"
        self.answer: bytes | None = None
        self.tunnels: list[str] = []
        """The ``host:port`` of each tunnel that was opened."""
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._up = threading.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._up.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)

    def _run(self) -> None:
        self._loop.run_until_complete(self._start())
        self._up.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._stop())
        self._loop.close()

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # transports close in the loop's next turn

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError), contextlib.closing(writer):
            first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            method, target, _ = first.split(" ")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            refusal = self.answer
            if refusal is None and method != "CONNECT":
                refusal = b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n"
            if refusal is None and headers.get("proxy-authorization") != self._credentials:
                refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n"
            if refusal is not None:
                writer.write(refusal)
                await writer.drain()
                return
            host, _, port = target.rpartition(":")
            far_reader, far_writer = await asyncio.open_connection(host.strip("[]"), int(port))
            with contextlib.closing(far_writer):
                self.tunnels.append(target)
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await asyncio.gather(_carry(reader, far_writer), _carry(far_reader, writer))


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send what arrives to the other side, and its end."""
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.write_eof()
