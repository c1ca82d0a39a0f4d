"""The warm-up of an agent that waits for its first command, so that this command starts sooner.

A forked agent shares its memory with the process it was forked from until it writes to it, and Python writes on every use: the
first connection would pay for a thousand copied pages. ``warm_up`` sends one Hello, one command that cannot start and one
refused request through the real code, over a socket pair. It starts no program of the image and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import socket

from holdfast_wire.codec import encode, encode_item
from holdfast_wire.fast_dataclass import compile_all
from holdfast_wire.frames import Hello, Open
from holdfast_wire.proof import DIAL_HEADER, dial_header

from session_agent.agent.commands import entrypoint  # noqa: F401 - a sandbox cannot import what the zygote has not
from session_agent.agent.process.privileges import drop_calls
from session_agent.agent.session.connection import Connection
from session_agent.agent.settings import AgentSettings

from .handlers import LazyHandlers
from .server import AgentServer, log_to_stderr, warm_allocator

_TOKEN = "0" * 64
_NOWHERE = "/\x01nowhere/program"
_ULIMITS = {"core": (0, 0)}
"""With any, a command is started as it is where commands have namespaces of their own."""
_REQUEST = (
    "GET /session HTTP/1.1\r\nHost: agent\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    f"{DIAL_HEADER}: {dial_header(_TOKEN, '0' * 32)}\r\n\r\n"
)


def warm_up() -> None:
    """Run the warm-up. It may be called more than once, and with an empty file system."""
    log_to_stderr()
    warm_allocator()
    drop_calls()
    compile_all()
    asyncio.run(_warm_up())


async def _warm_up() -> None:
    settings = AgentSettings.from_config({"sandbox_id": "warm-up", "token": _TOKEN, "workdir": "/", "ulimits": _ULIMITS})
    server = AgentServer(settings, dict(LazyHandlers()))
    server.context.start()
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(lambda: Connection(server), sock=theirs)
    ours.setblocking(False)
    try:
        hello = Hello(1, "warm-up-warm-up-1234", b"warm-up-warm-up-1234", "", 0, 1, {}, 1)
        command = Open(1, "command", {"id": "warm-up", "argv": [_NOWHERE], "cwd": "/"})
        unknown = Open(2, "follow", {"id": "unknown"})
        messages = (encode(hello), encode_item(command, 0), encode_item(unknown, 0))
        await loop.sock_sendall(ours, _REQUEST.encode())
        await loop.sock_recv(ours, 65536)
        for message in messages:
            await loop.sock_sendall(ours, _masked(message))
            await asyncio.wait_for(loop.sock_recv(ours, 65536), 1.0)
        async with asyncio.timeout(1.0):
            while server.context.reaper.pids:
                await loop.sock_recv(ours, 65536)
    finally:
        ours.close()
        transport.abort()
        server.sessions.close()
        server.context.close()
        await asyncio.sleep(0)


def _masked(message: bytes) -> bytes:
    size = bytes([0x80 | len(message)]) if len(message) < 126 else b"\xfe" + len(message).to_bytes(2, "big")
    return b"\x82" + size + b"\0\0\0\0" + message
