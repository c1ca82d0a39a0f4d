"""``client.events()`` and ``holdfast events`` on the whole stack, on both APIs, also while the gateway is killed."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from typing import Any

import pytest
from holdfast import ClientClosedError, EventGap, InvalidArgumentError, SandboxClient, ServiceUnavailableError, WaitTimeoutError

from tests.support.requires import requires
from tests.support.stack import Stack

pytestmark = requires("namespaces", "redis")
DEADLINE_S = 60.0


async def next_of(events: Any, sandbox_id: str) -> Any:
    """The next event of a sandbox; others that live meanwhile are passed over, a gap is not expected."""
    while True:
        event = await events.read(DEADLINE_S)
        assert not isinstance(event, EventGap), event
        if event.sandbox_id == sandbox_id:
            return event


async def until_type(events: Any, sandbox_id: str, wanted: str) -> Any:
    """The event of this type; ``created`` and ``ready`` may come as one."""
    while (event := await next_of(events, sandbox_id)).type != wanted:
        pass
    return event


async def test_the_life_of_a_sandbox(client: Any) -> None:
    async with await client.events(labels={"events": "yes"}) as events:
        async with await client.create_sandbox("host", memory="64Mi", labels={"events": "yes"}) as sandbox:
            ready = await until_type(events, sandbox.id, "ready")
            assert (ready.image, ready.labels, ready.group, ready.fault) == ("host", {"events": "yes"}, None, None)
            assert ready.created_at <= ready.ready_at == ready.time
        deleted = await until_type(events, sandbox.id, "deleted")
        assert (deleted.reason, deleted.fault) == ("deleted", "caller")
        position = events.position
    async with await client.events(sandboxes=[sandbox.id], since_s=600) as earlier:
        assert (await earlier.read(DEADLINE_S)).type == "deleted", "the last state alone"
    async with await client.events(sandboxes=[sandbox.id], after=position) as later:
        with pytest.raises(WaitTimeoutError):
            await later.read(0.3)
        with pytest.raises(WaitTimeoutError):
            await later.read(0)


async def test_events_continue_when_the_gateway_is_killed(stack: Stack, client: Any) -> None:
    events = await client.events()
    first = await client.create_sandbox("host", memory="64Mi")
    await until_type(events, first.id, "ready")
    waiting = asyncio.ensure_future(until_type(events, first.id, "deleted"))
    for _ in range(2):
        old = await asyncio.to_thread(stack.kill_process, "gateway")
        await asyncio.to_thread(stack.wait_restarted, "gateway", old)
    await first.delete()
    assert (await waiting).reason == "deleted"
    old = await asyncio.to_thread(stack.kill_process, "gateway")  # nothing reads while the gateway is away and what follows happens
    await asyncio.to_thread(stack.wait_restarted, "gateway", old)
    async with await client.create_sandbox("host", memory="64Mi") as second:
        pass
    assert (await until_type(events, second.id, "deleted")).reason == "deleted"
    await events.close()
    assert await events.read() is None


async def test_a_reader_is_woken_when_the_events_or_the_client_are_closed(stack: Stack, face: Any) -> None:
    client = face.client(stack.url, stack.key)
    for closed in ("events", "client"):
        events = await client.events(sandboxes=["sb-of-no-one"])
        reading = asyncio.ensure_future(events.read())
        await asyncio.wait([reading], timeout=0.1)
        assert not reading.done()
        await (events if closed == "events" else client).close()
        async with asyncio.timeout(DEADLINE_S):
            assert await reading is None
    with pytest.raises(ClientClosedError):
        await client.events()


async def test_a_read_that_timed_out_loses_no_event(stack: Stack, client: Any) -> None:
    async with await client.events() as events:
        for _ in range(3):
            with pytest.raises(WaitTimeoutError):
                await events.read(0.01)
        async with await client.create_sandbox("host", memory="64Mi") as sandbox:
            await until_type(events, sandbox.id, "ready")


async def test_bad_arguments_and_a_service_that_is_not_there(client: Any, face: Any) -> None:
    for wrong in (
        {"sandboxes": ["a/b"]},
        {"labels": {"": "x"}},
        {"group": "a/b"},
        {"since_s": 0},
        {"since_s": 3601},
        {"after": "a\r\nb: c"},
    ):
        with pytest.raises(InvalidArgumentError):
            await client.events(**wrong)
    with pytest.raises(InvalidArgumentError):  # by the service
        await client.events(labels={"a b": "x"})
    away = face.client("http://127.0.0.1:9", "key", connect_timeout_s=0.2)
    with pytest.raises(ServiceUnavailableError):
        await away.events()
    await away.close()


def test_the_command_prints_events(stack: Stack) -> None:
    def begin(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "holdfast.cli", "events", *words]
        return subprocess.Popen(command, env=stack.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    with SandboxClient(stack.url, stack.key) as client, client.create_sandbox("host", memory="64Mi", labels={"a": "b"}) as sandbox:
        for words in (("--json",), ()):
            with begin("--since", "10m", "-l", "a=b", "--sandbox", sandbox.id, *words) as program:
                assert program.stdout is not None
                line = program.stdout.readline()
                program.send_signal(signal.SIGINT)
                assert program.wait(DEADLINE_S) == 130, program.communicate()
            if words:
                assert (json.loads(line)["type"], json.loads(line)["sandbox_id"]) == ("ready", sandbox.id)
            else:
                assert line.rstrip().endswith(f"Z  ready    {sandbox.id}  image=host a=b")
        with begin("--since", "2h") as program:
            assert program.wait(DEADLINE_S) == 2
            assert "since" in program.communicate()[1]
