"""The channel kind ``listen``: a port or Unix socket in the sandbox, whose connections the client receives (PROTOCOL §7.10–§7.12).

Owns the listening socket: where it may be, when it accepts a connection, and the end of each accepted one. The session counts the
connections and decides when another may be accepted; until then programs wait in the kernel's queue. Their bytes are carried by
``socket_channel``.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
import struct
from collections.abc import Callable

from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import Closed, Failed, Opened
from holdfast_wire.paths import shown

from session_agent.agent.context import AgentContext
from session_agent.agent.files.file_user import Owner, acting, switched
from session_agent.agent.process.users import User
from session_agent.agent.request.params import integer
from session_agent.agent.request.paths import absolute, os_failure, path_param
from session_agent.agent.session.channels import Channel, Handler, ListenerChannel

from .socket_channel import SocketChannel

HOST = "127.0.0.1"
BACKLOG = 1024
"""Connections that the kernel keeps until they are accepted; its own limit (``net.core.somaxconn``) may be lower."""
PAUSE_S = 0.1
"""Pause after an accept that failed for lack of descriptors or memory."""
LINGER_S = 5.0
"""How long a closed connection waits for the program to read the last bytes and to close its side."""
_MODE = 0o666
_MOST_PATH = 107
_RESET = struct.pack("ii", 1, 0)


def open_listen(context: AgentContext, channel: ListenerChannel) -> Handler:
    """``listen {port}`` or ``listen {path, user?}``: Opened{host, port} or {path}, Closed{}. Each connection is a channel of its own."""
    params = channel.params
    if params.get("path") is None:
        port = integer(params, "port", None, most=65535)
        if port is None:
            raise HoldfastError("invalid_argument", "listen needs a port from 0 to 65535, or a path")
        return Listener(channel, lambda: _listen_on_port(port))
    path = absolute(context.workdir, path_param(params))
    if len(os.fsencode(path)) > _MOST_PATH:
        raise HoldfastError("invalid_path", f"{shown(path)}: the path of a Unix socket has at most {_MOST_PATH} bytes")
    actor, owner = acting(context, params)
    return Listener(channel, lambda: _listen_on_path(path, actor, owner), path)


def _listen_on_port(port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((HOST, port))
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        code = "permission_denied" if error.errno in (errno.EACCES, errno.EPERM) else "invalid_argument"
        reason = os.strerror(error.errno or 0)
        raise HoldfastError(code, f"cannot listen on port {port} of the sandbox: {reason}", hint="choose another port, or 0") from None
    return listening


def _listen_on_path(path: str, actor: User | None, owner: Owner) -> socket.socket:
    """Called in a thread: a file system may be slow."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if actor is None:
            listening.bind(path)
        else:
            with switched(actor):
                listening.bind(path)
        _open_to_all(path, owner)
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise HoldfastError("file_exists", f"{shown(path)} exists already", hint="remove it, or choose another path") from None
        raise os_failure(error, path) from None
    return listening


def _open_to_all(path: str, owner: Owner) -> None:
    """Let every user connect. The file may have been replaced by a link since it was made, so no link is followed."""
    made = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISSOCK(os.fstat(made).st_mode):
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
        place = f"/proc/self/fd/{made}"
        if owner is not None:
            os.chown(place, *owner)
        os.chmod(place, _MODE)
    finally:
        os.close(made)


class Listener(Handler):
    """One listening socket, from Open to its final fact. Accepted connections continue after it."""

    def __init__(self, channel: ListenerChannel, listen: Callable[[], socket.socket], path: str = "") -> None:
        self._channel = channel
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = None
        self._watching = False
        self._pause: asyncio.TimerHandle | None = None
        self._over = False
        self._starting: asyncio.Task[None] | None = None
        if path:
            self._starting = self._loop.create_task(self._start_in_thread(listen), name=f"listen on {path}")
        else:
            self._start(listen())

    # channels.Handler -------------------------------------------------------------------------------------------

    def writable(self) -> None:
        """The session may accept another connection."""
        if self._socket is not None and not self._watching and self._pause is None and self._channel.may_accept():
            self._watching = True
            self._loop.add_reader(self._socket, self._accept)

    def close(self, detach: bool) -> None:
        if self._stop():
            self._channel.send(Closed(self._channel.number, {}))

    def drop(self) -> None:
        self._stop()

    # Inside -----------------------------------------------------------------------------------------------------

    async def _start_in_thread(self, listen: Callable[[], socket.socket]) -> None:
        try:
            listening = await asyncio.to_thread(listen)
        except HoldfastError as error:
            if not self._over:
                self._over = True
                self._channel.send(Failed(self._channel.number, error.to_map()))
            return
        if self._over:
            listening.close()
            self._remove()
        else:
            self._start(listening)

    def _start(self, listening: socket.socket) -> None:
        self._socket = listening
        place = {"path": self._path} if self._path else {"host": HOST, "port": listening.getsockname()[1]}
        self._channel.send(Opened(self._channel.number, place))
        self.writable()

    def _accept(self) -> None:
        listening = self._socket
        assert listening is not None
        while self._channel.may_accept():
            try:
                connection, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # no descriptor or memory is free; there may be for the next one
                self._pause = self._loop.call_later(PAUSE_S, self._resume)
                break
            connection.setblocking(False)
            if not self._path:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._channel.accept({"path": self._path} if self._path else {"peer": list(peer)}, _serving(connection))
        self._unwatch()

    def _resume(self) -> None:
        self._pause = None
        self.writable()

    def _unwatch(self) -> None:
        if self._watching and self._socket is not None:
            self._watching = False
            self._loop.remove_reader(self._socket)

    def _stop(self) -> bool:
        """Stop listening; False if that was done before."""
        if self._over:
            return False
        self._over = True
        self._unwatch()
        if self._pause is not None:
            self._pause.cancel()
        if self._socket is not None:
            self._socket.close()
            self._remove()
        return True

    def _remove(self) -> None:
        """Remove the Unix socket. One that another program has put in its place goes too, as with any server that cleans up its path."""
        if self._path:
            try:
                if stat.S_ISSOCK(os.lstat(self._path).st_mode):
                    os.unlink(self._path)
            except OSError:
                pass


def _serving(connection: socket.socket) -> Callable[[Channel], Handler]:
    return lambda channel: AcceptedConnection(channel, connection)


class AcceptedConnection(SocketChannel):
    """A connection that a program made. It is reset if it ends before the client has ended its input."""

    def __init__(self, channel: Channel, connection: socket.socket) -> None:
        super().__init__(channel)
        self._socket = connection
        self._discarding = False
        self._linger: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._adopting = self._loop.create_task(self._adopt(), name=f"connection {channel.number}")

    async def _adopt(self) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: self, self._socket)
        except OSError as error:
            self._finish(self._lost(os.strerror(error.errno or 0)))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._over:
            self._reset()
        else:
            self._established(transport)
            self._linger_if_closed()

    def close(self, detach: bool) -> None:
        """After the end of the input the last bytes are delivered, as with ``close`` of a socket that lingers; else it is a reset."""
        if not self._input_ended:
            self._finish(Closed(self._channel.number, self._counts()))
            return
        self._discarding = True
        self._linger_if_closed()

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(bytearray(4096)) if self._discarding else super().get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        if not self._discarding:
            super().buffer_updated(nbytes)

    def eof_received(self) -> bool:
        if self._discarding:
            self._output_ended = True
            self._close_if_done()
            return True
        return super().eof_received()

    def _linger_if_closed(self) -> None:
        if self._discarding and self._transport is not None and self._linger is None and not self._over:
            self._linger = self._loop.call_later(LINGER_S, self._give_up)
            if self._stalled and not self._transport.is_closing():
                self._stalled = False
                self._transport.resume_reading()

    def _give_up(self) -> None:
        self._finish(Closed(self._channel.number, self._counts()))

    def _stall(self) -> None:
        if not self._discarding:
            super()._stall()

    def _lost(self, reason: str) -> Failed:
        message = f"the program in the sandbox ended the connection: {reason}"
        error = HoldfastError("port_unreachable", message, hint="it reset the connection, or was killed", detail=self._counts())
        return Failed(self._channel.number, error.to_map())

    def _finish(self, fact: Closed | Failed | None) -> None:
        if self._over:
            return
        if self._linger is not None:
            self._linger.cancel()
        if self._transport is not None and not self._transport.is_closing() and not self._discarding:
            self._reset()
        super()._finish(fact)

    def _reset(self) -> None:
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        except OSError:
            pass  # it has ended
        assert self._transport is not None
        self._transport.abort()
