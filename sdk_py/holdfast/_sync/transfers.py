# Generated from ../_async by infra/scripts/generate_sync.py: edit that, then run `make generate`.
"""Moving bytes over a channel of the session: both directions, bounded memory, and an end that is always waited for.

Owns the waiting around ``TransferSink``. Called by ``files``, ``sandbox`` (patches) and ``tunnel``; what the bytes mean is theirs.
"""

from __future__ import annotations

from typing import Any, Self, TypeVar

from holdfast_wire.errors import ProtocolError

from holdfast._errors import HoldfastError, RemoteFileError
from holdfast._requests import bounded
from holdfast._transport.threads.driver import SessionDriver
from holdfast._transport.threads.events import Cancelled, SessionEvent
from holdfast._transport.session.sinks import TransferSink

ErrorT = TypeVar("ErrorT", bound=HoldfastError | None)


class Transfer:
    """One open transfer channel. Leaving its ``with`` block ends it. ``sink`` is where its facts go, if to another than a new one."""

    def __init__(self, driver: SessionDriver, kind: str, params: dict[str, Any], sink: TransferSink | None = None) -> None:
        self._driver = driver
        self._path = params.get("path")
        self._sink = sink or TransferSink(driver.engine.session, driver.engine.new_event)
        try:
            driver.perform(driver.engine.open, kind, bounded(params), self._sink)
        except Cancelled:
            self.abandon()
            raise

    def opened(self) -> dict[str, Any]:
        """What the channel was opened with. Raises the typed refusal."""
        sink = self._sink
        changed: SessionEvent = sink.changed  # type: ignore[assignment]
        if sink.opened is None:
            self._wait(changed)
        if sink.error is not None:
            raise self._refusal(sink.error)
        return sink.opened or {}

    def read(self) -> bytes:
        """The next bytes; b"" at the end of what the far end sends. Raises the typed error that ended it early."""
        sink = self._sink
        changed: SessionEvent = sink.changed  # type: ignore[assignment]
        while (data := self._driver.perform(sink.take)) is None:
            self._wait(changed)
        if not data and sink.error is not None:
            raise self._refusal(sink.error)
        return data

    def write(self, data: bytes | memoryview, eof: bool = False) -> None:
        """Send ``data``; waits while the far end does not take it. Raises the typed error that ended the channel."""
        sink = self._sink
        space: SessionEvent = sink.space  # type: ignore[assignment]
        left = memoryview(data)
        while True:
            sent = self._driver.perform(sink.write, left, eof)
            if sent < 0:
                raise self._refusal(sink.error) or HoldfastError("io_error", "the channel ended before everything was sent", hint="")
            left = left[sent:]
            if not left:
                return
            self._wait(space)

    def closed(self) -> dict[str, Any]:
        """The result, once the channel has done its work."""
        sink = self._sink
        changed: SessionEvent = sink.changed  # type: ignore[assignment]
        while not sink.ended:
            self._driver.perform(sink.discard_unread)
            self._wait(changed)
        if sink.error is not None:
            raise self._refusal(sink.error)
        if sink.closed is None:
            raise ProtocolError("the agent ended a transfer without a result")
        return sink.closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the transfer; the agent discards what was written so far where it can."""
        if not self._sink.ended:
            self._driver.perform(self._sink.stop)

    def abandon(self) -> None:
        """``stop`` for a finalizer, which may run in the middle of a step and cannot wait for its end."""
        if not self._sink.ended:
            self._driver.later(self._sink.stop)

    def _refusal(self, why: ErrorT) -> ErrorT:
        """The error that ended the transfer, with the path of the file."""
        if isinstance(why, RemoteFileError) and why.filename is None:
            why.filename = self._path
        return why

    def _wait(self, changed: SessionEvent) -> None:
        try:
            changed.wait()
        except Cancelled:
            self.stop()
            raise
