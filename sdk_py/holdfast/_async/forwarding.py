"""Carrying the bytes of a local connection over a channel, in both directions, until both have ended.

Owns half-closes, and whether the end of one side is an end or a reset for the other. Called by ``tunnel`` for connections that programs of
this machine make, and by ``listener`` for those of programs in the sandbox.
"""

from __future__ import annotations

from holdfast._async.transfers import AsyncTransfer
from holdfast._errors import HoldfastError
from holdfast._transport.aio.events import Background
from holdfast._transport.aio.net import Stream


async def carry(stream: Stream, transfer: AsyncTransfer, background: Background, *, resets: bool = False) -> None:
    """Return when the channel has ended; raises the typed error with which it did, or OSError if the local side went away.

    ``resets``: reset ``stream`` if the other side did not receive every byte that came from it, so that this is not taken for an end.
    """
    up = _Upwards()
    background.start(up.carry, stream, transfer, name="holdfast-forward")
    try:
        while data := await transfer.read():
            await stream.write(data)
        if not transfer.ended:
            await stream.write_eof()
        result = await transfer.closed()
    except HoldfastError:
        if resets:
            stream.reset()
        raise
    if resets and result.get("sent") != up.sent:
        stream.reset()


class _Upwards:
    """The direction from the local connection to the channel. ``sent``: the number of its bytes."""

    def __init__(self) -> None:
        self.sent = 0

    async def carry(self, stream: Stream, transfer: AsyncTransfer) -> None:
        try:
            while data := await stream.read():
                self.sent += len(data)
                await transfer.write(data)
            await transfer.write(b"", eof=True)
        except (HoldfastError, OSError):
            transfer.stop()
