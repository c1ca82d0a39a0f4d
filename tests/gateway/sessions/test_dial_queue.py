"""The dial queue: a limited number of dials at once, in order of arrival, and no dial waits for agents that do not answer."""

from __future__ import annotations

import asyncio

import pytest

from gateway.agents.dial_queue import DialQueue


async def run(queue: DialQueue, count: int) -> tuple[list[int], int]:
    """The order in which quick dials ran, and the highest number at once."""
    order, most, now = list[int](), 0, 0

    async def dial(number: int) -> None:
        nonlocal most, now
        async with queue.place("ada"):
            order.append(number)
            now += 1
            most = max(most, now)
            await asyncio.sleep(0)
            now -= 1

    await asyncio.gather(*[dial(number) for number in range(count)])
    return order, most


async def test_dials_run_in_order_and_no_more_at_once_than_there_are_places() -> None:
    assert await run(DialQueue(at_once=64, of_one_owner=3, place_s=60), 20) == (list(range(20)), 3)


async def test_agents_that_do_not_answer_give_up_their_place() -> None:
    queue, never = DialQueue(at_once=2, of_one_owner=2, place_s=0.05), asyncio.Event()

    async def hang() -> None:
        async with queue.place("ada"):
            await never.wait()

    hanging = [asyncio.ensure_future(hang()) for _ in range(6)]
    await asyncio.sleep(0)
    async with asyncio.timeout(30), queue.place("ada"):
        never.set()
    await asyncio.gather(*hanging)


@pytest.mark.parametrize("place_s", [0.01, 60.0])
async def test_each_place_is_released_exactly_once(place_s: float) -> None:
    queue = DialQueue(at_once=2, of_one_owner=2, place_s=place_s)

    async def dial(fails: bool) -> None:
        async with queue.place("ada"):
            await asyncio.sleep(0.01)
            if fails:
                raise ConnectionError

    for _ in range(5):
        await asyncio.gather(*[dial(number % 2 == 0) for number in range(4)], return_exceptions=True)
    cancelled = [asyncio.ensure_future(dial(False)) for _ in range(5)]
    await asyncio.sleep(0)
    for task in cancelled:
        task.cancel()
    await asyncio.gather(*cancelled, return_exceptions=True)
    assert (await run(queue, 20))[1] == 2


async def test_an_owner_whose_agents_do_not_answer_delays_no_other_owner() -> None:
    queue, never = DialQueue(at_once=4, of_one_owner=2, place_s=60), asyncio.Event()

    async def hang() -> None:
        async with queue.place("mallory"):
            await never.wait()

    hanging = [asyncio.ensure_future(hang()) for _ in range(20)]
    await asyncio.sleep(0)
    assert await run(queue, 10) == (list(range(10)), 2)
    never.set()
    await asyncio.gather(*hanging)
    assert {owner: places._value for owner, places in queue._of_owner.items()} == {"mallory": 2, "ada": 2}, "all places are free again"
