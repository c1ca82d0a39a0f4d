# Generated from ../_async by infra/scripts/generate_sync.py: edit that, then run `make generate`.
"""A local port that reaches a TCP port in the sandbox: one channel per connection.

Owns the listener, its connections and their ends; ``forwarding`` carries their bytes. Made by ``sandbox.tunnel(port)``.
"""

from __future__ import annotations

import contextlib
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from holdfast._sync.forwarding import carry
from holdfast._sync.transfers import Transfer
from holdfast._errors import HoldfastError, InvalidArgumentError, PortUnreachableError
from holdfast._public import public
from holdfast._results import Address
from holdfast._transport.threads.events import Background, Event, shielded
from holdfast._transport.threads.net import Stream, listen

if TYPE_CHECKING:
    from holdfast._sync.attachable import Attachable


_ASK_LEAST_S = 0.02
_ASK_MOST_S = 0.5
"""First and longest pause between attempts to connect."""


@public
class Tunnel:
    """Listens on ``address`` until it is closed. Its ``with`` block returns the address; ``str(address)`` is ``host:port``."""

    def __init__(self, sandbox: Attachable, port: int, host: str | None, tunnels: set[Tunnel]) -> None:
        self._sandbox = sandbox
        self._tunnels = tunnels
        self._params = {"port": port, **({"host": host} if host else {})}
        self._background = Background()
        self._open: set[Transfer] = set()
        self._streams: set[Stream] = set()
        self._server: Any = None
        self._closed = False
        self._address = Address("", 0)
        self.last_error: HoldfastError | None = None
        """The error of the latest connection that failed, such as ``PortUnreachableError``."""

    @property
    def address(self) -> Address:
        """Where it listens."""
        return self._address

    def _listen(self, host: str, port: int) -> None:
        """Start listening. Raises ``InvalidArgumentError`` if that is not possible, for example because the port is in use."""
        try:
            self._server = listen(host, port, self._accept, self._background)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise InvalidArgumentError("invalid_argument", f"cannot listen on {host}:{port}: {why}", hint="choose another port") from None
        self._address = Address(*self._server.sockets[0].getsockname()[:2])

    def _accept(self, stream: Stream) -> None:
        if self._closed:
            stream.abort()
            return
        self._streams.add(stream)  # not in the task, which ``close`` may cancel before it begins
        self._background.start(self._connected, stream, name="holdfast-tunnel")

    def _connected(self, stream: Stream) -> None:
        try:
            if not self._closed:  # else ``close`` may not have seen it
                self._serve(stream)
        finally:
            self._streams.discard(stream)
            stream.close()

    def _until_served(self, limit_s: float) -> None:
        """Return once the port accepts a connection. Raises ``PortUnreachableError`` after ``limit_s`` seconds."""
        end = time.monotonic() + limit_s
        pause_s = _ASK_LEAST_S
        while True:
            with Transfer(self._sandbox._attached(), "tunnel", self._params) as transfer:
                try:
                    transfer.opened()
                    return
                except PortUnreachableError:
                    if time.monotonic() + pause_s > end:
                        raise
            Event().wait(pause_s)
            pause_s = min(pause_s * 2, _ASK_MOST_S)

    def _serve(self, stream: Stream) -> None:
        transfer: Transfer | None = None
        try:
            transfer = Transfer(self._sandbox._attached(), "tunnel", self._params)
            self._open.add(transfer)
            transfer.opened()
            carry(stream, transfer, self._background)
        except HoldfastError as why:
            self.last_error = why
        except OSError:
            pass  # the local side went away
        finally:
            if transfer is not None:
                self._open.discard(transfer)
                transfer.stop()

    def close(self) -> None:
        """Stop listening and end all connections."""
        shielded(self._close)

    def _close(self) -> None:
        self._tunnels.discard(self)
        self._closed = True
        if self._server is not None:
            self._server.close()
        for stream in list(self._streams):
            stream.close()
        for transfer in list(self._open):
            with contextlib.suppress(HoldfastError):
                transfer.stop()  # the other end may keep its side open for ever
        self._background.stop()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address} to port {self._params['port']}>"

    def __enter__(self) -> Address:
        return self.address

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
