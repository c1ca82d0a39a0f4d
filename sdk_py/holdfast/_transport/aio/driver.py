"""The asyncio implementation of the transport: sockets, timers and waiting on one event loop.

Owns the connection's task and socket. Received bytes are parsed and dispatched inside ``data_received``: there is no task switch and no
queue between the socket and the future that a caller waits for. ``threads`` has the same names for the synchronous SDK.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from holdfast._options import Options
from holdfast._session_token import SessionToken
from holdfast._transport.aio.events import Event, shielded
from holdfast._transport.aio.net import open_connection
from holdfast._transport.session.engine import BATCH_BYTES, Engine, wrong_process_error
from holdfast._transport.session.engine_choice import engine_of
from holdfast._transport.session.websocket import WebSocket

CLOSE_S = 1.0
"""How long the closing handshake of a connection may take."""

P = ParamSpec("P")
T = TypeVar("T")


class SessionDriver:
    """One session's connection: opened by ``start`` and opened again whenever it breaks, until ``close`` or a fatal refusal."""

    def __init__(self, options: Options, sandbox_id: str, token: SessionToken | None = None) -> None:
        self.options = options
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self.engine = engine_of(options)(options, sandbox_id, Event, token=token)
        self._task: asyncio.Task[None] | None = None
        self._wire: _Wire | None = None
        self._wires: set[_Wire] = set()
        """The connections that are not closed yet: their last bytes may still be unsent."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0

    @property
    def here(self) -> bool:
        """Whether this is the event loop that the driver was created in; a wait in another one would never end."""
        return asyncio._get_running_loop() is self._loop

    @property
    def left_behind(self) -> bool:
        """Whether its event loop no longer runs, so that a session in this one disturbs no other."""
        return not self._loop.is_running() or os.getpid() != self._pid

    async def start(self) -> None:
        """Return once the session is attached. Raises the typed error if that fails."""
        self._task = self._loop.create_task(self._supervise(), name=f"holdfast-driver-{self.engine.sandbox_id}")
        ready: Any = self.engine.ready
        try:
            await ready.wait()
        except asyncio.CancelledError:
            await shielded(self.close)
            raise
        if self.engine.error is not None:
            why = self.engine.error
            await self.close()
            raise why

    def perform(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a step of the engine or of a sink, then write the messages that it queued."""
        if asyncio._get_running_loop() is not self._loop:
            raise wrong_process_error()
        try:
            return step(*args, **kwargs)
        finally:
            self._flush()

    def later(self, step: Callable[[], object]) -> None:
        """``perform`` from any thread, also from a finalizer. Does nothing if the event loop has ended."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.perform, step)

    async def close(self) -> None:
        """End the session's connection; waiting calls fail with ``session_lost``, reason ``closed``."""
        if not self.here:
            return
        self.engine.close()
        if self._timer is not None:
            self._timer.cancel()
        wire = self._wire
        if wire is not None:
            wire.end(self.engine.close_code())
        end, unclosed = self._loop.time() + CLOSE_S, self.options.url.startswith("https:")  # TLS has a second transport
        for one in list(self._wires):
            if not await one.lost.wait(end - self._loop.time()):  # TLS waits for the other end's close, and unsent bytes for a reader
                one.abort()
                unclosed = True
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
            unclosed = True
        for _ in range(2 * unclosed):
            await asyncio.sleep(0)  # transports close in the next iterations of the loop

    # Inside -----------------------------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        engine, service = self.engine, self.engine.service
        while True:
            wire = _Wire(self, engine.websocket())
            why = "the connection was lost"
            limit_s = engine.begin_attempt(self._loop.time())
            try:
                async with asyncio.timeout(limit_s) as limit:
                    await open_connection(service, lambda: wire)  # noqa: B023
                    self._wire = wire
                    limit_s = engine.answer_s(self._loop.time())
                    limit.reschedule(self._loop.time() + limit_s)
                    await wire.shaken.wait()
                await wire.over.wait()
            except asyncio.CancelledError:
                wire.abort()  # the loop is ending, perhaps without a call of ``close``
                raise
            except Exception as failure:  # noqa: BLE001  also an invalid host name, or no thread to look it up: nothing else would report it
                wire.abort()
                why, refused = service.not_connected(failure, limit_s)
                if refused is not None:
                    engine.fail(refused)
            finally:
                self._wire = None
            delay_s = engine.broken(wire.websocket, why, self._loop.time())
            if delay_s is None:
                return
            await self._pause(delay_s)

    async def _pause(self, delay_s: float) -> None:
        """Wait until the next attempt is due, or another session of the client was attached."""
        changed, peers, loop = Event(), self.options.peers, self._loop

        def wake(after_s: float) -> None:  # by any thread
            if not loop.is_closed():
                loop.call_soon_threadsafe(loop.call_later, after_s, changed.set)

        peers.wait(changed, wake)
        try:
            end = loop.time() + delay_s
            if await changed.wait(delay_s) and not self.engine.may_wake():
                await asyncio.sleep(end - loop.time())
        finally:
            peers.leave(changed)

    def _flush(self) -> None:
        """Write the queued messages."""
        wire, engine = self._wire, self.engine
        if wire is None:
            return
        if engine.error is not None or engine.leave:
            wire.end(engine.close_code())
        else:
            wire.flush(engine)

    def _arm(self) -> None:
        """Set the timer for the engine's deadline. Only received messages make the deadline earlier, so this is called after them."""
        due = self.engine.deadline()
        if due is None or (self._timer is not None and self._timer_due <= due):
            return  # a timer that fires too early is set again, which costs less than moving it for every message
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = None
        due, now = self.engine.deadline(), self._loop.time()
        if due is not None and due <= now:
            self.engine.tick(now)
        self._flush()
        self._arm()


class _Wire(asyncio.Protocol):
    """One TCP connection of a driver."""

    def __init__(self, driver: SessionDriver, websocket: WebSocket) -> None:
        self._driver = driver
        self.websocket = websocket
        self.shaken = Event()
        self.over = Event()
        self.lost = Event()
        self._transport: asyncio.Transport | None = None
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's are not subclasses
        self._driver._wires.add(self)
        transport.write(self.websocket.greeting())

    def data_received(self, data: bytes) -> None:
        websocket, driver = self.websocket, self._driver
        if self.over._is_set:
            return
        was_open = websocket.open
        messages = websocket.feed(data)
        now = driver._loop.time()
        if not was_open and websocket.open:
            driver._wire = self
            driver.engine.connected(websocket.headers, now)
            self.shaken.set()
        if messages:
            driver.engine.receive(messages, now)
        if websocket.closed is not None or websocket.refusal is not None:
            self._finish()
        else:
            driver._flush()
            driver._arm()

    def eof_received(self) -> bool:
        self.websocket.feed_eof()
        self._finish()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.websocket.feed_eof()
        self._transport = None
        self._driver._wires.discard(self)
        self._finish()
        self.lost.set()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._driver._flush()

    def flush(self, engine: Engine) -> None:
        """Write the queued messages, unless the socket's buffer is full: then they stay in the session."""
        transport, websocket = self._transport, self.websocket
        if transport is None or self.over._is_set:
            return
        more = True
        while more and not self._paused and not transport.is_closing():  # asyncio logs a warning for each write to a broken socket
            messages = engine.outgoing()
            if not messages:
                break
            data = websocket.pack(messages)
            transport.write(data)
            more = len(data) >= BATCH_BYTES
        if websocket.has_reply and not self._paused and not transport.is_closing():
            transport.write(websocket.reply())

    def end(self, code: int) -> None:
        """Send a close frame and close."""
        if self._transport is not None and not self.over._is_set and self.websocket.open:
            self._transport.write(self.websocket.close(code))
        self._finish()

    def abort(self) -> None:
        """Close without a close frame."""
        if self._transport is not None:
            self._transport.abort()

    def _finish(self) -> None:
        if self._transport is not None:
            reply = self.websocket.reply()
            if reply:
                self._transport.write(reply)
            self._transport.close()
        self.shaken.set()
        self.over.set()
