"""The blocking API's transport: callers send, and one thread per session receives.

A caller runs its step of the engine under the session's lock, writes what the step caused, and waits on a lock of its own. The
session's thread connects, reads the socket, wakes the callers and keeps the session alive. Ctrl-C in a step is raised after the step
(``threads.signals``), so an interrupted caller leaves the session whole. ``aio`` has the same names for the asynchronous SDK.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from holdfast_wire.errors import HoldfastError

from holdfast._errors import error
from holdfast._options import Options
from holdfast._session_token import SessionToken
from holdfast._transport.session.engine import wrong_process_error
from holdfast._transport.session.engine_choice import engine_of
from holdfast._transport.session.websocket import WebSocket
from holdfast._transport.threads.events import Event
from holdfast._transport.threads.net import connection_to, warn_in_loop
from holdfast._transport.threads.signals import Uninterrupted

P = ParamSpec("P")
T = TypeVar("T")

RECEIVE_BYTES = 256 * 1024
_JOIN_S = 2.0
_REFUSALS = (HoldfastError,)
"""The exceptions that a step itself raises, which leave the session consistent. Any other came from a signal handler in the middle of the
step."""


class SessionDriver:
    """One session's connection: opened by ``start`` and opened again whenever it breaks, until ``close`` or a fatal refusal."""

    def __init__(self, options: Options, sandbox_id: str, token: SessionToken | None = None) -> None:
        self.options = options
        self._pid = os.getpid()
        self.tls = options.url.startswith("https:")
        self.would_block = _would_block(self.tls)
        self.engine = engine_of(options)(options, sandbox_id, self.event, token=token)
        self._thread = threading.Thread(target=self._run, name=f"holdfast-driver-{sandbox_id}", daemon=True)
        self._lock: Any = threading.RLock()
        """Held during each step of the engine and its sinks, and each use of the socket. It records its owner, and is never acquired
        twice."""
        self._in_step = False
        """If this is True while the lock is free, a step was interrupted before its end."""
        self._later: deque[Callable[[], object]] = deque()
        self._wake_lock = threading.RLock()
        """Held during each use of the wake-up pipe's descriptors. Reentrant, because a finalizer may run while this thread holds it."""
        self._wake_read = self._wake_write = -1
        self._socket: socket.socket | None = None
        self._websocket: WebSocket | None = None
        self._unwritten = b""

    def event(self) -> Event:
        return Event(self.check_here)

    @property
    def here(self) -> bool:
        """Whether this is the process that the driver was created in. A forked process inherits the socket and must not use it."""
        return os.getpid() == self._pid

    left_behind = True
    """A forked process may always open its own session."""

    def check_here(self) -> None:
        """Raise if a step or a wait would never end here: in a forked process, or in a finalizer or signal handler that interrupted a
        step."""
        if os.getpid() != self._pid:
            raise wrong_process_error()
        # The number of a thread that has ended may be reused for the next one.
        in_own_thread = threading.get_ident() == self._thread.ident and self._thread.is_alive()
        if in_own_thread or self._lock._is_owned():
            raise RuntimeError("a finalizer or signal handler that interrupts the session cannot wait for it")

    def start(self) -> None:
        """Return once the session is attached. Raises the typed error if that fails."""
        warn_in_loop()
        ready: Any = self.engine.ready
        try:
            self._wake_read, self._wake_write = os.pipe()
            os.set_blocking(self._wake_read, False)
            os.set_blocking(self._wake_write, False)
            self._thread.start()
            ready.wait()
        except BaseException:
            self.close()
            raise
        if self.engine.error is not None:
            why = self.engine.error
            self.close()
            raise why

    def perform(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a step of the engine or of a sink, then write the messages that it queued."""
        self.check_here()
        with Uninterrupted(), self._lock:
            self._begin_step()
            try:
                result = step(*args, **kwargs)
            except _REFUSALS:
                self._end_step()
                raise
            self._end_step()
            return result

    def later(self, step: Callable[[], object]) -> None:
        """``perform`` without waiting, from any thread, also from a finalizer. An error of the step is ignored."""
        if self.here:
            self._later.append(step)
            self._wake()

    def close(self) -> None:
        """End the session's connection; waiting calls fail with ``session_lost``, reason ``closed``."""
        if not self.here:
            return
        try:
            self.perform(self.engine.close)
        except RuntimeError:
            self.later(self.engine.close)
            return
        self._wake()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)
        elif self._thread.ident is None:  # the thread could not be started
            self._finish()

    # Under the lock ---------------------------------------------------------------------------------------------

    def _begin_step(self) -> None:
        if self._in_step:
            lost = error("session_lost", "a signal handler interrupted a step of this session", reason="interrupted", fault="caller")
            self.engine.fail(lost)
        self._in_step = True
        while self._later:
            with suppress(HoldfastError):
                self._later.popleft()()

    def _end_step(self) -> None:
        self._flush()
        self._in_step = False

    def _flush(self) -> None:
        """Write the queued messages, unless the socket's buffer is full: then they stay in the session."""
        websocket, engine = self._websocket, self.engine
        if self._socket is None or websocket is None:
            return
        if engine.error is not None or engine.leave:
            if websocket.closed is None:
                self._write(websocket.close(engine.close_code()))
                self._wake()  # the session's thread closes the socket, which it may be polling
            return
        behind = bool(self._unwritten)
        if behind:
            self._write(b"")
        while not self._unwritten:
            messages = engine.outgoing()
            if not messages:
                break
            self._write(websocket.pack(messages))
        if not self._unwritten and websocket.has_reply:
            self._write(websocket.reply())
        if self._unwritten and not behind:
            self._wake()  # that thread continues to write when there is room

    def _write(self, data: bytes) -> None:
        data = self._unwritten + data if self._unwritten else data
        self._unwritten = b""
        connection = self._socket
        if not data or connection is None:
            return
        try:
            sent = connection.send(data)
        except self.would_block:
            sent = 0
        except OSError as failure:
            if failure.errno is None:
                raise  # TimeoutError of a program's signal handler, not of the socket: the frame may have been cut
            return  # the reading side will see the end
        if sent < len(data):
            self._unwritten = data[sent:]

    def _wake(self) -> None:
        """Wake the session's thread from its poll."""
        with self._wake_lock:
            if self._wake_write >= 0:
                with suppress(BlockingIOError):
                    os.write(self._wake_write, b"\0")

    # The session's thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self.engine.error is None:
                websocket = self.engine.websocket()
                why = self._attempt(websocket)
                delay_s = self._perform_here(self.engine.broken, websocket, why, time.monotonic())
                if delay_s is not None:
                    self._pause(delay_s)
        except Exception as bug:
            # Without this the callers would wait for ever.
            self._perform_here(self.engine.fail, error("internal", f"the session's thread ended: {bug!r}"))
            raise
        finally:
            self._finish()

    def _attempt(self, websocket: WebSocket) -> str:
        """Connect, and serve the connection to its end. Returns why there is none any more."""
        engine, service = self.engine, self.engine.service
        limit_s = engine.begin_attempt(time.monotonic())
        try:
            connection = connection_to(service, limit_s)
        except Exception as failure:  # noqa: BLE001  also a host name that cannot be encoded: the caller waits for an answer
            why, refused = service.not_connected(failure, limit_s)
            if refused is not None:
                self._perform_here(engine.fail, refused)
            return why
        limit_s = engine.answer_s(time.monotonic())
        self._perform_here(self._connected, websocket, connection)
        if self._serve(websocket, connection, time.monotonic() + limit_s):
            return "the connection was lost"
        return service.not_connected(TimeoutError(), limit_s)[0]

    def _perform_here(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """``perform`` in the session's thread, in which no signal handler runs."""
        with self._lock:
            self._begin_step()
            try:
                return step(*args, **kwargs)
            finally:
                self._end_step()

    def _connected(self, websocket: WebSocket, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket, self._websocket = connection, websocket
        self._unwritten = websocket.greeting() if self.engine.error is None else b""

    def _serve(self, websocket: WebSocket, connection: socket.socket, answer_by: float) -> bool:
        """Read, write and handle deadlines until the connection ends. Returns False if the handshake was not answered before."""
        engine = self.engine
        poll, polled = select.poll(), select.POLLIN
        poll.register(self._wake_read, select.POLLIN)
        poll.register(connection, polled)
        more = self.tls  # what TLS has decrypted already never shows up in poll
        try:
            while engine.error is None and not engine.leave:
                due = engine.deadline() if websocket.open else answer_by
                wanted = select.POLLIN | select.POLLOUT if self._unwritten else select.POLLIN
                if wanted != polled:
                    polled = wanted
                    poll.modify(connection, polled)
                wait_ms = None if due is None else max((due - time.monotonic()) * 1000, 0) + 1
                for ready, _ in poll.poll(0 if more else wait_ms):
                    if ready == self._wake_read:
                        os.read(ready, 4096)
                    else:
                        more = True
                if not self._perform_here(self._serve_once, connection, more):
                    return True
                if not websocket.open and time.monotonic() >= answer_by:
                    return False
                more = False
            return True
        finally:
            with self._lock:
                self._disconnect()

    def _serve_once(self, connection: socket.socket, readable: bool) -> bool:
        """What is due now. False: the connection is over."""
        if self.engine.error is not None or (readable and not self._receive(connection)):
            return False
        due, now = self.engine.deadline(), time.monotonic()
        if due is not None and due <= now:
            self.engine.tick(now)
        return True

    def _receive(self, connection: socket.socket) -> bool:
        """Read the received bytes. Returns False if the connection has ended."""
        websocket = self._websocket
        assert websocket is not None
        while True:
            try:
                data = connection.recv(RECEIVE_BYTES)
            except self.would_block:
                return True
            except OSError:
                data = b""
            if data:
                was_open = websocket.open
                messages = websocket.feed(data)
                if websocket.open and not was_open:
                    self.engine.connected(websocket.headers, time.monotonic())
                if messages:
                    self.engine.receive(messages, time.monotonic())
            else:
                websocket.feed_eof()
            if websocket.over:
                self._write(websocket.reply())
                return False
            if not self.tls:
                return True

    def _pause(self, delay_s: float) -> None:
        """Wait until the next attempt is due, or until another session of the client was attached."""
        until = time.monotonic() + delay_s
        attached: list[float] = []

        def peer_attached(after_s: float) -> None:  # called by the thread of the session that was attached
            attached.append(time.monotonic() + after_s)
            self._wake()

        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        self.options.peers.wait(self, peer_attached)
        try:
            while self.engine.error is None and (left_s := until - time.monotonic()) > 0:
                if poll.poll(left_s * 1000 + 1):
                    os.read(self._wake_read, 4096)
                if self._later:
                    self._perform_here(bool)
                if attached and self.engine.may_wake():
                    until = min(until, attached[0])
        finally:
            self.options.peers.leave(self)

    def _disconnect(self) -> None:
        connection, self._socket = self._socket, None
        self._unwritten = b""
        if connection is not None:
            connection.close()
        self.engine.session.disconnected()

    def _finish(self) -> None:
        with self._wake_lock:
            descriptors, self._wake_read, self._wake_write = (self._wake_read, self._wake_write), -1, -1
            for descriptor in descriptors:
                if descriptor >= 0:
                    os.close(descriptor)


def _would_block(tls: bool) -> tuple[type[OSError], ...]:
    """The errors of a socket that has nothing to read, or no room to write."""
    if not tls:
        return (BlockingIOError,)
    import ssl

    return (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
