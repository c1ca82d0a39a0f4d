"""A Redis that refuses writes, or holds values that Holdfast did not write: typed errors, and other sandboxes are not affected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from gateway.controller.loop import Controller
from gateway.model.records import Tombstone
from gateway.placement import keys
from tests.gateway.controller.test_controller import FAST
from tests.gateway.controllers import at_work
from tests.gateway.harness import Served, id_of_adas
from tests.support.redis_server import RedisServer
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = requires("redis")

REFUSALS = {"full": ("maxmemory", "1", "0"), "no replicas": ("min-replicas-to-write", "1", "0")}
JUNK: dict[str, Any] = {
    "text": "junk",
    "no fields": {"x": "y"},
    "bad document": {"doc": "{bad"},
    "no time": {"created": "", "life": "5"},
    "not text": {"doc": b"\xff\xfe"},
}


@pytest.fixture
def direct(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis(unix_socket_path=str(redis_server.socket)) as client:
        yield client


@pytest.mark.parametrize("refusal", [*REFUSALS, "read only"])
async def test_a_store_that_refuses_writes_still_serves_reads(served: Served, direct: redis.Redis, refusal: str) -> None:
    await served.place("sb-1", "unix:///nowhere")
    name, on, off = REFUSALS.get(refusal, ("", "", ""))
    direct.config_set(name, on) if name else direct.replicaof("127.0.0.1", "1")
    try:
        async with served.client() as client:
            answers = [
                await client.post("/sandboxes", json={"image": "host"}),
                await client.post("/sandboxes/sb-1/heartbeat"),
                await client.post("/groups/g/heartbeat", json={"ttl_s": 5}),
            ]
            assert (await client.get("/sandboxes/sb-1")).status_code == 200
            assert (await client.get("/readyz")).status_code == 503
    finally:
        direct.config_set(name, off) if name else direct.replicaof("NO", "ONE")
    for answer in answers:
        assert (answer.status_code, answer.json().get("code"), answer.headers.get("Retry-After")) == (503, "placement_unavailable", "1")


def _corrupt(direct: redis.Redis, sandbox_id: str, junk: Any) -> None:
    key = keys.record(sandbox_id)
    if isinstance(junk, str):
        direct.set(key, junk)
    else:
        if "x" in junk:
            direct.delete(key)
        direct.hset(key, mapping=junk)


@pytest.mark.parametrize("kind", JUNK)
async def test_a_corrupt_record_affects_no_other_and_is_rewritten(served: Served, direct: redis.Redis, kind: str) -> None:
    async with served.client() as client:
        for name in ("good", "bad"):
            assert (await client.post("/sandboxes", json={"image": "host", "sandbox_id": name, "wait": True})).status_code == 200
        assert (await client.post("/sandboxes", json={"image": "host", "sandbox_id": "short", "lifetime_s": 0.1})).status_code == 200
        bad, short = id_of_adas("bad"), id_of_adas("short")
        _corrupt(direct, bad, JUNK[kind])
        direct.zadd(keys.due(keys.shard_of(bad)), {bad: 0})
        corrupt = await client.get("/sandboxes/bad")
        is_readable = kind == "no time"  # it has everything but the times
        assert (corrupt.status_code, corrupt.json().get("code")) == ((200, None) if is_readable else (503, "placement_unavailable"))
        listed = [one["sandbox_id"] for one in (await client.get("/sandboxes")).json()["sandboxes"]]
        assert "good" in listed
        async with at_work(Controller(served.store, served.runtime, "c1", FAST)):

            async def rewritten() -> bool:
                return (await client.get("/sandboxes/bad")).status_code == 200 and isinstance(await served.store.get(short), Tombstone)

            await until_async(rewritten, deadline_s=60, what="the record to be back, and another to have expired")
        assert bad in served.runtime.present
        assert bad not in served.runtime.deleted
