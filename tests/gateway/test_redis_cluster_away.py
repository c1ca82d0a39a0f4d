"""A Redis Cluster that does not answer counts as an outage of the store, not as a bug: redis-py's exception for it is no ``RedisError``."""

from __future__ import annotations

import socket

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
