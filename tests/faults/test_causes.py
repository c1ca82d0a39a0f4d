"""Why a sandbox ended and whose fault it was, as reported to attached clients, over REST, and to clients that attach later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from holdfast import AsyncProcess, AsyncSandbox, AsyncSandboxClient, SandboxLostError

from tests.support.requires import requires
from tests.support.stack import Stack

from .context import IMAGE, replicated_stack

pytestmark = requires("namespaces", "redis")

REPORT_S = 60.0
End = Callable[[Stack, AsyncSandboxClient, AsyncSandbox], Coroutine[None, None, None]]


async def _wait(stack: Stack, client: AsyncSandboxClient, sandbox: AsyncSandbox) -> None:
    """Do nothing: the sandbox ends by itself."""


async def _delete(stack: Stack, client: AsyncSandboxClient, sandbox: AsyncSandbox) -> None:
    assert await client.get_sandbox(sandbox.id).delete()


async def _kill_node(stack: Stack, client: AsyncSandboxClient, sandbox: AsyncSandbox) -> None:
    await asyncio.to_thread(stack.kill_process, "node")


async def _check_cause(stack: Stack, limits: dict[str, float], end: End, reason: str, fault: str) -> None:
    async with AsyncSandboxClient(stack.url, stack.key) as client, AsyncSandboxClient(stack.url, stack.key) as other:
        made = await client.create_sandbox(IMAGE, **limits)  # type: ignore[arg-type]
        await made.keep_alive()
        await made.close()  # which also stops its heartbeats
        held = other.get_sandbox(made.id)
        process: AsyncProcess = await held.start("echo begun; sleep 600", command_id="one")
        chunk = await process.read(REPORT_S)
        assert chunk is not None
        shell = await held.shell()
        waiting = asyncio.create_task(shell.run("sleep 600", command_id="two"))
        await end(stack, client, held)
        outcomes: tuple[Callable[[], Coroutine[Any, Any, object]], ...] = (
            lambda: process.wait(REPORT_S),
            lambda: asyncio.wait_for(waiting, REPORT_S),
        )
        for number, outcome in enumerate(outcomes):
            with pytest.raises(SandboxLostError) as lost:
                await outcome()
            assert (lost.value.reason, lost.value.fault) == (reason, fault)
            assert lost.value.command_id == ("one", "two")[number]
            assert lost.value.started in ((True,), (True, None))[number]
            if number == 0:
                assert lost.value.received[1] == len(b"begun\n")
        async with AsyncSandboxClient(stack.url, stack.key, transport="rest") as rest:
            new, plain = client.get_sandbox(made.id), rest.get_sandbox(made.id)
            late: list[Callable[[], Coroutine[Any, Any, object]]] = [
                lambda: held.exec("true"),
                lambda: new.exec("true"),
                lambda: plain.exec("true"),
                lambda: held.files.read("/etc/hostname"),
                held.keep_alive,
            ]
            for use in late:
                with pytest.raises(SandboxLostError) as lost:
                    await use()
                assert (lost.value.reason, lost.value.fault) == (reason, fault)
                assert lost.value.started in (False, None), "no later command can have started"
        await held.close()


@pytest.mark.parametrize(
    ("limits", "end", "reason", "fault"),
    [
        ({}, _delete, "deleted", "caller"),
        ({"lifetime_s": 8.0}, _wait, "ttl", "caller"),
        ({"heartbeat_timeout_s": 8.0}, _wait, "heartbeat", "caller"),
    ],
    ids=["deleted", "ttl", "heartbeat"],
)
async def test_the_cause_of_an_ended_sandbox_is_reported(stack: Stack, limits: dict[str, float], end: End, reason: str, fault: str) -> None:
    await _check_cause(stack, limits, end, reason, fault)


async def test_the_cause_of_a_dead_node_is_reported() -> None:
    with replicated_stack(1) as replicas:
        await _check_cause(replicas.stack, {}, _kill_node, "node-lost", "infrastructure")
