"""The sink of the audit log: entries as JSON lines, appended to a file or written to standard output.

Owns the queue in front of it, its bound, and what happens when it is lost: entries that cannot be written are kept and tried again, those
beyond the bound are dropped and counted, or, where the deployment requires the log, the requests that would make them are refused. The file
is opened again for every batch, so that it may be rotated. Called by ``gateway.app`` and ``use_cases.audited``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import orjson
from holdfast_wire.errors import HoldfastError

from gateway.metrics import Metrics

log = logging.getLogger("gateway.audit")

STDOUT: Final = "stdout"
OFF: Final = "off"
_QUEUE: Final = 10_000
_QUEUE_BYTES: Final = 64 * 1024 * 1024
"""Most bytes of the entries that wait; an entry may have the names of many sandboxes and files."""
_BATCH_S: Final = 0.1
_ANONYMOUS_PER_S: Final = 10.0
"""Refusals of requests without a valid key that are recorded in a second; the number of the others is in the next entry."""
_LOOKED_AT_BYTES: Final = 256 * 1024 * 1024
"""How much of the end of the file a query reads."""


class AuditLog:
    """One per replica. Does nothing if ``place`` is ``off``."""

    def __init__(self, place: str, metrics: Metrics, replica: str, *, required: bool = False, queue: int = _QUEUE) -> None:
        self.place = place
        self.is_on = place != OFF
        self.available = True
        """Whether the last write has succeeded."""
        self._required = required
        self._metrics = metrics
        self._replica = replica
        self._most = queue
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._added = asyncio.Event()
        self._anonymous_left = _ANONYMOUS_PER_S
        self._anonymous_at = time.monotonic()
        self._suppressed = 0

    @property
    def waiting(self) -> int:
        """Entries that are not written yet."""
        return len(self._waiting)

    @property
    def _is_full(self) -> bool:
        return len(self._waiting) >= self._most or self._waiting_bytes >= _QUEUE_BYTES

    def check(self) -> None:
        """Raises ``audit_unavailable`` while the log cannot be written and is required."""
        if self._required and self.is_on and (not self.available or self._is_full):
            raise HoldfastError("audit_unavailable", "the audit log cannot be written, and this service does no work without it")

    def add(self, entry: Mapping[str, Any], *, anonymous: bool = False) -> None:
        """Add an entry. ``anonymous``: a request without a valid key, of which only some are recorded."""
        if not self.is_on:
            return
        more: dict[str, Any] = {}
        if anonymous:
            now = time.monotonic()
            self._anonymous_left = min(_ANONYMOUS_PER_S, self._anonymous_left + (now - self._anonymous_at) * _ANONYMOUS_PER_S)
            self._anonymous_at = now
            if self._anonymous_left < 1.0:
                self._suppressed += 1
                return
            self._anonymous_left -= 1.0
            if self._suppressed:
                more, self._suppressed = {"not_recorded": self._suppressed}, 0
        if self._is_full:
            self._metrics.count("audit_lost_total")
            return
        line = {"time": round(time.time(), 6), **entry, **more, "replica": self._replica}
        text = orjson.dumps(line, default=str, option=orjson.OPT_APPEND_NEWLINE)
        self._waiting.append(text)
        self._waiting_bytes += len(text)
        self._added.set()

    async def run(self) -> None:
        """Write until cancelled."""
        self._metrics.gauge("audit_available", 1)
        while True:
            await self._added.wait()
            self._added.clear()
            await asyncio.sleep(_BATCH_S)
            await self.flush()

    async def flush(self) -> None:
        """Write what waits. What cannot be written waits for the next time."""
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), 1000))]
            self._waiting_bytes -= sum(map(len, batch))
            size, error = await asyncio.to_thread(self._write, b"".join(batch))
            left = _left(batch, size)
            self._metrics.count("audit_lines_total", len(batch) - len(left))
            if error is not None:
                self._waiting.extendleft(reversed(left))
                self._waiting_bytes += sum(map(len, left))
                if self.available:
                    log.error("the audit log %s cannot be written: %s", self.place, error.strerror or error)
                self._set_available(False)
                self._added.set()
                await asyncio.sleep(_BATCH_S)
                return
            self._set_available(True)

    async def aclose(self) -> None:
        if self.is_on:
            await self.flush()
            if self._waiting:
                self._metrics.count("audit_lost_total", len(self._waiting))
                log.error("%d entries of the audit log %s could not be written before the end", len(self._waiting), self.place)

    def _set_available(self, available: bool) -> None:
        if available != self.available:
            self.available = available
            self._metrics.gauge("audit_available", int(available))
            if available:
                log.warning("the audit log %s is written again", self.place)

    def _write(self, lines: bytes) -> tuple[int, OSError | None]:
        """How many bytes were written, and why not the others."""
        size = 0
        try:
            if self.place == STDOUT:
                sys.stdout.buffer.write(lines)
                sys.stdout.buffer.flush()
                return len(lines), None
            descriptor = os.open(self.place, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                while size < len(lines):
                    size += os.write(descriptor, lines[size:])
            finally:
                os.close(descriptor)
        except OSError as error:
            return size, error
        return size, None

    async def query(self, passes: Callable[[dict[str, Any]], bool], since: float, limit: int) -> list[dict[str, Any]]:
        """The last entries of this log that were written at or after ``since`` and pass. Raises ``unsupported`` if it is no file."""
        if not self.is_on or self.place == STDOUT:
            hint = "set HOLDFAST_AUDIT to a file; the entries on standard output are where your logs are"
            raise HoldfastError("unsupported", "this service keeps no audit log that can be read here", hint=hint)
        await self.flush()
        return await asyncio.to_thread(self._read, passes, since, limit)

    def _read(self, passes: Callable[[dict[str, Any]], bool], since: float, limit: int) -> list[dict[str, Any]]:
        found: deque[dict[str, Any]] = deque(maxlen=limit)
        for entry in _entries(Path(self.place)):
            if isinstance(entry.get("time"), float) and entry["time"] >= since and passes(entry):
                found.append(entry)
        return list(found)


def _left(lines: list[bytes], size: int) -> list[bytes]:
    """The lines that are not whole in the first ``size`` bytes; a part of the first one is in the file then, and becomes a line."""
    for number, line in enumerate(lines):
        if size < len(line):
            return [b"\n" + line if size else line, *lines[number + 1 :]]
        size -= len(line)
    return []


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _LOOKED_AT_BYTES, 0))
            if size > _LOOKED_AT_BYTES:
                file.readline()
            for line in file:
                try:
                    entry = orjson.loads(line)
                except ValueError:
                    continue  # a line that a crash has cut off
                if isinstance(entry, dict):
                    yield entry
    except FileNotFoundError:
        return
