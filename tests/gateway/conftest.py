"""Fixtures of the gateway's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from gateway.placement.store import PlacementStore
from gateway.settings import PlacementSettings
from tests.gateway.checked import Checked
from tests.gateway.harness import ADA, BOB, Served, serve


@pytest_asyncio.fixture
async def served(redis_url: str, tmp_path: Path) -> AsyncIterator[Served]:
    """A gateway in this process, on a real Redis and a runtime in memory."""
    async with serve(redis_url, tmp_path) as running:
        yield running


@pytest_asyncio.fixture
async def store(redis_url: str) -> AsyncIterator[PlacementStore]:
    """A store with long timeouts, because the machine may be busy."""
    made = PlacementStore(PlacementSettings(redis_url=redis_url, step_timeout_s=60.0, connect_timeout_s=60.0))
    yield made
    await made.aclose()


@pytest_asyncio.fixture
async def ada(served: Served) -> AsyncIterator[Checked]:
    """A client with ada's key that validates every response."""
    async with served.client(ADA) as client:
        yield Checked(client)


@pytest_asyncio.fixture
async def bob(served: Served) -> AsyncIterator[Checked]:
    """A client with bob's key that validates every response."""
    async with served.client(BOB) as client:
        yield Checked(client)
