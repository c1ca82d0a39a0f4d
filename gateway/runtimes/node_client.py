"""Requests to this machine's node: newline-delimited JSON over its Unix socket.

Owns one persistent connection, on which requests are pipelined. What they mean is in ``local``.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeVar, cast

import orjson
from holdfast_wire.errors import HoldfastError

from .base import RuntimeUnavailableError

_T = TypeVar("_T")
_LINE_BYTES = 64 * 1024 * 1024
"""Longest line: a list of 100 000 sandboxes fits."""
CONNECT_S = 2.0
_CALL_S = 10.0
"""Default time limit of a call: the node answers from memory, unless the caller sets another limit."""


class NodeClient:
    """Requests and answers on one connection, made when needed and again when it broke."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._numbers = itertools.count(1)
        self._connection: _Connection | None = None
        self._connecting = asyncio.Lock()

    async def call(self, op: str, arguments: dict[str, Any] | None = None, timeout_s: float = _CALL_S) -> dict[str, Any]:
        """One request; the answer's map. Raises the node's error, or ``RuntimeUnavailableError``."""
        number, connection = next(self._numbers), self._connection
        try:
            async with asyncio.timeout(timeout_s):
                if connection is None or connection.ended.done():
                    connection = await self._connect()
                body = await connection.ask(number, orjson.dumps({"id": number, "op": op, **(arguments or {})}))
        except TimeoutError:
            raise RuntimeUnavailableError(f"the node did not answer {op} within {timeout_s:g} s") from None
        finally:
            if connection is not None:
                connection.pending.pop(number, None)
        return result_of(body)

    async def aclose(self) -> None:
        if self._connection is not None:
            self._connection.transport.abort()
            await self._connection.ended

    async def _connect(self) -> _Connection:
        async with self._connecting:
            if self._connection is None or self._connection.ended.done():
                loop = asyncio.get_running_loop()
                _, connection = await _in_time(loop.create_unix_connection(_Connection, str(self._path)))
                self._connection = connection
            return self._connection


class _Connection(asyncio.Protocol):
    """Matches answers to requests by their numbers."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.pending: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._parts: list[bytes] = []
        """Of the line that has begun."""
        self._size = 0

    def ask(self, number: int, line: bytes) -> asyncio.Future[dict[str, Any]]:
        """The answer to come."""
        answer = self.pending[number] = asyncio.get_running_loop().create_future()
        self.transport.write(line + b"\n")
        return answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are not subclasses

    def data_received(self, data: bytes) -> None:
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join((*self._parts, lines[0]))
            self._parts, self._size = [], 0
        self._parts.append(rest)
        self._size += len(rest)
        try:
            for line in lines:
                body = orjson.loads(line)
                answer = self.pending.get(body.get("id"))
                if answer is not None and not answer.done():
                    answer.set_result(body)
        except ValueError:
            self.transport.abort()
        if self._size > _LINE_BYTES:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(None)
        for answer in self.pending.values():
            if not answer.done():
                answer.set_exception(RuntimeUnavailableError("the node closed the connection"))


async def connect(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to the node for a watch. Raises ``RuntimeUnavailableError``."""
    return await _in_time(asyncio.open_unix_connection(str(path), limit=_LINE_BYTES))


async def _in_time(connecting: Awaitable[_T]) -> _T:
    try:
        async with asyncio.timeout(CONNECT_S):
            return await connecting
    except (OSError, TimeoutError) as error:
        raise RuntimeUnavailableError("the node is not running", made_nothing=True) from error


def result_of(body: dict[str, Any]) -> dict[str, Any]:
    """An answer's map, or the node's error raised."""
    if body.get("ok") is True:
        return body
    raise HoldfastError.from_map(body.get("error"))
