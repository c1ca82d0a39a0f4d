# Generated from ../_async by infra/scripts/generate_sync.py: edit that, then run `make generate`.
"""Moving bytes over a channel of the session, in both directions and with bounded memory.

Owns the waiting around ``TransferSink``, also for the end of the channel. Called by ``files``, ``sandbox`` (patches) and ``tunnel``, which
know what the bytes mean. ``send`` also writes the input of commands and shells.
"""

from __future__ import annotations

from typing import Any, Self

from holdfast_wire.errors import ProtocolError

from holdfast._sync.patience import STALLS, Patience, answered
from holdfast._requests import bounded
from holdfast._transport.threads.driver import SessionDriver
from holdfast._transport.threads.events import Cancelled
from holdfast._transport.session.policy import breach
from holdfast._transport.session.sink import AnyEvent, Sink
from holdfast._transport.session.sinks import TransferSink

ENDLESS = frozenset({"tunnel", "connection", "listen", "watch"})
"""Kinds of channels on which it is normal that nothing comes for long."""


def send(
    driver: SessionDriver,
    sink: Sink,
    data: bytes | memoryview,
    eof: bool = False,
    times: int | None = None,
    patience: Patience | None = None,
) -> bool:
    """Send ``data``, and with ``eof`` the end of the input.

    Waits while the other side does not accept it, with ``times`` at most that many times ``request_timeout_s``. Returns False if the
    channel has ended, or ``patience`` is over.
    """
    left = memoryview(data)
    while (sent := driver.perform(sink.write, left, eof)) >= 0:
        left = left[sent:]
        if not left:
            return True
        if patience is not None:
            if not patience.wait(sink.space):
                return False
        elif times is None:
            sink.space.wait()
        else:
            answered(driver, sink.space, "the bytes that were sent", times)
    return False


class Transfer:
    """One open transfer channel.

    Leaving its ``with`` block ends it, even if a wait was cancelled; without a block, call ``stop``. ``sink`` receives its facts (default:
    a new ``TransferSink``); one that has a number belongs to a channel that the agent has opened.
    """

    def __init__(self, driver: SessionDriver, kind: str, params: dict[str, Any], sink: TransferSink | None = None) -> None:
        self._driver = driver
        self._sink = sink or TransferSink(driver.engine.session, driver.engine.new_event)
        self._sink.path = params.get("path")
        self._endless = kind in ENDLESS
        if self._sink.number:
            return
        try:
            driver.perform(driver.engine.open, kind, bounded(params), self._sink)
        except Cancelled:
            self.abandon()
            raise

    @property
    def ended(self) -> bool:
        """Whether the channel has ended."""
        return self._sink.ended

    def _progress(self, event: AnyEvent) -> None:
        """Wait for the next fact. Raises ``ServiceUnavailableError`` if a transfer makes no progress for long."""
        if self._endless:
            event.wait()
        else:
            answered(self._driver, event, "a transfer", STALLS)

    def opened(self) -> dict[str, Any]:
        """Wait until the channel is opened; returns the fields of ``Opened``. Raises the agent's typed error if it refuses."""
        sink = self._sink
        if sink.opened is None:
            answered(self._driver, sink.changed, "a request")
        if sink.error is not None:
            raise sink.error
        return sink.opened or {}

    def read(self) -> bytes:
        """The next bytes, or b"" when the other side has sent everything. Raises the typed error that ended the channel early."""
        sink = self._sink
        while (data := self._driver.perform(sink.take)) is None:
            self._progress(sink.changed)
        if not data and sink.error is not None:
            raise sink.error
        return data

    def write(self, data: bytes | memoryview, eof: bool = False) -> None:
        """Send ``data``; waits while the far end does not take it. Raises the typed error that ended the channel."""
        if not send(self._driver, self._sink, data, eof, None if self._endless else STALLS):
            raise self._sink.error or breach("the agent ended the channel before everything was sent")

    def closed(self) -> dict[str, Any]:
        """Wait for the end of the channel; returns the fields of ``Closed``."""
        sink = self._sink
        while not sink.ended:
            self._driver.perform(sink.discard_unread)
            self._progress(sink.changed)
        if sink.error is not None:
            raise sink.error
        if sink.closed is None:
            raise ProtocolError("the agent ended a transfer without a result")
        return sink.closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is GeneratorExit:
            self.abandon()
        else:
            self.stop()

    def stop(self) -> None:
        """End the transfer; the agent discards what was written so far, if it can."""
        if not self._sink.ended:
            self._driver.perform(self._sink.stop)

    def abandon(self) -> None:
        """``stop`` for a finalizer, which may run in the middle of a step and cannot wait for its end."""
        if not self._sink.ended:
            self._driver.later(self._sink.stop)
