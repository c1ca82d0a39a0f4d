from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.node.harness import Node, NodeClient
from tests.node.harness import node as running_node


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path / "data") as made:
        yield made


@pytest_asyncio.fixture
async def client(node: Node) -> NodeClient:
    return await node.client()
