"""A proxy, and a client of it that has no key."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from holdfast_recipes.proxy.server import Proxy

from .clients import TOKENIZER


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    async with Proxy(TOKENIZER, patience_s=60) as proxy:
        yield proxy


@pytest.fixture
async def http(proxy: Proxy) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(verify=False, base_url=proxy.url, timeout=60) as http:
        yield http
