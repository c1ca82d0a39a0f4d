"""A Redis that cannot be reached is an outage of the store, and the error says what to look at.

A cluster too, whose exception in redis-py is no ``RedisError``.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from gateway.placement.errors import PlacementUnavailableError
from gateway.placement.store import PlacementStore
from gateway.settings import PlacementSettings


@pytest.mark.parametrize("scheme", ["redis+cluster", "rediss+cluster"])
async def test_a_cluster_without_a_node_is_unavailable(scheme: str) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # the port is bound, so no server can listen on it
        store = PlacementStore(PlacementSettings(redis_url=f"{scheme}://127.0.0.1:{held.getsockname()[1]}"))
        try:
            with pytest.raises(PlacementUnavailableError):
                await store.ping()
        finally:
            await store.aclose()


async def _says(url: str, words: str, timeout_s: float = 60.0) -> None:
    store = PlacementStore(PlacementSettings(redis_url=url, step_timeout_s=timeout_s, rest_after_failure_s=60.0))
    try:
        for _ in range(2):  # the second step does not try again, and has the same reason
            with pytest.raises(PlacementUnavailableError, match=words):
                await store.ping()
    finally:
        await store.aclose()


async def test_a_name_that_is_not_known() -> None:
    await _says("redis://no-such-host.invalid:6379", r"name cannot be resolved \(DNS\)")


async def test_a_resolver_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", never)
    await _says("redis://redis.example:6379", r"no connection to it within the time limit; its name may not be resolved \(DNS\)", 0.2)


async def test_a_port_that_nothing_listens_on() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        await _says(f"redis://127.0.0.1:{held.getsockname()[1]}", "it refuses connections")


async def test_a_server_that_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        await _says(f"redis://127.0.0.1:{server.getsockname()[1]}", "no connection to it within the time limit", 0.2)
