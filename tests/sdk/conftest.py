"""Fixtures of the SDK's tests: the scripted agent, and a client of either API on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.sdk.support.faces import AsyncFace, SyncFace
from tests.sdk.support.fake_agent import FakeAgent


@pytest.fixture
def agent() -> Iterator[FakeAgent]:
    with FakeAgent() as running:
        yield running


@pytest.fixture(params=[AsyncFace, SyncFace], ids=["async", "sync"])
def face(request: pytest.FixtureRequest) -> Any:
    """One of the two APIs, asynchronous or synchronous; a test that uses it runs with each."""
    return request.param()


@pytest.fixture
async def sandbox(agent: FakeAgent, face: Any) -> AsyncIterator[Any]:
    client = face.client(agent.url, "test-key", connect_timeout_s=20.0, resume_timeout_s=60.0)
    sandbox = client.get_sandbox("sb-1")
    try:
        yield sandbox
    finally:
        await sandbox.close()
        await client.close()


@pytest.fixture
async def client(stack: Any, face: Any) -> AsyncIterator[Any]:
    """A client of either API on the real stack."""
    client = face.client(stack.url, stack.key)
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture
async def live(client: Any) -> AsyncIterator[Any]:
    """A real sandbox, deleted afterwards."""
    async with await client.create_sandbox("host", cpu="1", memory="512Mi", ready_timeout_s=60) as sandbox:
        yield sandbox
