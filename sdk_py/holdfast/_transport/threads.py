"""The blocking face of the transport: whoever waits, reads.

The thread that waits for an answer drives the socket itself (it leads), so an answer meets the caller without a switch between
threads. Others that wait follow, and one of them leads next. A keeper thread connects, resumes, and serves pings and
acknowledgements when nobody leads. ``aio`` has the same names for the asynchronous SDK; one lock guards engine and sinks.
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

from holdfast._options import Options
from holdfast._session_token import SessionToken
from holdfast._transport.engine import Engine, elsewhere
from holdfast._transport.threads_gates import Flag, Gate, Lock, Shield, Turn, free
from holdfast._transport.threads_keeper import Keeper
from holdfast._transport.threads_loop import warn_in_loop
from holdfast._transport.threads_stops import current, sleep
from holdfast._transport.websocket import WebSocket

P = ParamSpec("P")
T = TypeVar("T")

Cancelled = KeyboardInterrupt
"""What a local cancellation raises inside a wait."""

RECEIVE_BYTES = 256 * 1024
_JOIN_S = 2.0

__all__ = ["Background", "Cancelled", "Flag", "Gate", "Link", "Lock", "run_blocking", "sleep"]


class Link:
    """One session's connection: made on ``start``, remade whenever it breaks, until ``close`` or a fatal refusal."""

    def __init__(self, options: Options, sandbox_id: str, token: SessionToken | None = None) -> None:
        self.options = options
        self._pid = os.getpid()
        self.tls = options.url.startswith("https:")
        self.would_block = _would_block(self.tls)
        self._turn = Turn(self)
        self.engine = Engine(options, sandbox_id, self.gate, token=token)
        self._socket: socket.socket | None = None
        self._websocket: WebSocket | None = None
        self._unwritten = b""
        self._leader: Gate | None = None
        self._leader_thread = 0
        self._leads = 0
        self._followers: list[Any] = []
        self._later: deque[Callable[[], object]] = deque()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._finished = False
        self.shielded: Shield | None = None
        """The shield the main thread is behind."""
        self._keeper = Keeper(self)

    def gate(self) -> Gate:
        return Gate(self)

    @property
    def here(self) -> bool:
        """Whether this is the process it was made in. A fork has the socket too, and must not speak on it."""
        return os.getpid() == self._pid

    left_behind = True
    """A fork always may have a session of its own."""

    def start(self) -> None:
        """Return once the session is attached. Raises the typed error that prevents it."""
        warn_in_loop()
        self._keeper.thread.start()
        ready: Any = self.engine.ready
        try:
            ready.wait()
        except Cancelled:
            self.close()
            raise
        if self.engine.error is not None:
            why = self.engine.error
            self.close()
            raise why

    def shield(self) -> Shield:
        """Around steps that belong together: Ctrl-C waits for the next wait among them, or for their end."""
        return Shield(self)

    def perform(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a step of engine or sinks, then write what it caused."""
        if not self.here:
            raise elsewhere()
        with Shield(self), self._turn:
            try:
                return step(*args, **kwargs)
            finally:
                self._flush()

    def later(self, step: Callable[[], object]) -> None:
        """``perform`` from anywhere, also from a finalizer that runs while this very thread holds the lock."""
        if not self.here:
            return
        self._later.append(step)
        if self._turn.lock.acquire(blocking=False):
            self._keeper.stir()
            self.wake()
            self._turn.lock.release()

    def close(self) -> None:
        """End the session's connection; waiting calls fail with ``session_lost``, reason ``closed``."""
        if not self.here:
            return
        with self._turn:
            self.engine.close()
            self._flush()
            self._keeper.stir()
            self.wake()
        if self._keeper.thread.is_alive() and threading.current_thread() is not self._keeper.thread:
            self._keeper.thread.join(_JOIN_S)

    def drop(self) -> None:
        """Break the connection as a failing network would. The session resumes; for tests."""
        with self._turn:
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)

    # Waiting ----------------------------------------------------------------------------------------------------

    def wait(self, gate: Gate, timeout_s: float | None) -> bool:
        """Until ``gate`` is open: lead where nobody does, else follow."""
        if not self.here:
            raise elsewhere()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        stop = current()
        with Shield(self) as shield:
            if stop is not None:
                stop.begin_wait(shield)
            try:
                while not gate._open and not shield.noted and (deadline is None or time.monotonic() < deadline):
                    self._wait_once(gate, deadline, shield)
            finally:
                if stop is not None:
                    stop.end_wait(shield)
            shield.heed()
        return gate._open

    def _wait_once(self, gate: Gate, deadline: float | None, shield: Shield) -> None:
        """Lead until the gate opens or the connection goes, or follow until something has changed."""
        lock, me = self._turn.lock, threading.get_ident()
        waiter = None
        try:
            with lock:
                if gate._open:
                    return
                if self._leader is None and self._socket is not None:
                    self._leader_thread = me
                    self._leader = gate
                    self._leads += 1
                else:
                    waiter = shield.waiter = threading.Lock()
                    waiter.acquire()
                    gate._waiters.append(waiter)
                    self._followers.append(waiter)
            if waiter is not None:
                if not shield.noted:
                    waiter.acquire(timeout=-1 if deadline is None else max(deadline - time.monotonic(), 0))
                return
            while not gate._open and not shield.noted:
                connection = self._socket
                if connection is None or not self._serve_once(connection, deadline):
                    return
        finally:
            shield.waiter = None
            if waiter is not None:
                with lock:
                    self._followers.remove(waiter)
                    if waiter in gate._waiters:
                        gate._waiters.remove(waiter)
                    # It may have been asked to lead when it was leaving already: the next one is.
                    stir = self._leader is None and self._hand_over()
                if stir:
                    self._keeper.stir()
            elif self._leader_thread == me:
                self._resign()

    def _serve_once(self, connection: socket.socket, deadline: float | None) -> bool:
        """Wait for the socket or a time, then take what came. False: the deadline passed."""
        with self._turn.lock:
            due = self.engine.deadline()
        now = time.monotonic()
        wait_ms = -1.0 if due is None else max((due - now) * 1000, 0) + 1
        if deadline is not None:
            if now >= deadline:
                return False
            left_ms = (deadline - now) * 1000 + 1
            wait_ms = left_ms if wait_ms < 0 else min(wait_ms, left_ms)
        descriptor = connection.fileno()
        if descriptor < 0:
            return True
        poll = select.poll()
        poll.register(descriptor, select.POLLIN | select.POLLOUT if self._unwritten else select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        woken = any(ready == self._wake_read for ready, _ in poll.poll(wait_ms))
        with self._turn:
            # A wake-up is for who leads; the keeper must not swallow it.
            if woken and (self._leader is None or self._leader_thread == threading.get_ident()):
                with suppress(BlockingIOError):  # who led when it came may have read it, and have resigned since
                    os.read(self._wake_read, 64)
            self._serve(connection)
        return True

    def _resign(self) -> None:
        with self._turn.lock:
            self._leader_thread = 0
            self._leader = None
            self._close_pipe()
            stir = self._hand_over()
        if stir:
            self._keeper.stir()

    def _hand_over(self) -> bool:
        """Have a follower lead. True where there is none: the keeper is to be stirred."""
        self._promote()
        return not self._followers and self._keeper.sleeps

    def _promote(self) -> None:
        for waiter in self._followers:
            if waiter.locked():
                free(waiter)
                return

    # One step, under the lock -----------------------------------------------------------------------------------

    def _serve(self, connection: socket.socket) -> None:
        websocket = self._websocket
        if connection is not self._socket or websocket is None:
            return
        ended = False
        while True:
            try:
                data = connection.recv(RECEIVE_BYTES)
            except self.would_block:
                break
            except OSError:
                data = b""
            if not data:
                websocket.feed_eof()
                ended = True
                break
            messages = websocket.feed(data)
            if messages:
                self.engine.receive(messages, time.monotonic())
            if websocket.over:
                ended = True
                break
            if not self.tls:
                break
        due, now = self.engine.deadline(), time.monotonic()
        if due is not None and due <= now:
            self.engine.tick(now)
        if ended:
            self._write(websocket.reply())
            self._hang_up()
        else:
            self._flush()

    def _flush(self) -> None:
        """Write what there is, unless the socket is behind: then the session keeps it."""
        while self._later:
            with suppress(HoldfastError):  # it is nobody's here
                self._later.popleft()()
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
        leader = self._leader
        if (self._unwritten or (leader is not None and leader._open)) and not self._polls():
            self.wake()
            if leader is None:
                self._keeper.stir()  # it writes on while the caller prepares the next piece

    def _polls(self) -> bool:
        """Whether this thread is the one that polls next: it sees by itself what there is to do."""
        me = threading.get_ident()
        return me == self._leader_thread or (self._leader is None and me == self._keeper.thread.ident)

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
        except OSError:
            return  # the reading side will see the end
        if sent < len(data):
            self._unwritten = data[sent:]

    def _hang_up(self) -> None:
        """The connection is over: the keeper makes the next one."""
        connection, self._socket = self._socket, None
        self._unwritten = b""
        if connection is not None:
            connection.close()
        self.engine.session.disconnected()
        self._keeper.stir()
        self.wake()

    def wake(self) -> None:
        """End the leader's poll. Under the lock, or by the leader itself: when the pipe is closed its number is soon another file's."""
        try:
            os.write(self._wake_write, b"\0")
        except (BlockingIOError, OSError):
            pass

    def _close_pipe(self) -> None:
        """At the very end, once nobody can be polling it."""
        if self._finished and self._leader is None and self._wake_read >= 0:
            os.close(self._wake_read)
            os.close(self._wake_write)
            self._wake_read = self._wake_write = -1


def _would_block(tls: bool) -> tuple[type[OSError], ...]:
    """What a socket says that has nothing to read, or no room to write."""
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
    except Exception:  # noqa: BLE001, S110  what went wrong is told to whom it concerns, as in the asynchronous face
        pass
