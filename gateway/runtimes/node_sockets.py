"""A request to the node whose answer is a socket, on a connection of its own: descriptors cannot follow pipelined requests.

Owns that connection. The node is trusted, and makes the socket itself; no process of a sandbox has it. Called by ``local``.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any, Final

import orjson

_ANSWER_BYTES: Final = 64 * 1024


async def ask(path: Path, request: bytes) -> tuple[dict[str, Any], socket.socket | None]:
    """The answer to a request, and the socket with it. Raises OSError if there is no whole answer; the caller limits the time."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as node:
        await loop.sock_connect(node, str(path))
        await loop.sock_sendall(node, request + b"\n")
        received: list[socket.socket] = []
        try:
            answer = b""
            while not answer.endswith(b"\n"):
                await _readable(node)
                data, descriptors, _, _ = socket.recv_fds(node, _ANSWER_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
                received += [socket.socket(fileno=one) for one in descriptors]
                answer += data
                if not data or len(answer) > _ANSWER_BYTES:
                    raise ConnectionResetError("the node's answer was incomplete")
            body = orjson.loads(answer)
            for one in received:
                one.setblocking(False)
            return body, received.pop() if received else None
        finally:
            for one in received:
                one.close()


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(connection, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(connection)
