"""The blocking API's transport: one thread per session owns its engine and its socket.

Callers post steps to that thread and wait for their results, and for events, on locks. So no signal handler and no exception in a caller,
Ctrl-C above all, can interrupt a step half-way. Connections are made in threads of their own (``threads_connect``). ``aio`` has the same
names for the asynchronous SDK. Decision 0048 has the figures.
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
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar

from holdfast_wire.errors import HoldfastError

from holdfast._errors import error
from holdfast._options import Options
from holdfast._session_token import SessionToken
from holdfast._transport.engine import Engine, elsewhere
from holdfast._transport.threads_connect import NotConnectedError, connect
from holdfast._transport.threads_events import Event, LinkEvent, Lock
from holdfast._transport.threads_loop import warn_in_loop
from holdfast._transport.threads_stops import sleep
from holdfast._transport.websocket import WebSocket

P = ParamSpec("P")
T = TypeVar("T")

Cancelled = KeyboardInterrupt
"""What a local cancellation raises inside a wait."""

RECEIVE_BYTES = 256 * 1024
_JOIN_S = 2.0

__all__ = ["Background", "Cancelled", "Event", "Link", "LinkEvent", "Lock", "run_blocking", "sleep"]


class Link:
    """One session's connection: made on ``start``, remade whenever it breaks, until ``close`` or a fatal refusal."""

    def __init__(self, options: Options, sandbox_id: str, token: SessionToken | None = None) -> None:
        self.options = options
        self._pid = os.getpid()
        self.tls = options.url.startswith("https:")
        self.would_block = _would_block(self.tls)
        self.engine = Engine(options, sandbox_id, self.event, token=token)
        self._thread = threading.Thread(target=self._run, name=f"holdfast-link-{sandbox_id}", daemon=True)
        self._steps: deque[_Step[Any]] = deque()
        self._lock = threading.RLock()
        """Around the wake-up pipe's descriptors, and around steps while no thread serves them."""
        self._serving = False
        self._asleep = False
        self._wake_read = self._wake_write = -1
        self._poll = select.poll()
        self._socket: socket.socket | None = None
        self._websocket: WebSocket | None = None
        self._unwritten = b""
        self._connecting = False
        self._retry_at: float | None = None

    def event(self) -> LinkEvent:
        return LinkEvent(self)

    @property
    def here(self) -> bool:
        """Whether this is the process it was made in. A fork has the socket too, and must not speak on it."""
        return os.getpid() == self._pid

    left_behind = True
    """A fork always may have a session of its own."""

    def check_here(self) -> None:
        """Raise where a step or a wait would never end: in a fork, and in the link's own thread, where a finalizer may run."""
        if not self.here:
            raise elsewhere()
        if threading.current_thread() is self._thread:
            raise RuntimeError("a finalizer cannot wait for a session")

    def start(self) -> None:
        """Return once the session is attached. Raises the typed error that prevents it."""
        warn_in_loop()
        ready: Any = self.engine.ready
        try:
            self._wake_read, self._wake_write = os.pipe()
            os.set_blocking(self._wake_read, False)
            os.set_blocking(self._wake_write, False)
            self._serving = True
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
        """Run a step of engine or sinks in the link's thread, write what it caused, and return its result.

        An interrupted caller does not interrupt the step. Steps run in the order in which they were posted.
        """
        self.check_here()
        posted = _Step(partial(step, *args, **kwargs))
        self._post(posted)
        return posted.result()

    def later(self, step: Callable[[], object]) -> None:
        """``perform`` without waiting, from anywhere, also from a finalizer. An error of the step has no receiver."""
        if self.here:
            self._post(_Step(step))

    def close(self) -> None:
        """End the session's connection; waiting calls fail with ``session_lost``, reason ``closed``."""
        if not self.here:
            return
        self.later(self.engine.close)
        if self._thread.is_alive():
            if threading.current_thread() is not self._thread:
                self._thread.join(_JOIN_S)
        elif self._thread.ident is None:  # it could not be started
            self._finish()

    def drop(self) -> None:
        """Break the connection as a failing network would. The session resumes; for tests."""
        self.perform(self._shut_down)

    # Posting ----------------------------------------------------------------------------------------------------

    def _post(self, step: _Step[Any]) -> None:
        self._steps.append(step)
        if not self._serving:
            self._run_steps()
        elif self._asleep:
            with self._lock:
                if self._wake_write >= 0:
                    with suppress(BlockingIOError):
                        os.write(self._wake_write, b"\0")

    def _run_steps(self) -> None:
        """Run what was posted, then write, then wake the callers. In the link's thread, or under the lock where there is none."""
        if self._serving:
            self._run_steps_now()
        else:
            with self._lock:
                self._run_steps_now()

    def _run_steps_now(self) -> None:
        steps: list[_Step[Any]] = []
        try:
            while self._steps:
                steps.append(self._steps.popleft())
                steps[-1].run()
            self._flush()
        finally:
            for step in steps:
                step.done()

    # The link's thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._poll.register(self._wake_read, select.POLLIN)
            self._connect()
            while self.engine.error is None:
                self._serve_once()
        except Exception as bug:
            self.engine.fail(error("internal", f"the session's thread ended: {bug!r}"))  # or its callers would wait for ever
            raise
        finally:
            self._finish()

    def _finish(self) -> None:
        self.options.peers.leave(self)
        self._hang_up()
        with self._lock:
            self._serving = False
            wake_ends, self._wake_read, self._wake_write = (self._wake_read, self._wake_write), -1, -1
            for descriptor in wake_ends:
                if descriptor >= 0:
                    os.close(descriptor)
        self._run_steps()

    def _serve_once(self) -> None:
        """Wait for the socket, a step or a time, then do what is due."""
        self._asleep = True  # before the steps are looked at: one that is posted afterwards wakes the poll
        ready = self._poll.poll(0 if self._steps else self._wait_ms())
        self._asleep = False
        for descriptor, _ in ready:
            if descriptor == self._wake_read:
                os.read(descriptor, 4096)
            else:
                self._receive()
        if self._steps:
            self._run_steps()
        now = time.monotonic()
        if self._socket is not None:
            due = self.engine.deadline()
            if due is not None and due <= now:
                self.engine.tick(now)
        elif self._retry_at is not None and self._retry_at <= now:
            self._connect()
        self._flush()
        if self._socket is None and self._retry_at is None and not self._connecting:
            self._retry(self._websocket, "the connection was lost")

    def _wait_ms(self) -> float | None:
        due = self.engine.deadline() if self._socket is not None else self._retry_at
        return None if due is None else max((due - time.monotonic()) * 1000, 0) + 1

    def _receive(self) -> None:
        """Take what the socket has."""
        connection, websocket = self._socket, self._websocket
        if connection is None or websocket is None:
            return
        while True:
            try:
                data = connection.recv(RECEIVE_BYTES)
            except self.would_block:
                return
            except OSError:
                data = b""
            if data:
                messages = websocket.feed(data)
                if messages:
                    self.engine.receive(messages, time.monotonic())
            else:
                websocket.feed_eof()
            if websocket.over:
                self._write(websocket.reply())
                self._hang_up()
                return
            if not self.tls:  # what TLS has decrypted already never shows up in poll
                return

    def _flush(self) -> None:
        """Write what there is, unless the socket is behind: then the session keeps it."""
        websocket, engine = self._websocket, self.engine
        if self._socket is None or websocket is None:
            return
        if engine.error is not None or engine.leave:
            self._write(websocket.close(engine.close_code()))
            self._hang_up()
            return
        if self._unwritten:
            self._write(b"")
        while not self._unwritten:
            messages = engine.outgoing()
            if not messages:
                break
            self._write(websocket.pack(messages))
        if not self._unwritten and websocket.has_reply:
            self._write(websocket.reply())

    def _write(self, data: bytes) -> None:
        behind = bool(self._unwritten)
        data = self._unwritten + data if behind else data
        self._unwritten = b""
        connection = self._socket
        if not data or connection is None:
            return
        try:
            sent = connection.send(data)
        except self.would_block:
            sent = 0
        except OSError:
            return  # the reading side will see the end
        if sent < len(data):
            self._unwritten = data[sent:]
        if behind != bool(self._unwritten):
            self._poll.modify(connection, select.POLLIN if behind else select.POLLIN | select.POLLOUT)

    def _shut_down(self) -> None:
        if self._socket is not None:
            self._socket.shutdown(socket.SHUT_RDWR)

    # Connecting -------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Begin an attempt to connect. Meanwhile this thread runs the callers' steps."""
        self._retry_at = None
        self.options.peers.leave(self)
        websocket, limit_s = self.engine.websocket(), self.engine.attempt_s(time.monotonic())
        name = f"holdfast-connect-{self.engine.sandbox_id}"
        try:
            threading.Thread(target=self._attempt, args=(websocket, limit_s), name=name, daemon=True).start()
        except RuntimeError as no_thread:
            self._retry(websocket, str(no_thread))
        else:
            self._connecting = True

    def _attempt(self, websocket: WebSocket, limit_s: float) -> None:
        """In a thread of its own: connect, then report to the link's thread."""
        try:
            connection, messages = connect(self.options, websocket, limit_s)
        except NotConnectedError as failure:
            self.later(partial(self._not_connected, websocket, str(failure), failure.fatal))
        else:
            self.later(partial(self._connected, connection, websocket, messages))

    def _connected(self, connection: socket.socket, websocket: WebSocket, messages: list[bytes]) -> None:
        self._connecting = False
        if self.engine.error is not None:
            connection.close()
            return
        now = time.monotonic()
        self._socket, self._websocket, self._unwritten = connection, websocket, b""
        self._poll.register(connection, select.POLLIN)
        self.engine.connected(websocket.headers, now)
        self.engine.receive(messages, now)
        if self.tls:
            self._receive()

    def _not_connected(self, websocket: WebSocket, why: str, fatal: HoldfastError | None) -> None:
        self._connecting = False
        if fatal is not None:
            self.engine.fail(fatal)
        self._retry(websocket, why)

    def _retry(self, websocket: WebSocket | None, why: str) -> None:
        """Connect again after the engine's delay, or sooner when another session of the client gets through."""
        delay_s = self.engine.broken(websocket, why, time.monotonic())
        if delay_s is not None:
            self._retry_at = time.monotonic() + delay_s
            self.options.peers.wait(self, self._peer_attached)

    def _peer_attached(self, after_s: float) -> None:
        """Called by the thread of the session that got through."""
        self.later(partial(self._retry_sooner, time.monotonic() + after_s))

    def _retry_sooner(self, at: float) -> None:
        if self._retry_at is not None and self.engine.may_wake():
            self._retry_at = min(self._retry_at, at)

    def _hang_up(self) -> None:
        """Close the connection."""
        connection, self._socket = self._socket, None
        self._unwritten = b""
        if connection is not None:
            self._poll.unregister(connection)
            connection.close()
        self.engine.session.disconnected()


class _Step(Generic[T]):
    """One posted call, and its result once the link's thread has run it."""

    __slots__ = ("_done", "_error", "_result", "_step")

    def __init__(self, step: Callable[[], T]) -> None:
        self._step = step
        self._error: BaseException | None = None
        self._result: T
        self._done = threading.Lock()
        self._done.acquire()

    def run(self) -> None:
        try:
            self._result = self._step()
        except BaseException as failure:  # noqa: BLE001  it is raised where the result is waited for
            self._error = failure

    def done(self) -> None:
        self._done.release()

    def result(self) -> T:
        """Wait for the result, or raise what the step raised."""
        self._done.acquire()
        if self._error is not None:
            raise self._error
        return self._result


def _would_block(tls: bool) -> tuple[type[OSError], ...]:
    """The errors of a socket that has nothing to read, or no room to write."""
    if not tls:
        return (BlockingIOError,)
    import ssl

    return (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def run_blocking(step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking step here."""
    return step(*args, **kwargs)


class Background:
    """Work that goes on beside the caller's, each in a thread; its owner makes it end before ``stop``."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def start(self, step: Callable[..., Any], *args: Any, name: str) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=_quietly, args=(step, args), name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def stop(self) -> None:
        """Wait a bounded time for what runs to end."""
        end = time.monotonic() + _JOIN_S
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(end - time.monotonic(), 0))


def _quietly(step: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        step(*args)
    except Exception:  # noqa: BLE001, S110  the work reports its own failures, as in the asynchronous API
        pass
