"""Fixtures of the gateway's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.gateway.harness import Served, serve


@pytest_asyncio.fixture
async def served(redis_url: str, tmp_path: Path) -> AsyncIterator[Served]:
    """A gateway in this process, on a real Redis and a runtime in memory."""
    async with serve(redis_url, tmp_path) as running:
        yield running
