"""While records are being rebuilt, no client gets `sandbox_not_found` for a living sandbox, and no create reuses its id."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.gateway.harness import ADA, BOB, DEADLINE_S, Served, id_of_adas
from tests.support.redis_server import RedisServer
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = requires("redis")


async def _made(served: Served, key: str = ADA, headers: dict[str, str] | None = None, **body: Any) -> Any:
    async with served.client(key) as client:
        return await client.post("/sandboxes", json={"image": "host", "wait": True, **body}, headers=headers)


@pytest.mark.parametrize("key", [ADA, BOB], ids=["its owner", "another tenant"])
async def test_a_create_after_a_wipe_does_not_replace_a_living_sandbox(served: Served, redis_server: RedisServer, key: str) -> None:
    incarnation = (await _made(served, sandbox_id="keep")).json()["incarnation"]
    redis_server.flush()
    answer = await _made(served, key, sandbox_id="keep")
    assert (answer.status_code, answer.json()["code"], answer.headers["Retry-After"]) == (503, "placement_unavailable", "1")
    assert served.runtime.present[id_of_adas("keep")].incarnation == incarnation
    assert served.runtime.deleted == []


@pytest.mark.parametrize(
    ("method", "path", "body", "afterwards"),
    [
        ("GET", "/sandboxes/keep", None, 404),
        ("GET", "/sandboxes/keep/wait", None, 404),
        ("DELETE", "/sandboxes/keep", None, 404),
        ("POST", "/sandboxes/keep/heartbeat", None, 404),
        ("POST", "/sandboxes/keep/exec", {"command": "true"}, 404),
        ("GET", "/sandboxes/keep/files", None, 404),
        ("PUT", "/sandboxes/keep/network", {"mode": "none"}, 404),
        ("GET", "/jobs/keep.abc", None, 404),
        ("GET", "/sandboxes", None, 200),
        ("GET", "/groups/run", None, 404),
        ("DELETE", "/groups/run", None, 404),
    ],
)
async def test_requests_during_the_rebuild_get_503_and_not_404(
    served: Served, redis_server: RedisServer, method: str, path: str, body: Any, afterwards: int
) -> None:
    """A rebuild that found no sandbox makes the id an unknown one."""
    await _made(served, sandbox_id="keep", group="run")
    redis_server.flush()
    async with served.client() as client:
        answer = await client.request(method, path, json=body)
        assert (answer.status_code, answer.json()["code"]) == (503, "placement_unavailable")
        await served.store.set_marker("g2", term=2)
        assert (await client.request(method, path, json=body)).status_code == afterwards


async def test_a_create_with_a_generated_id_works_after_a_wipe(served: Served, redis_server: RedisServer) -> None:
    redis_server.flush()
    assert (await _made(served)).status_code == 200


async def test_an_idempotency_key_finds_its_sandbox_after_a_wipe(served: Served, redis_server: RedisServer) -> None:
    headers = {"Idempotency-Key": "k1"}
    first = (await _made(served, headers=headers)).json()
    redis_server.flush()
    assert (await _made(served, headers=headers)).status_code == 503
    present = served.runtime.present[id_of_adas(first["sandbox_id"])]
    assert await served.store.rebuild(present.spec, present.endpoint, present.created_at, term=2)
    await served.store.set_marker("g2", term=2)
    again = await _made(served, headers=headers)
    assert (again.status_code, again.json()["incarnation"]) == (200, first["incarnation"])
    assert (await _made(served, BOB, headers=headers)).json()["sandbox_id"] != first["sandbox_id"]


async def test_a_sandbox_in_creation_during_a_wipe_is_returned_once_it_is_recorded(served: Served, redis_server: RedisServer) -> None:
    served.runtime.hold = asyncio.Event()
    making = asyncio.create_task(_made(served, sandbox_id="mid"))
    async with asyncio.timeout(DEADLINE_S):
        await until_async(lambda: served.runtime.orders, deadline_s=DEADLINE_S, what="the order")
        redis_server.flush()
        served.runtime.hold.set()
        await until_async(lambda: id_of_adas("mid") in served.runtime.present, deadline_s=DEADLINE_S, what="the sandbox")
        present = served.runtime.present[id_of_adas("mid")]
        await served.store.rebuild(present.spec, present.endpoint, present.created_at, term=2)
        await served.store.set_marker("g2", term=2)
        answer = await making
    assert (answer.status_code, answer.json()["incarnation"]) == (200, present.incarnation)
    assert served.runtime.deleted == []


async def test_readiness_returns_once_the_records_are_complete(served: Served, redis_server: RedisServer) -> None:
    redis_server.flush()
    async with served.client() as client:
        answer = await client.get("/readyz")
        assert (answer.status_code, list(answer.json()["unavailable"])) == (503, ["placement"])
        await served.store.set_marker("g2", term=2)
        assert (await client.get("/readyz")).status_code == 200


async def test_a_sandbox_in_creation_is_not_forgotten_although_the_runtime_does_not_have_it(
    served: Served, redis_server: RedisServer
) -> None:
    """The controller rebuilds the records of what the runtime has; the gateway adds what it is still creating."""
    served.runtime.hold = asyncio.Event()
    making = asyncio.create_task(_made(served, sandbox_id="mid"))
    async with served.client() as client:
        await until_async(lambda: served.runtime.orders, deadline_s=DEADLINE_S, what="the order")
        redis_server.flush()
        await served.store.set_marker("g2", term=2, settle_s=600.0)
        answer = await client.get("/sandboxes/mid")
        assert (answer.status_code, answer.json()["code"]) == (503, "placement_unavailable")
        assert (await client.get("/sandboxes")).status_code == 503
        await served.store.renew(served.gateway.in_creation.values())
        assert (await client.get("/sandboxes/mid")).json()["status"] == "pending"
        served.runtime.hold.set()
        answer = await making
        assert (answer.status_code, answer.json()["status"]) == (200, "ready")
    assert served.gateway.in_creation == {}


async def test_a_sandbox_whose_creation_ends_after_a_wipe_is_recorded_by_its_gateway(served: Served, redis_server: RedisServer) -> None:
    served.runtime.hold = asyncio.Event()
    making = asyncio.create_task(_made(served, sandbox_id="mid"))
    await until_async(lambda: served.runtime.orders, deadline_s=DEADLINE_S, what="the order")
    redis_server.flush()
    served.runtime.hold.set()
    answer = await making
    assert (answer.status_code, answer.json()["status"]) == (200, "ready")


@pytest.mark.parametrize("marked", [False, True], ids=["during the rebuild", "after it"])
async def test_a_delete_of_a_sandbox_in_creation_after_a_wipe_is_carried_out(
    served: Served, redis_server: RedisServer, marked: bool
) -> None:
    served.runtime.hold = asyncio.Event()
    making = asyncio.create_task(_made(served, sandbox_id="mid"))
    async with served.client() as client, served.client(BOB) as other:
        await until_async(lambda: served.runtime.orders, deadline_s=DEADLINE_S, what="the order")
        redis_server.flush()
        if marked:
            await served.store.set_marker("g2", term=2, settle_s=600.0)
        answer = await other.delete("/sandboxes/mid")
        assert answer.status_code == 503
        answer = await client.delete("/sandboxes/mid")
        assert (answer.status_code, answer.json()["code"]) == (503, "placement_unavailable")
        served.runtime.hold.set()
        answer = await making
        assert (answer.status_code, answer.json()["code"], answer.json()["reason"]) == (410, "sandbox_gone", "deleted")
        await until_async(lambda: not served.runtime.present, deadline_s=DEADLINE_S, what="the removal")
        assert (await client.delete("/sandboxes/mid")).status_code == 200
