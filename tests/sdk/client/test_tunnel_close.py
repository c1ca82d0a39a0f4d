"""A tunnel that closes in the same turn of the event loop in which it accepts a connection."""

from __future__ import annotations

from typing import Any, cast
from unittest.mock import AsyncMock, Mock

from holdfast._async.tunnel import AsyncTunnel


async def test_a_connection_that_was_just_accepted_is_closed() -> None:
    tunnel = AsyncTunnel(cast(Any, Mock()), 80, None, set())
    stream = Mock(close=AsyncMock())
    tunnel._accept(stream)
    await tunnel.close()
    stream.close.assert_awaited()
