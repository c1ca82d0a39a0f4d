"""The placement store on a real Redis Cluster of one node, because only a cluster refuses a step whose keys lie in two slots."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
import redis
from holdfast_server.redis import find_redis_server

from gateway.model.records import Cause, PlannedEnd, Quota
from gateway.placement.store import PlacementStore
from gateway.settings import PlacementSettings
from tests.conformance.placement import PlacementConformance, ready, spec
from tests.support.requires import requires
from tests.support.until import until

pytestmark = requires("redis")


@pytest.fixture(scope="module")
def cluster_port() -> Iterator[int]:
    program = find_redis_server()
    assert program is not None
    folder = Path(tempfile.mkdtemp(prefix="hf-cluster-"))
    port = _free_port()
    arguments = ["--bind", "127.0.0.1", "--port", str(port), "--cluster-enabled", "yes"]
    server = subprocess.Popen(
        [program, *arguments, "--save", "", "--appendonly", "no", "--dir", str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: _is_up(port), deadline_s=60, what="the cluster")
        yield port
    finally:
        server.terminate()
        server.wait(timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    """A free port whose bus port (10000 above it) is free too; outgoing connections do not use them."""
    for port in range(10_000 + os.getpid() % 10_000, 22_000):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)), socket.create_server(("127.0.0.1", port + 10_000)):
            return port
    raise AssertionError("no free port")


def _is_up(port: int) -> bool:
    try:
        with redis.Redis(port=port) as client:
            answer = client.execute_command("CLUSTER INFO")
            state = {(name if isinstance(name, str) else name.decode()): str(value) for name, value in dict(answer).items()}
            if state["cluster_slots_assigned"] == "0":
                client.execute_command("CLUSTER ADDSLOTS", *range(16384))
            return state["cluster_state"] == "ok"
    except (redis.ConnectionError, redis.ResponseError):
        return False


@pytest_asyncio.fixture
async def store(cluster_port: int) -> AsyncIterator[PlacementStore]:
    with redis.Redis(port=cluster_port) as client:
        client.flushall()
    made = PlacementStore(
        PlacementSettings(redis_url=f"redis+cluster://127.0.0.1:{cluster_port}", step_timeout_s=60.0, connect_timeout_s=60.0)
    )
    yield made
    await made.aclose()


class TestRedisCluster(PlacementConformance):
    """The complete contract."""


async def test_the_server_is_really_a_cluster(cluster_port: int) -> None:
    with redis.Redis(port=cluster_port) as client, pytest.raises(redis.ResponseError, match="hash to the same slot"):
        client.execute_command("EVAL", "return 1", 2, "hf:{s01}:a", "hf:{s02}:a")


async def test_every_other_step_runs_on_a_cluster(store: PlacementStore) -> None:
    await store.set_marker("g", term=1)
    for pool in ("p1", "p2"):
        await store.offer_spares(pool, {"pool-a": 1.0, "pool-b": 2.0}, term=1)
        assert await store.take_spare(pool) == "pool-a"
        await store.withdraw_spares(pool, ["pool-b"], term=1)
        assert await store.spares(pool) == {}
        assert await store.take_spare(pool) is None

    await store.create(spec(), fingerprint="f")
    assert await store.assign_spare("sb-1", "i1", "pool-a") == "pool-a"
    await ready(store, spec("sb-2", group="run-7"))
    await store.mark_leaving("sb-2", "i1", PlannedEnd(Cause("evicted", "infrastructure"), 9.0), term=1)
    for name in ("run-7", "run-8"):
        outcome, group = await store.group_beat("ada", name, 60)
        assert outcome == "ok"
        assert (await store.group_join("ada", name, "sb-2", lease=group.lease))[0] == "ok"
        found = await store.group("ada", name)
        assert found is not None
        assert list(found.members) == ["sb-2"]
        assert await store.group_lapse(group.key, Cause("group-lease", "caller"), term=1) is None
        assert await store.group_end("ada", name, Cause("deleted", "caller")) is not None
        await store.group_leave(group.key, "sb-2", found.members["sb-2"], term=1)
    assert await store.due_groups() == []
    assert await store.group_keys() == []
    for owner in ("ada", "bob", ""):
        assert (await store.reserve(owner, spec(), Quota(sandboxes=1))).outcome == "fresh"
    assert await store.usage_owners() == {"ada", "bob", ""}
    await asyncio.gather(*(store.release(owner, "sb-1") for owner in ("ada", "bob", "")))
    assert await store.usage_owners() == set()
    term = await store.lead("c1", 60)
    assert term is not None
    await store.check_term(term)
    assert await store.lease_left_s() > 50
