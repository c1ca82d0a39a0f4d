"""The bytes of a request and its answer, counted and paced where a limit holds for them.

Owns the wrapping of ASGI's ``receive`` and ``send``. Requests without such limits are not wrapped. Called by ``gateway.app``.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.types import Message, Receive, Send

from gateway.identity.limits import Limits
from gateway.tenants.rates import Rates


def counted(limits: Sequence[tuple[str, Limits]], rates: Rates, receive: Receive, send: Send) -> tuple[Receive, Send]:
    """``receive`` and ``send`` that wait for as long as the limits on uploads and output require, once they are used up."""

    async def received() -> Message:
        message = await receive()
        if body := message.get("body"):
            await rates.paced(limits, "upload_bytes_per_minute", len(body))
        return message

    async def sent(message: Message) -> None:
        await send(message)
        if body := message.get("body"):
            await rates.paced(limits, "output_bytes_per_minute", len(body))

    has_uploads = any(one.upload_bytes_per_minute is not None for _, one in limits)
    has_output = any(one.output_bytes_per_minute is not None for _, one in limits)
    return received if has_uploads else receive, sent if has_output else send
