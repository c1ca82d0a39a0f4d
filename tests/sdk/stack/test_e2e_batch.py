"""Changes of labels and limits, batches, selectors and signed links, on the real stack and both APIs."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import httpx
import pytest
from holdfast import InvalidArgumentError, QuotaError, SandboxLostError

from tests.sdk.support.requirements import STACK

pytestmark = STACK


async def test_a_batch_has_a_result_for_each(client: Any) -> None:
    request = {"image": "host", "cpu": "1", "memory": "256Mi", "ready_timeout_s": 60}
    wanted = [request | {"labels": {"part": "a"}}, request | {"memory": "900Ti"}, request | {"labels": {"part": "b"}}]
    first, failed, second = await client.batch.create(wanted)
    try:
        assert isinstance(failed, InvalidArgumentError)
        assert (await client.get_sandbox(first.id).exec("echo hello")).stdout == "hello\n"
        for selector, ids in (("part in (a,b)", {first.id, second.id}), (("part", "part!=a"), {second.id})):
            assert {info.sandbox_id for info in await client.list_sandboxes(selector=selector)} == ids
        assert {info.sandbox_id for info in await client.list_sandboxes({"part": "a"})} == {first.id}
    finally:
        assert await client.batch.delete([first.id, "sb-never", second.id]) == [True, False, True]
    for sandbox in (first, second):
        closing = sandbox.close()
        if asyncio.iscoroutine(closing):
            await closing


@pytest.mark.parametrize("request_", [7, {"image": "host", "exist_ok": True}, {"image": "host", "colour": "red"}, {"cpu": 1}])
async def test_a_malformed_request_of_a_batch_is_refused(client: Any, request_: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        await client.batch.create([request_])


async def test_a_change_keeps_what_it_does_not_name(client: Any, live: Any) -> None:
    before = await live.info()
    after = await live.update(labels={"a": "1", "b": "2"}, lifetime_s=900, idle_timeout_s=600)
    assert (after.labels, after.idle_timeout_s) == ({"a": "1", "b": "2"}, 600)
    assert after.expires_at < before.expires_at
    changed = await live.update(labels={"a": None}, idle_timeout_s=0)
    assert (changed.labels, changed.idle_timeout_s, changed.lifetime_s) == ({"b": "2"}, None, after.lifetime_s)
    for wrong in ({}, {"labels": {"x": 1}}, {"lifetime_s": 0}, {"idle_timeout_s": -1}):
        with pytest.raises(InvalidArgumentError):
            await live.update(**wrong)


async def until_gone(sandbox: Any) -> None:
    while True:
        await sandbox.refresh()
        await asyncio.sleep(0.1)


async def test_an_idle_limit_that_is_set_later_ends_the_sandbox(client: Any) -> None:
    sandbox = await client.create_sandbox("host", cpu="1", memory="256Mi", ready_timeout_s=60)
    await sandbox.update(idle_timeout_s=1)
    with pytest.raises(SandboxLostError) as ended:
        await asyncio.wait_for(until_gone(sandbox), 30)
    assert ended.value.reason == "idle"
    await sandbox.delete()


async def test_a_link_reads_and_writes_one_file_without_a_key(live: Any) -> None:
    target = await live.file_link("/tmp/ü a", method="PUT", expires_s=60)
    source = await live.file_link("/tmp/ü a")
    assert (target.method, source.method) == ("PUT", "GET")
    assert pickle.loads(pickle.dumps(source)) == source
    async with httpx.AsyncClient(trust_env=False, verify=False) as other:
        assert (await other.put(target, content=b"x" * 100_000)).status_code in (200, 201, 204)
        assert (await other.get(source)).content == b"x" * 100_000
        assert (await other.get(target)).status_code == 403
    with pytest.raises(InvalidArgumentError):
        await live.file_link("/tmp/x", method="POST")


async def test_the_error_of_an_item_is_the_one_of_a_create() -> None:
    from holdfast._transport.session.policy import from_problem

    why = from_problem({"code": "quota_exceeded", "detail": "too many", "context": {"limit": {"subject": "owner:ada"}}})
    assert isinstance(why, QuotaError)
    assert (why.message, why.detail["limit"]["subject"]) == ("too many", "owner:ada")
