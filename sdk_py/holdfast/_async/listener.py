"""A port or Unix socket in the sandbox whose connections arrive here, over the session: one channel for each.

Owns the public ``AsyncListener`` and ``AsyncConnection``, the handlers that serve connections, and forwarding them to an address of this
machine (with ``forwarding``). Made by ``sandbox.listen``. The agent listens; ``listen_sink`` holds the connections that wait.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, Self

from holdfast._arguments import content_of, wait_time_of
from holdfast._async.forwarding import carry
from holdfast._async.transfers import AsyncTransfer
from holdfast._errors import HoldfastError, InputClosedError, PortUnreachableError, WaitTimeoutError
from holdfast._log import log
from holdfast._public import public
from holdfast._results import Address
from holdfast._transport.aio.driver import SessionDriver
from holdfast._transport.aio.events import Background, Event
from holdfast._transport.aio.net import Stream, dial
from holdfast._transport.session.listen_sink import ConnectionSink, ListenSink, place_of

DIAL_S = 10.0
"""How long a connection to the address that connections are forwarded to may take."""
_CLOSE_S = 2.0
"""How long ``close`` waits for the sandbox, and for the last bytes of the connections that it ends."""


@public
class AsyncConnection:
    """A connection that a program in the sandbox has made. Leaving its ``with`` block closes it, after an exception with a reset.

    A connection that is neither closed nor used any more is reset when it is garbage collected.
    """

    def __init__(self, driver: SessionDriver, sink: ConnectionSink) -> None:
        self._transfer = AsyncTransfer(driver, "connection", {}, sink)
        self._peer = sink.peer
        self._ended = False
        self._closed = False

    @property
    def peer(self) -> Address | None:
        """The address of the program; None if it connected to a Unix socket."""
        return None if self._peer is None else Address(*self._peer)

    async def read(self) -> bytes:
        """The next bytes, b"" once the program has sent everything. Raises ``PortUnreachableError`` if it reset the connection."""
        return await self._transfer.read()

    async def write(self, data: bytes | str) -> None:
        """Send ``data``, text as UTF-8; waits while the program does not read.

        Raises ``InputClosedError`` after ``write_eof``, and ``PortUnreachableError`` if the program has ended the connection.
        """
        if self._ended:
            raise InputClosedError("input_closed", "the end of this connection's bytes was sent already", fault="caller")
        await self._transfer.write(content_of(data, "data"))

    async def write_eof(self) -> None:
        """Send the end of the bytes; the program may still send. No effect if it was sent before."""
        if not self._ended:
            self._ended = True
            await self._transfer.write(b"", eof=True)

    async def close(self) -> None:
        """Close it: the program receives what was written, and then the end. What it sends afterwards is dropped."""
        try:
            await self.write_eof()
        except HoldfastError:
            pass  # it has ended already
        self.abort()

    def abort(self) -> None:
        """Reset the connection, unless its end was sent already."""
        if not self._closed:
            self._closed = True
            self._transfer.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            await self.close()
        else:
            self.abort()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} from {self.peer}>"

    def __del__(self) -> None:
        transfer = getattr(self, "_transfer", None)  # not there where ``__init__`` was interrupted
        if transfer is not None and not self._closed:
            transfer.abandon()


@public
class AsyncListener:
    """Listens in the sandbox until it is closed. Iterate it, or ``accept`` one connection at a time.

    Connections survive the loss of a gateway, as everything on the session does. If the session is lost, ``SessionLostError`` is raised.
    """

    def __init__(self, driver: SessionDriver, params: dict[str, Any], listeners: set[Any]) -> None:
        self._driver = driver
        self._listeners = listeners
        self._background = Background()
        self._served: set[AsyncTransfer] = set()
        self._settled = Event()
        self._closed = False
        self._path: str | None = params.get("path")
        self._address = Address("", 0)
        self._sink = ListenSink(driver.engine.session, driver.engine.new_event)
        self._transfer = AsyncTransfer(driver, "listen", params, self._sink)
        self.last_error: HoldfastError | None = None
        """The error of the latest connection that failed, if connections are passed to a handler or forwarded."""

    @property
    def address(self) -> Address:
        """Where it listens in the sandbox; of a Unix socket an empty host, and port 0."""
        return self._address

    @property
    def path(self) -> str | None:
        """The path of its Unix socket, None if it listens on a port."""
        return self._path

    async def _start(self) -> None:
        """Return once it listens, or raise why it cannot."""
        try:
            info = await self._transfer.opened()
            if self._path is None:
                self._address = Address(*place_of(info))
        except BaseException:
            self._transfer.stop()
            raise
        self._listeners.add(self)

    async def accept(self, timeout: float | None = None) -> AsyncConnection | None:
        """The next connection, or None if the listener was closed.

        A cancelled wait loses no connection. Raises ``WaitTimeoutError`` after ``timeout`` seconds, and the typed error if the session
        ends.
        """
        timeout = wait_time_of(timeout)
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            connection = None if self._closed else self._driver.perform(self._next)
            if connection is not None:
                return connection
            if self._closed or self._sink.ended:
                if self._sink.error is not None and not self._closed:
                    raise self._sink.error
                return None
            if not await self._sink.changed.wait(None if end is None else max(end - time.monotonic(), 0.0)):
                raise WaitTimeoutError(message=f"no program connected within {timeout:g} s")

    def _next(self) -> AsyncConnection | None:
        """Take a connection and wrap it, as one step: an interrupt loses none."""
        sink = self._sink.next()
        return None if sink is None else AsyncConnection(self._driver, sink)

    async def wait(self) -> None:
        """Return when the listener was closed; raises the typed error if the session ends before."""
        sink = self._sink
        await sink.over.wait()
        if sink.error is not None and not self._closed:
            raise sink.error

    async def close(self, grace_s: float = 0.0) -> None:
        """Stop listening. Connections that wait are reset; those that were passed to a handler or forwarded end too, and others go on.

        ``grace_s``: how long connections that were passed on may take to end by themselves.
        """
        self._listeners.discard(self)
        if self._closed:
            return
        self._closed = True
        self._transfer.stop()
        self._sink.changed.set()
        await self._settle(grace_s)
        for transfer in list(self._served):
            transfer.stop()
        await self._sink.over.wait(_CLOSE_S)  # the port is free then
        self._sink.over.set()
        await self._settle(_CLOSE_S)
        await self._background.stop()

    async def _settle(self, limit_s: float) -> None:
        """Wait until no connection is served."""
        end = time.monotonic() + limit_s
        while self._served and (left := end - time.monotonic()) > 0 and self._driver.engine.error is None:
            self._settled.clear()
            if self._served:
                await self._settled.wait(left)

    # Handlers ---------------------------------------------------------------------------------------------------

    def _serve_with(self, handler: Callable[[AsyncConnection], Awaitable[None] | None]) -> None:
        self._background.start(self._serve, handler, name="holdfast-listener")

    async def _serve(self, handler: Callable[[AsyncConnection], Awaitable[None] | None]) -> None:
        try:
            while (connection := await self.accept()) is not None:
                self._served.add(connection._transfer)
                self._background.start(self._handle, handler, connection, name="holdfast-listener-connection")
        except HoldfastError as why:
            self.last_error = why

    async def _handle(self, handler: Callable[[AsyncConnection], Any], connection: AsyncConnection) -> None:
        try:
            if not self._closed:
                await handler(connection)
            await connection.close()
        except HoldfastError as why:
            self.last_error = why
        except Exception as why:  # noqa: BLE001  of the program's handler: nothing else would report it
            log("warning", "the handler of a connection failed: %r", why)
        finally:
            connection.abort()
            self._served.discard(connection._transfer)
            self._settled.set()

    def _forward_to(self, host: str, port: int) -> None:
        async def forwarded(connection: AsyncConnection) -> None:
            await self._forward(connection, host, port)

        self._serve_with(forwarded)

    async def _forward(self, connection: AsyncConnection, host: str, port: int) -> None:
        try:
            stream: Stream = await dial(host, port, DIAL_S)
        except (OSError, UnicodeError) as why:
            reason = getattr(why, "strerror", None) or type(why).__name__
            hint = f"is anything listening on port {port}?"
            self.last_error = PortUnreachableError("port_unreachable", f"{host}:{port} cannot be reached: {reason}", hint=hint)
            connection.abort()
            return
        try:
            await carry(stream, connection._transfer, self._background, resets=True)
        except OSError:
            connection.abort()  # the local side went away
        finally:
            await stream.close()

    def __aiter__(self) -> AsyncIterator[AsyncConnection]:
        return self

    async def __anext__(self) -> AsyncConnection:
        connection = await self.accept()
        if connection is None:
            raise StopAsyncIteration
        return connection

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    def __repr__(self) -> str:
        over = self._closed or self._sink.ended
        return f"<{type(self).__name__} {self._path or self._address}{' ended' if over else ''}>"

    def __del__(self) -> None:
        transfer = getattr(self, "_transfer", None)  # not there where ``__init__`` was interrupted
        if transfer is not None and not self._closed:
            transfer.abandon()
