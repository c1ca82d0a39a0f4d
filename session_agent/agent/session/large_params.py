"""Parameters that are larger than one message: they are collected before their channel is opened (PROTOCOL §7.8).

Owns the collecting, its limits, and the requests that arrive before the channel exists, which the handler gets in order afterwards.
Nothing runs before the last byte has arrived, so a request that is cut off has no effect. Created by ``sessions``; the channel's own
handler validates the parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast_wire.codec import decode_params
from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import Failed
from holdfast_wire.limits import PARAMS_BYTES, PARAMS_SANDBOX_BYTES
from holdfast_wire.session.halves import ByteCounter

from .channels import Channel, Handler

Opener = Callable[[dict[str, Any]], Handler]
"""Opens the channel with its parameters; from then on the session passes all events to the handler. Raises ``HoldfastError``."""
PACKED = "packed"


class Gathering(Handler):
    """The handler of a channel until its parameters have arrived."""

    def __init__(self, channel: Channel, opener: Opener, together: ByteCounter) -> None:
        """``together`` counts the announced bytes of all such channels."""
        size = channel.params[PACKED]
        if type(size) is not int or size < 1:
            raise HoldfastError("invalid_argument", f"{PACKED} must be the size in bytes of the parameters that follow")
        if size > PARAMS_BYTES:
            raise HoldfastError("arguments_too_long", f"the parameters have {size} bytes; the limit is {PARAMS_BYTES}")
        if together.held + size > PARAMS_SANDBOX_BYTES:
            raise HoldfastError("queue_full", "too many large requests are being sent to this sandbox")
        self._channel = channel
        self._opener = opener
        self._left = size
        self._held = ByteCounter(together)
        self._held.add(size)
        self._pieces: list[bytes] = []
        self._later: list[Callable[[Handler], None]] = []
        """Bounded: the protocol limits frames without bytes, too (PROTOCOL §5.3)."""
        self._over = False

    def write(self, data: bytes, eof: bool) -> None:
        if self._over:
            self._channel.consume(len(data))
            return
        piece, rest = data[: self._left], data[self._left :]
        self._left -= len(piece)
        self._pieces.append(piece)
        self._channel.consume(len(piece))
        if self._left:
            if eof:
                raise HoldfastError("invalid_argument", "the input ended before the parameters had arrived")
            return
        packed, later = b"".join(self._pieces), self._later
        self.drop()
        handler = self._opener(decode_params(packed))
        for call in later:
            call(handler)
        if rest or eof:
            handler.write(rest, eof)

    def run(self, command_id: str, params: dict[str, Any]) -> None:
        self._later.append(lambda handler: handler.run(command_id, params))

    def resize(self, rows: int, columns: int) -> None:
        self._later.append(lambda handler: handler.resize(rows, columns))

    def signal(self, name: str) -> None:
        self._later.append(lambda handler: handler.signal(name))

    def close(self, detach: bool) -> None:
        if not self._over:
            self.drop()
            error = HoldfastError("cancelled", "the channel was closed before its parameters had arrived")
            self._channel.send(Failed(self._channel.number, error.to_map()))

    def drop(self) -> None:
        self._over = True
        self._pieces.clear()
        self._held.clear()
