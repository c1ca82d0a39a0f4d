"""The blocking face of the transport: whoever waits, reads.

The thread that waits for an answer drives the socket itself (it leads), so an answer meets the caller without a switch between
threads. Others that wait follow, and one of them leads next. A keeper thread connects, resumes, and serves pings and
acknowledgements when nobody leads. ``aio`` has the same names for the asynchronous SDK; one lock guards engine and sinks.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar
from urllib.parse import urlsplit

from holdfast._errors import error
from holdfast._options import Options
from holdfast._transport.engine import Engine
from holdfast._transport.websocket import WebSocket

P = ParamSpec("P")
T = TypeVar("T")

Cancelled = KeyboardInterrupt
"""What a local cancellation raises inside a wait."""

Lock = threading.Lock
sleep = time.sleep

RECEIVE_BYTES = 256 * 1024
DOZE_S = 0.1
"""How long the keeper leaves an idle connection alone: commands that follow each other do not wake it each time."""
_JOIN_S = 2.0


class Gate:
    """A flag to wait for. Set under the link's lock; setting it wakes every waiter."""

    __slots__ = ("_link", "_open", "_waiters")

    def __init__(self, link: Link) -> None:
        self._link = link
        self._open = False
        self._waiters: list[Any] = []

    def set(self) -> None:
        self._open = True
        if self._waiters:
            for waiter in self._waiters:
                if waiter.locked():
                    waiter.release()
            self._waiters.clear()

    def clear(self) -> None:
        self._open = False

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until the gate is open; False when ``timeout_s`` passed first."""
        return self._open or self._link.wait(self, timeout_s)


class _Turn:
    """The lock around every step of the engine. A step that an interrupt tore apart leaves ``torn``: nothing after it is trusted."""

    __slots__ = ("link", "lock", "torn")

    def __init__(self, link: Link) -> None:
        self.link = link
        self.lock = threading.Lock()
        self.torn = False

    def __enter__(self) -> None:
        self.lock.acquire()
        if self.torn:
            self.torn = False
            self.link.engine.fail(
                error("session_lost", "a step of this session was interrupted half-way", reason="interrupted", fault="caller")
            )
        self.torn = True

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.torn = kind is not None and not issubclass(kind, Exception)
        self.lock.release()


class _Shield:
    """Holds Ctrl-C back in the main thread, so that it never tears a step apart; it is raised right afterwards.

    Only where Python's own handler is in place. ``waiter`` is released and the link's poll is woken, so that a wait ends at once.
    """

    __slots__ = ("active", "link", "noted", "waiter")

    def __init__(self, link: Link) -> None:
        self.link = link
        self.active = False
        self.noted = False
        self.waiter: Any = None

    def __enter__(self) -> Self:
        here = threading.get_ident() == threading.main_thread().ident
        if here and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self.active = True
            signal.signal(signal.SIGINT, self._note)
        return self

    def _note(self, *_: object) -> None:
        self.noted = True
        self.link.wake()
        waiter = self.waiter
        if waiter is not None and waiter.locked():
            waiter.release()

    def __exit__(self, *_: object) -> None:
        if self.active:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if self.noted:
                raise KeyboardInterrupt


class Link:
    """One session's connection: made on ``start``, remade whenever it breaks, until ``close`` or a fatal refusal."""

    def __init__(self, options: Options, sandbox_id: str) -> None:
        self.options = options
        self._turn = _Turn(self)
        self.engine = Engine(options, sandbox_id, self.gate)
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
        self._stirred = threading.Event()
        self._keeper_sleeps = False
        self._keeper = threading.Thread(target=self._keep, name=f"holdfast-link-{sandbox_id}", daemon=True)

    def gate(self) -> Gate:
        return Gate(self)

    def start(self) -> None:
        """Return once the session is attached. Raises the typed error that prevents it."""
        self._keeper.start()
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

    def perform(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a step of engine or sinks, then write what it caused."""
        with _Shield(self), self._turn:
            try:
                return step(*args, **kwargs)
            finally:
                self._flush()

    def later(self, step: Callable[[], object]) -> None:
        """``perform`` from anywhere, also from a finalizer that runs while this very thread holds the lock."""
        self._later.append(step)
        if self._turn.lock.acquire(blocking=False):
            self._turn.lock.release()
            self._stir()

    def close(self) -> None:
        """End the session's connection; waiting calls fail with ``session_lost``, reason ``closed``."""
        with self._turn:
            self.engine.close()
            self._flush()
        self._stirred.set()
        self.wake()
        if self._keeper.is_alive() and threading.current_thread() is not self._keeper:
            self._keeper.join(_JOIN_S)

    def drop(self) -> None:
        """Break the connection as a failing network would. The session resumes; for tests."""
        with self._turn:
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)

    # Waiting ----------------------------------------------------------------------------------------------------

    def wait(self, gate: Gate, timeout_s: float | None) -> bool:
        """Until ``gate`` is open: lead where nobody does, else follow."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with _Shield(self) as shield:
            while not gate._open and not shield.noted and (deadline is None or time.monotonic() < deadline):
                self._wait_once(gate, deadline, shield)
        return gate._open

    def _wait_once(self, gate: Gate, deadline: float | None, shield: _Shield) -> None:
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
                os.read(self._wake_read, 64)
            self._serve(connection)
        return True

    def _resign(self) -> None:
        with self._turn.lock:
            self._leader_thread = 0
            self._leader = None
            self._close_pipe()
            self._promote()
            stir = not self._followers and self._keeper_sleeps
        if stir:
            self._stirred.set()

    def _promote(self) -> None:
        for waiter in self._followers:
            if waiter.locked():
                waiter.release()
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
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
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
            if not isinstance(connection, ssl.SSLSocket):
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
        if websocket.has_reply:
            self._write(websocket.reply())
        leader = self._leader
        if (self._unwritten or (leader is not None and leader._open)) and self._leader_thread != threading.get_ident():
            self.wake()

    def _write(self, data: bytes) -> None:
        data = self._unwritten + data if self._unwritten else data
        self._unwritten = b""
        connection = self._socket
        if not data or connection is None:
            return
        try:
            sent = connection.send(data)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
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
        self._stirred.set()
        self.wake()

    def wake(self) -> None:
        try:
            os.write(self._wake_write, b"\0")
        except (BlockingIOError, OSError):
            pass

    def _stir(self) -> None:
        self._stirred.set()
        self.wake()

    def _close_pipe(self) -> None:
        """At the very end, once nobody can be polling it."""
        if self._finished and self._leader is None and self._wake_read >= 0:
            os.close(self._wake_read)
            os.close(self._wake_write)
            self._wake_read = self._wake_write = -1

    # The keeper -------------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        try:
            while self.engine.error is None:
                delay_s = self._connect()
                if delay_s is None:
                    self._watch()
                    delay_s = self._broken(self._websocket, "the connection was lost")
                if delay_s is None:
                    return
                self._pause(delay_s)
        finally:
            with self._turn:
                self._hang_up()
            with self._turn.lock:
                self._finished = True
                self._close_pipe()

    def _pause(self, delay_s: float) -> None:
        until = time.monotonic() + delay_s
        while self.engine.error is None and (left := until - time.monotonic()) > 0:
            self._stirred.wait(left)
            self._stirred.clear()

    def _broken(self, websocket: WebSocket | None, why: str) -> float | None:
        with self._turn:
            return self.engine.broken(websocket, why, time.monotonic())

    def _connect(self) -> float | None:
        """Make a connection and shake hands. Returns None when it stands, else the seconds until the next attempt."""
        parts = urlsplit(self.options.websocket_url)
        context = ssl.create_default_context() if parts.scheme == "wss" else None
        port = parts.port or (443 if context else 80)
        limit_s = self.options.connect_timeout_s
        websocket = self.engine.websocket()
        connection: socket.socket | None = None
        why = "the connection was lost"
        try:
            connection = socket.create_connection((parts.hostname or "", port), timeout=limit_s)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is not None:
                connection = context.wrap_socket(connection, server_hostname=parts.hostname)
            messages = _shake(connection, websocket, limit_s)
            if websocket.open:
                connection.setblocking(False)
                self._adopt(connection, websocket, messages)
                return None
        except TimeoutError:
            why = f"no answer from {parts.hostname}:{port} within {limit_s:g} s"
        except ssl.SSLCertVerificationError as failure:
            with self._turn:
                self.engine.fail(error("agent_identity", f"the service's certificate is refused: {failure.verify_message}"))
        except OSError as failure:
            why = f"cannot connect to {parts.hostname}:{port}: {failure.strerror or type(failure).__name__}"
        if connection is not None:
            connection.close()
        delay_s = self._broken(websocket, why)
        return 0.0 if delay_s is None else delay_s

    def _adopt(self, connection: socket.socket, websocket: WebSocket, messages: list[bytes]) -> None:
        with self._turn:
            if self.engine.error is not None:
                connection.close()
                return
            now = time.monotonic()
            self._socket, self._websocket, self._unwritten = connection, websocket, b""
            self.engine.connected(websocket.headers, now)
            self.engine.receive(messages, now)
            self._flush()
            self._promote()

    def _watch(self) -> None:
        """Serve the connection whenever nobody else does, until it goes."""
        while self.engine.error is None:
            connection = self._socket
            if connection is None:
                return
            with self._turn.lock:
                busy, leads = self._leader is not None, self._leads
                self._keeper_sleeps = busy
            if busy:
                self._stirred.wait()
                self._keeper_sleeps = False
                self._stirred.clear()
                continue
            self._stirred.wait(DOZE_S)
            self._stirred.clear()
            while self._leader is None and self._leads == leads and self._socket is connection and self.engine.error is None:
                self._serve_once(connection, None)


def _shake(connection: socket.socket, websocket: WebSocket, limit_s: float) -> list[bytes]:
    """The handshake, blocking."""
    until = time.monotonic() + limit_s
    connection.sendall(websocket.greeting())
    messages: list[bytes] = []
    while not websocket.open and not websocket.over:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        data = connection.recv(RECEIVE_BYTES)
        if data:
            messages += websocket.feed(data)
        else:
            websocket.feed_eof()
    return messages


def run_blocking(step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking step here."""
    return step(*args, **kwargs)


class Flag:
    """A gate that belongs to no link."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until the flag is set; False when ``timeout_s`` passed first."""
        return self._event.wait(timeout_s)


class Background:
    """Work that goes on beside the caller's, each in a thread; its owner makes it end before ``stop``."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def start(self, step: Callable[..., Any], *args: Any, name: str) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=_quietly, args=(step, args), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        """Wait a bounded time for what runs to end."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_JOIN_S)


def _quietly(step: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        step(*args)
    except Exception:  # noqa: BLE001, S110  what went wrong is told to whom it concerns, as in the asynchronous face
        pass
