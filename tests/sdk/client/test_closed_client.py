"""A closed client raises an error that names the cause; neither it nor its sandboxes, groups and images open new connections."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from holdfast import ClientClosedError, HoldfastError, Sandbox

from tests.sdk.rest.test_rest import Service
from tests.sdk.support.fake_agent import FakeAgent
from tests.support.until import until

RECORD = {
    "sandbox_id": "sb",
    "namespace": "",
    "status": "running",
    "ready": True,
    "image": "host",
    "block_network": True,
    "cpu": "1",
    "memory": "1Gi",
    "timeout": 60,
}


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as service:
        service.answers = [(200, {**RECORD, "sandboxes": [], "existed": True})]
        yield service


async def close_during_a_request(client: Any, service: Service) -> None:
    """Close the client, and only then let the service answer."""
    closing = asyncio.ensure_future(client.close())
    await asyncio.to_thread(until, lambda: client._closed, deadline_s=60, what="the client to be closed")
    service.go_on.set()
    await closing


async def test_every_request_of_a_closed_client_raises_client_closed_error(service: Service, face: Any) -> None:
    client = face.client(service.url, "k")
    sandbox, group = client.get_sandbox("sb"), client.group("run")
    assert await client.list_sandboxes() == []
    await client.close()
    await client.close()
    sent = len(service.requests)
    for use in (
        client.list_sandboxes,
        client.doctor,
        lambda: client.create_sandbox("host"),
        client.images.list,
        group.begin,
        sandbox.refresh,
        lambda: sandbox.exec("true"),
        sandbox.shell,
        lambda: sandbox.files.read("/etc/hostname"),
        lambda: client.get_sandbox("other").refresh(),
        client.__aenter__,
    ):
        with pytest.raises(ClientClosedError, match="closed") as caught:
            await use()
        assert isinstance(caught.value, RuntimeError)  # what httpx and aiohttp raise
        assert (caught.value.code, caught.value.fault, caught.value.retryable) == ("client_closed", "caller", False)
    await sandbox.close()
    assert len(service.requests) == sent


async def test_a_session_that_was_attached_is_not_attached_again(agent: FakeAgent, face: Any) -> None:
    client = face.client(agent.url, "k")
    sandbox = client.get_sandbox("sb-1")
    assert (await sandbox.exec("echo here")).ok
    await client.close()
    with pytest.raises(ClientClosedError):
        await sandbox.exec("echo here")


async def test_a_create_interrupted_by_close_leaves_no_sandbox(service: Service, face: Any) -> None:
    service.answers = [(503, {"code": "no_capacity", "detail": "full", "hint": "", "retryable": True}), (200, {"existed": True})]
    service.retry_after_s = 60  # the close ends this pause
    client = face.client(service.url, "k")
    create = asyncio.ensure_future(client.create_sandbox("host", sandbox_id="sb"))
    await asyncio.to_thread(until, lambda: service.requests, deadline_s=60, what="the request")
    await client.close()
    with pytest.raises(ClientClosedError):
        await asyncio.wait_for(create, 60)
    assert [line for line, _ in service.requests] == ["POST /sandboxes", "DELETE /sandboxes/sb"]


async def test_a_create_that_fails_after_close_leaves_no_record(service: Service, face: Any) -> None:
    service.go_on.clear()
    service.answers = [
        (422, {"code": "image_not_found", "detail": "no such image", "hint": ""}),
        (200, {**RECORD, "status": "failed", "ready": False}),
        (200, {"existed": True}),
    ]
    client = face.client(service.url, "k")
    create = asyncio.ensure_future(client.create_sandbox("host", sandbox_id="sb"))
    await asyncio.to_thread(until, lambda: service.requests, deadline_s=60, what="the request")
    await close_during_a_request(client, service)
    with pytest.raises(HoldfastError):
        await create
    assert [line for line, _ in service.requests][-1] == "DELETE /sandboxes/sb"


async def test_a_delete_interrupted_by_close_is_sent_again(service: Service, face: Any) -> None:
    service.answers = [(503, {"code": "placement_unavailable", "detail": "away", "hint": "", "retryable": True}), (200, {"existed": True})]
    service.retry_after_s = 60
    client = face.client(service.url, "k")
    delete = asyncio.ensure_future(client.get_sandbox("sb").delete())
    await asyncio.to_thread(until, lambda: service.requests, deadline_s=60, what="the request")
    await client.close()
    assert await asyncio.wait_for(delete, 60) is True
    assert [line for line, _ in service.requests] == ["DELETE /sandboxes/sb"] * 2


async def test_a_create_answered_after_close_leaves_no_sandbox(service: Service, face: Any) -> None:
    service.go_on.clear()
    client = face.client(service.url, "k")
    create = asyncio.ensure_future(client.create_sandbox("host", sandbox_id="sb"))
    await asyncio.to_thread(until, lambda: service.requests, deadline_s=60, what="the request")
    await close_during_a_request(client, service)
    with pytest.raises(ClientClosedError):
        await create
    assert [line for line, _ in service.requests] == ["POST /sandboxes", "DELETE /sandboxes/sb"]


async def test_a_group_that_begins_while_its_client_closes_sends_no_heartbeats(service: Service, face: Any) -> None:
    service.answers = [(200, {"lease": "l"})]
    service.go_on.clear()
    client = face.client(service.url, "k")
    begin = asyncio.ensure_future(client.group("run", ttl_s=1).begin())
    await asyncio.to_thread(until, lambda: service.requests, deadline_s=60, what="the first heartbeat")
    await close_during_a_request(client, service)
    with pytest.raises(ClientClosedError):
        await begin
    running = {task.get_name() for task in asyncio.all_tasks()} | {thread.name for thread in threading.enumerate()}
    assert "holdfast-group-run" not in running


async def test_a_with_block_that_ends_after_its_client_was_closed_deletes_its_sandbox(service: Service, face: Any) -> None:
    client = face.client(service.url, "k")
    async with await client.create_sandbox("host", sandbox_id="sb"):
        await client.close()
    assert [line for line, _ in service.requests] == ["POST /sandboxes", "DELETE /sandboxes/sb"]


def test_a_sandbox_with_a_client_of_its_own_can_be_deleted_twice(service: Service) -> None:
    with Sandbox.create("host", url=service.url, api_key="k") as sandbox:
        sandbox.delete()
        with pytest.raises(ClientClosedError):
            sandbox.refresh()
    assert sandbox.client._closed
