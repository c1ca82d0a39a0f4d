"""A client of the shared stack, and a sandbox of it for one test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from holdfast import AsyncSandbox, AsyncSandboxClient

from tests.support.stack import Stack


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[AsyncSandboxClient]:
    async with AsyncSandboxClient(stack.url, stack.key) as client:
        yield client


@pytest.fixture
async def sandbox(client: AsyncSandboxClient) -> AsyncIterator[AsyncSandbox]:
    async with await client.create_sandbox("host", memory="512m") as sandbox:
        await sandbox.files.mkdir("/testbed")
        yield sandbox
