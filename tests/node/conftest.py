from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from session_agent.node.images.store import ImageStore
from tests.node.harness import ENTRY, Node, NodeClient
from tests.node.harness import node as running_node


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """A separate node for each test."""
    async with running_node(tmp_path / "data") as made:
        yield made


@pytest.fixture(scope="package")
def one_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    made = Node(tmp_path_factory.mktemp("node") / "d", {"HOLDFAST_AGENT_ENTRY": ENTRY})
    made.start()
    yield made
    assert made.end() == 0


@pytest_asyncio.fixture
async def shared(one_node: Node) -> AsyncIterator[Node]:
    """A node that many tests use, one after the other; it is emptied after each."""
    yield one_node
    client = await one_node.client()
    for box in (await client.call("list"))["sandboxes"]:
        await client.call("delete", sandbox_id=box["sandbox_id"])
    one_node.close_clients()


@pytest_asyncio.fixture
async def client(shared: Node) -> NodeClient:
    return await shared.client()


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    """A separate store of images, with the default limits."""
    os.makedirs(tmp_path / "images")
    made = ImageStore(str(tmp_path / "images"), None)
    made.open()
    return made
