"""Requests to this machine's node: newline-delimited JSON over its Unix socket.

Owns one persistent connection, on which requests are pipelined. What they mean is in ``local``.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from pathlib import Path
from typing import Any

import orjson
from holdfast_wire.errors import HoldfastError

from .base import RuntimeUnavailableError

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
        self._pending: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._reader_task: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()

    async def call(self, op: str, arguments: dict[str, Any] | None = None, timeout_s: float = _CALL_S) -> dict[str, Any]:
        """One request; the answer's map. Raises the node's error, or ``RuntimeUnavailableError``."""
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                writer = await self._connected()
                self._pending[number] = answer
                writer.write(orjson.dumps({"id": number, "op": op, **(arguments or {})}) + b"\n")
                await writer.drain()
                body = await answer
        except TimeoutError:
            raise RuntimeUnavailableError(f"the node did not answer {op} within {timeout_s:g} s") from None
        except OSError as error:
            raise RuntimeUnavailableError from error
        finally:
            self._pending.pop(number, None)
        return result_of(body)

    async def aclose(self) -> None:
        if self._reader_task is not None:
            self._reader_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader_task

    async def _connected(self) -> asyncio.StreamWriter:
        async with self._connecting:
            if self._writer is None or self._writer.is_closing():
                reader, self._writer = await connect(self._path)
                # Assigned here, not in the task: the first request is registered before the task first runs.
                waiting = self._pending = {}
                reading = self._read(reader, self._writer, waiting)
                self._reader_task = asyncio.get_running_loop().create_task(reading, name="node answers")
            return self._writer

    async def _read(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, waiting: dict[int, asyncio.Future[dict[str, Any]]]
    ) -> None:
        try:
            while line := await reader.readline():
                body = orjson.loads(line)
                answer = waiting.get(body.get("id"))
                if answer is not None and not answer.done():
                    answer.set_result(body)
        except (OSError, ValueError):
            pass
        finally:
            writer.close()
            if self._writer is writer:
                self._writer = None
            for answer in waiting.values():
                if not answer.done():
                    answer.set_exception(RuntimeUnavailableError("the node closed the connection"))


async def connect(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to the node. Raises ``RuntimeUnavailableError``."""
    try:
        async with asyncio.timeout(CONNECT_S):
            return await asyncio.open_unix_connection(str(path), limit=_LINE_BYTES)
    except (OSError, TimeoutError) as error:
        raise RuntimeUnavailableError("the node is not running", made_nothing=True) from error


def result_of(body: dict[str, Any]) -> dict[str, Any]:
    """An answer's map, or the node's error raised."""
    if body.get("ok") is True:
        return body
    raise HoldfastError.from_map(body.get("error"))
