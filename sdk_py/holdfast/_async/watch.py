"""Events for changes in a directory of the sandbox.

Owns the reading of events; the agent decides what an event means. Created by ``sandbox.files.watch``.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

import msgpack

from holdfast._arguments import wait_time_of
from holdfast._async.transfers import AsyncTransfer
from holdfast._errors import WaitTimeoutError
from holdfast._file_results import FileEvent, read_event
from holdfast._local_files import read_each
from holdfast._public import public
from holdfast._transport.aio.driver import SessionDriver
from holdfast._transport.session.sinks import WatchSink

_MOST_BYTES = 1024 * 1024


@public
class AsyncWatch:
    """Changes of files: iterate it, or ``read`` one event at a time.

    It ends with its ``with`` block, with ``close``, or when the watched path is removed. A connection that is lost and resumed loses no
    event. If events are not read for long, or too many come at once, an event ``overflow`` reports that some were lost: list the directory
    again. If the session is lost, ``SessionLostError`` is raised.
    """

    def __init__(self, driver: SessionDriver, params: dict[str, Any]) -> None:
        self._driver = driver
        self._path = params["path"]
        self._found: deque[FileEvent] = deque()
        self._closed = False
        self._unpacker = msgpack.Unpacker(raw=False, strict_map_key=True, max_buffer_size=_MOST_BYTES)
        sink = WatchSink(driver.engine.session, driver.engine.new_event)
        self._transfer = AsyncTransfer(driver, "watch", params, sink)

    async def _start(self) -> None:
        """Return once it watches, or raise why it cannot."""
        try:
            await self._transfer.opened()
        except BaseException:
            await self.close()
            raise

    async def read(self, timeout: float | None = None) -> FileEvent | None:
        """The next event, or None if the watch was closed or the watched path was removed.

        A cancelled wait loses no event. Raises ``WaitTimeoutError`` after ``timeout`` seconds, and the typed error if the session ends
        first.
        """
        sink = self._transfer._sink
        timeout = wait_time_of(timeout)
        end = None if timeout is None else time.monotonic() + timeout
        while not self._found:
            if self._closed:
                return None
            data = self._driver.perform(self._take)
            if data is None:
                if not await sink.changed.wait(None if end is None else max(end - time.monotonic(), 0.0)):
                    raise WaitTimeoutError(message=f"nothing changed within {timeout:g} s")
            elif not data:
                if sink.error is not None and not self._closed:
                    raise sink.error
                return None
        return self._found.popleft()

    def _take(self) -> bytes | None:
        """Take what has come and read the events in it, as one step: an interrupt loses none."""
        data = self._transfer._sink.take()
        if data:
            self._found.extend(read_each(self._unpacker, data, read_event, "event"))
        return data

    async def close(self) -> None:
        """Stop watching; a call that waits for an event gets None."""
        self._closed = True
        self._transfer.stop()

    def __aiter__(self) -> AsyncIterator[FileEvent]:
        return self

    async def __anext__(self) -> FileEvent:
        event = await self.read()
        if event is None:
            raise StopAsyncIteration
        return event

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    def __repr__(self) -> str:
        over = self._closed or self._transfer._sink.ended
        return f"<{type(self).__name__} {self._path!r:.200}{' ended' if over else ''}>"

    def __del__(self) -> None:
        transfer = getattr(self, "_transfer", None)  # not there where ``__init__`` was interrupted
        if transfer is not None and not self._closed:
            transfer.abandon()
