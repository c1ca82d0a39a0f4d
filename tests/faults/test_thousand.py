"""Clean teardown: a thousand sandboxes on a complete stack, half of them ended by a delete, half by their lifetime."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
import redis

from tests.node.leftovers import census
from tests.support.requires import requires
from tests.support.stack import running_stack
from tests.support.until import until_async

pytestmark = [requires("namespaces", "redis"), pytest.mark.timeout(600)]

COUNT = 1000
AT_ONCE = 12
KEPT = ("tombstone", "idempotency", "claim")
"""Keys about ended sandboxes that expire by themselves: why they ended, and which requests created them."""


async def test_a_thousand_sandboxes_leave_nothing_behind() -> None:
    with running_stack({"HOLDFAST_NODE_SPARES": "0"}) as stack:
        before = census(stack.data)
        gate = asyncio.Semaphore(AT_ONCE)
        async with httpx.AsyncClient(base_url=stack.url, headers={"X-API-Key": stack.key}, timeout=120, trust_env=False) as client:

            async def one(number: int) -> None:
                expires = number % 2 == 1
                body: dict[str, Any] = {"image": "host", "cpu": "100m", "memory": "64Mi", "wait": True, "group": f"run-{number % 7}"}
                if expires:
                    body["lifetime_s"] = 0.2
                async with gate:
                    headers = {"Idempotency-Key": f"k{number}"} if number % 3 == 0 else {}
                    made = await client.post("/sandboxes", json=body, headers=headers)
                    if expires and made.status_code in (409, 410):
                        return  # its time ran out while it was made
                    assert made.status_code == 200, made.text
                    where = f"/sandboxes/{made.json()['sandbox_id']}"
                    if not expires:
                        assert (await client.delete(where)).status_code == 200

            await asyncio.gather(*(one(number) for number in range(COUNT)))

            async def none_left() -> bool:
                return not (await client.get("/sandboxes")).json()["sandboxes"]

            await until_async(none_left, deadline_s=60, what="the last ones to expire")
            await until_async(
                lambda: census(stack.data) == before, deadline_s=60, what=f"{before} on the machine; now {census(stack.data)}"
            )
        with redis.Redis(unix_socket_path=str(stack.data / "redis.sock"), decode_responses=True) as store:

            def stray() -> list[str]:
                found = [key for key in store.keys("*") if key.split(":")[2] not in ("generation", "term", "lease")]
                return [key for key in found if not (key.split(":")[2] in KEPT and store.pttl(key) > 0)]

            await until_async(lambda: not stray(), deadline_s=60, what="all keys but those that expire to go")
            print(f"\n{COUNT} sandboxes came and went; of the node: {before}, of the store: {sorted(store.keys('*'))[:5]} …")
    # `running_stack` asserts that no process, mount, cgroup or directory of the whole stack is left.
