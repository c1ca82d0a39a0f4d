"""The events of an owner's sandboxes, over as many connections as it takes.

Owns the connection, its silence and its renewal from the last position. ``_event_results`` reads the events; the service decides what is an
event and what may be missing. Created by ``client.events``.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from holdfast_wire.http1 import AnswerReader, HttpError

from holdfast._arguments import wait_time_of
from holdfast._async.rest import AsyncRest
from holdfast._errors import ServiceError, WaitTimeoutError
from holdfast._event_results import AnyEvent, EventReader
from holdfast._options import Options
from holdfast._public import public
from holdfast._transport.aio.events import Event
from holdfast._transport.aio.net import Stream
from holdfast._transport.rest.answer import Answer, Failure, UnreachableError, judge_answer
from holdfast._transport.session.policy import Backoff

QUIET_S = 45.0
"""After so long without a byte the connection is lost: the service sends something every 15 s."""
_LEAST_S = 0.001
_OK = 200


@public
class AsyncEvents:
    """Changes of sandboxes: iterate it, or ``read`` one event at a time.

    It ends with its ``with`` block, with ``close``, or with its client. A lost connection is replaced, to any replica of the service, and
    no event is missing or repeated by that; what the service itself may have missed is an ``EventGap``.
    """

    def __init__(self, rest: AsyncRest, options: Options, query: Query, since_s: float | None, after: str) -> None:
        self._rest = rest
        self._options = options
        self._query = query
        self._since_s = since_s
        self._begun = time.monotonic()
        self._found: deque[AnyEvent] = deque()
        self._closed = False
        self._closing = Event()
        self._stream: Stream | None = None
        self._answer = AnswerReader()
        self._events = EventReader(after)
        self._quiet_end = 0.0
        self._backoff = Backoff(options.backoff_base_s, options.backoff_cap_s)
        self._give_up = self._begun + options.connect_timeout_s

    @property
    def position(self) -> str:
        """The position after the events that have arrived; ``client.events(after=position)`` continues there, in any process."""
        return self._events.position

    async def _start(self) -> None:
        """Return once the service follows the changes, or raise why it cannot."""
        try:
            while not (self._events.begun or self._closed):
                await self._receive(None)
        except BaseException:
            await self.close()
            raise

    async def read(self, timeout: float | None = None) -> AnyEvent | None:
        """The next event, or None if the events were closed. A cancelled wait loses no event.

        Raises ``WaitTimeoutError`` after ``timeout`` seconds, ``ServiceUnavailableError`` if a lost connection could not be replaced within
        the client's ``resume_timeout_s``, and the error of a service that refuses. Another ``read`` then continues from the same position.
        """
        timeout = wait_time_of(timeout)
        end = None if timeout is None else time.monotonic() + timeout
        first = True
        while not self._found:
            if self._closed:
                return None
            if not first and end is not None and time.monotonic() >= end:
                raise WaitTimeoutError(message=f"nothing changed within {timeout:g} s")
            await self._receive(end)
            first = False
        return self._found.popleft()

    async def _receive(self, end: float | None) -> None:
        """Take the next bytes, or connect first. Returns with nothing at ``end``, after a loss, and when closed."""
        stream = self._stream
        if stream is None:
            await self._connect(end)
            return
        now = time.monotonic()
        until = self._quiet_end if end is None else min(end, self._quiet_end)
        stream.limit_s = max(until - now, _LEAST_S)
        try:
            data = await stream.read()
            self._answer.feed(data)
        except TimeoutError:
            if time.monotonic() >= self._quiet_end:
                self._lose()
            return
        except (OSError, HttpError):
            self._lose()
            return
        self._quiet_end = time.monotonic() + QUIET_S
        self._take()
        if self._answer.done:
            self._lose()

    def _take(self) -> None:
        found = self._events.feed(self._answer.take_body())
        if self._events.begun:
            self._backoff.reset()
        self._found.extend(found)

    def _lose(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.abort()
        self._give_up = time.monotonic() + self._options.resume_timeout_s

    async def _connect(self, end: float | None) -> None:
        """Connect, and again until it is given up. Returns at ``end`` without a connection."""
        while not self._closed:
            failure = await self._attempt()
            if failure is None:
                return
            now = time.monotonic()
            if not failure.again or now >= self._give_up:
                raise failure.why
            pause_s = min(self._backoff.delay_s(failure.after_s), self._give_up - now)
            if end is not None and now + pause_s >= end:
                await self._closing.wait(max(end - now, 0.0))
                return
            await self._closing.wait(pause_s)

    async def _attempt(self) -> Failure | None:
        """Connect once; returns why that failed."""
        self._rest.check_open()
        position, query = self._events.position, list(self._query)
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if position:
            headers["Last-Event-ID"] = position
        elif self._since_s is not None:
            query.append(("since", f"{self._since_s + time.monotonic() - self._begun:.3f}"))
        try:
            stream, answer = await self._rest.http.begin("/events", headers, query, timeout_s=self._options.request_timeout_s)
        except UnreachableError as lost:
            return Failure(lost.public(), again=True)
        if answer.status != _OK or not answer.headers.get("content-type", "").startswith("text/event-stream"):
            stream.abort()
            failure = judge_answer(Answer(answer.status, answer.headers, answer.body))
            if failure is None:
                raise ServiceError("internal", f"the service answered HTTP {answer.status} without events", hint=_HINT)
            return failure
        self._stream, self._answer, self._events = stream, answer, EventReader(position, self._events.seen)
        self._quiet_end = time.monotonic() + QUIET_S
        if self._closed:  # meanwhile, by another thread
            self._lose()
            return None
        self._take()
        return None

    async def close(self) -> None:
        """End the events; a call that waits for one gets None."""
        self._closed = True
        self._closing.set()
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()

    def __aiter__(self) -> AsyncIterator[AnyEvent]:
        return self

    async def __anext__(self) -> AnyEvent:
        event = await self.read()
        if event is None:
            raise StopAsyncIteration
        return event

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._options.url}{' ended' if self._closed else ''}>"

    def __del__(self) -> None:
        stream = getattr(self, "_stream", None)
        if stream is not None:
            stream.abort()


_HINT = "is this the address of a Holdfast service?"
Query = list[tuple[str, str]]
