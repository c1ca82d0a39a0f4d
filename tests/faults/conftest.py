"""Fixtures: a client and a sandbox on the shared stack, and a fault proxy in front of its gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from holdfast import AsyncSandbox, AsyncSandboxClient

from tests.support.stack import Stack

from .proxy import FaultProxy


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[AsyncSandboxClient]:
    async with AsyncSandboxClient(stack.url, stack.key) as client:
        yield client


@pytest.fixture
async def sandbox(client: AsyncSandboxClient) -> AsyncIterator[AsyncSandbox]:
    async with await client.create_sandbox("python:3.12") as sandbox:
        yield sandbox


@pytest.fixture
def proxy(stack: Stack) -> Iterator[FaultProxy]:
    with FaultProxy(stack.url.replace("http", "tcp"), seed=11) as proxy:
        yield proxy


@pytest.fixture
async def cut_client(proxy: FaultProxy, stack: Stack) -> AsyncIterator[AsyncSandboxClient]:
    """A client behind the proxy."""
    async with AsyncSandboxClient(proxy.url, stack.key) as client:
        yield client
