"""Closing a sandbox object while its agent is slow."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import threading
from typing import Any

import pytest
from holdfast import HoldfastError
from holdfast._options import Options
from holdfast._transport.aio import driver as aio
from holdfast._transport.threads import driver as threads
from holdfast_wire.frames import Close

from tests.sdk.support.fake_agent import FakeAgent
from tests.support.pace import Stopwatch


async def test_shells_are_closed_concurrently(sandbox: Any, agent: FakeAgent) -> None:
    inner = getattr(sandbox, "inner", sandbox)
    inner._options = dataclasses.replace(inner._options, cancel_timeout_s=60.0)
    for _ in range(3):
        await sandbox.shell()
    (held,) = agent.sessions.values()
    handle, closes = held.handle, []

    def slow(event: Any) -> None:
        if not isinstance(event, Close):
            handle(event)
            return
        closes.append(event)
        if len(closes) == 3:  # no close is answered before all were sent
            for close in closes:
                handle(close)

    held.handle = slow  # type: ignore[method-assign]
    await asyncio.wait_for(sandbox.close(), 60)
    assert len(closes) == 3


async def test_slow_connections_are_closed_concurrently(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio, "CLOSE_S", 1.0)
    driver = aio.SessionDriver(Options(url="http://127.0.0.1:1", api_key="key"), "sb")
    driver._wires = {aio._Wire(driver, driver.engine.websocket()) for _ in range(5)}
    began = asyncio.get_running_loop().time()
    with Stopwatch() as watch:
        await driver.close()
        assert watch.elapsed_s < 3, "one after the other they take five seconds"
    assert asyncio.get_running_loop().time() - began > 0.99


def test_closing_ends_a_handshake_that_is_not_answered() -> None:
    """The blocking client used to wait for the answer in its thread, which outlived the session by up to ``connect_timeout_s``."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        driver = threads.SessionDriver(
            Options(url=f"http://127.0.0.1:{silent.getsockname()[1]}", api_key="key", connect_timeout_s=60.0), "sb"
        )

        def start() -> None:
            with pytest.raises(HoldfastError, match="closed the session"):
                driver.start()

        caller = threading.Thread(target=start)
        caller.start()
        with silent.accept()[0] as connection:
            connection.recv(4)
            driver.close()
            driver._thread.join(60)
        caller.join(60)
        assert not driver._thread.is_alive()
        assert not caller.is_alive()
