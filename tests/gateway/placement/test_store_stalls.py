"""A store that does not answer for a while: clients cannot send heartbeats or renew leases then, so nothing may expire because of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator

import pytest
import redis.asyncio as redis

from gateway.controller.loop import Controller
from gateway.model.records import Record, Tombstone
from gateway.placement import redis_connection
from gateway.placement.errors import PlacementUnavailableError
from gateway.placement.redis_connection import RedisConnection
from gateway.placement.store import PlacementStore
from gateway.settings import ControllerSettings, PlacementSettings
from tests.gateway.controller.test_controller import add, becomes
from tests.gateway.controllers import at_work
from tests.gateway.harness import MemoryRuntime
from tests.support.pace import Stopwatch
from tests.support.redis_server import RedisServer
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = requires("redis")

QUICK = ControllerSettings(lease_ttl_s=0.5, lease_renew_s=0.05, expiry_interval_s=0.02, reconcile_interval_s=0.1, grace_s=60.0)
LIMIT_S = 4.0
AWAY_S = 5.0


@contextlib.asynccontextmanager
async def opened(url: str, timeout_s: float) -> AsyncIterator[PlacementStore]:
    made = PlacementStore(PlacementSettings(redis_url=url, step_timeout_s=timeout_s, connect_timeout_s=timeout_s))
    try:
        yield made
    finally:
        await made.aclose()


async def test_sandboxes_in_use_outlive_a_store_outage_longer_than_their_limits(redis_server: RedisServer, redis_url: str) -> None:
    """Clients report use at the same interval as before, so the next report comes some time after the store is back."""
    runtime = MemoryRuntime()
    clock = asyncio.get_running_loop().time

    async def use(store: PlacementStore, lease: str) -> None:
        await store.touch(["sb-1"])
        await store.heartbeat("sb-2", "ada")
        await store.group_beat("ada", "run-7", LIMIT_S, lease)

    async with (
        opened(redis_url, 20.0) as store,
        opened(redis_url, 0.3) as controllers,
        at_work(Controller(controllers, runtime, "c1", QUICK)) as controller,
    ):
        await until_async(lambda: controller.leadership.term, deadline_s=60, what="the lead")
        _, group = await store.group_beat("ada", "run-7", LIMIT_S)
        await store.group_join("ada", "run-7", "sb-1")
        await add(store, runtime, "sb-1", group="run-7", idle_timeout_s=LIMIT_S)
        await add(store, runtime, "sb-2", heartbeat_timeout_s=LIMIT_S)
        await store.heartbeat("sb-2", "ada")
        await add(store, runtime, "unused", idle_timeout_s=LIMIT_S)
        await use(store, group.lease)
        os.kill(redis_server.pid, signal.SIGSTOP)
        try:
            back_at = clock() + AWAY_S
            await until_async(lambda: clock() > back_at, deadline_s=60, what="the limits to pass during the outage")
        finally:
            os.kill(redis_server.pid, signal.SIGCONT)
        next_at = clock() + LIMIT_S / 3  # the interval at which clients report use
        await until_async(lambda: clock() > next_at, deadline_s=60, what="the time of the next report")

        await use(store, group.lease)
        for id_ in ("sb-1", "sb-2"):
            entry = await store.get(id_)
            assert isinstance(entry, Record), entry
        await becomes(store, "unused", Tombstone, "idle")


async def test_a_store_that_runs_a_long_script_of_another_client_is_unavailable(redis_url: str) -> None:
    """A store that answers BUSY does not stop the tasks that record use and renew leases."""
    endless = "while true do end"
    async with opened(redis_url, 20.0) as store, redis.Redis.from_url(redis_url) as client, redis.Redis.from_url(redis_url) as other:
        await client.config_set("lua-time-limit", "10")
        running = asyncio.ensure_future(other.eval(endless, 0))
        try:

            async def busy() -> bool:
                try:
                    await client.ping()
                except redis.ResponseError as error:
                    return "BUSY" in str(error)
                return False

            await until_async(busy, deadline_s=60, what="the store to be busy")
            for step in (store.touch(["sb-1"]), store.ping(), store.lead("c1", 1.0)):
                with pytest.raises(PlacementUnavailableError, match="BUSY"):
                    await step
        finally:
            await client.script_kill()
            with contextlib.suppress(redis.ResponseError):
                await running
            await client.config_set("lua-time-limit", "5000")
        await store.ping()


async def test_a_gateway_too_busy_to_read_an_answer_reports_no_outage(redis_url: str) -> None:
    async def busy() -> None:
        for _ in range(2):
            await asyncio.sleep(0.01)
            time.sleep(1.5)  # noqa: ASYNC251  the event loop does other work for longer than a step may take

    async with opened(redis_url, 1.0) as store:
        await asyncio.gather(busy(), *[store.get(f"sb-{number}") for number in range(100)])


async def test_steps_that_wait_for_a_connection_fail_as_soon_as_the_store_is_known_to_be_down(
    redis_server: RedisServer, redis_url: str
) -> None:
    step_s, steps = 2.0, 200
    assert steps > 3 * PlacementSettings(redis_url=redis_url).connections
    async with opened(redis_url, step_s) as store:
        await store.get("sb-1")
        os.kill(redis_server.pid, signal.SIGSTOP)
        try:
            with Stopwatch() as watch:
                outcomes = await asyncio.gather(*[store.get(f"sb-{number}") for number in range(steps)], return_exceptions=True)
                assert watch.elapsed_s < 2 * step_s, "only the first steps waited for the store"
        finally:
            os.kill(redis_server.pid, signal.SIGCONT)
    assert {type(outcome) for outcome in outcomes} == {PlacementUnavailableError}


async def test_a_step_without_a_free_connection_fails_without_reporting_an_outage(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_connection, "_QUEUE_S", 0.2)
    connection = RedisConnection(PlacementSettings(redis_url=redis_url, step_timeout_s=20.0, connections=1))
    try:
        slow = asyncio.ensure_future(connection.command("BLPOP", "queue", 0))
        await until_async(connection._free.locked, deadline_s=60, what="the slow command to begin")
        with pytest.raises(PlacementUnavailableError, match="too slow"):
            await connection.command("PING")
        async with redis.Redis.from_url(redis_url) as other:
            await other.rpush("queue", "item")
        assert await slow == ["queue", "item"]
        assert await connection.command("PING") == "PONG"
    finally:
        await connection.aclose()
