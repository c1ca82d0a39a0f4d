"""A Redis outage: live sessions continue, creates are refused at once, a session resumes at another replica with its ticket.

`make chaos` does the same for a minute under load; this test takes the steps one by one.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest
from holdfast import AsyncSandboxClient

from tests.support.requires import requires

from .context import IMAGE, Replicas, replicated_stack
from .proxy import FaultProxy
from .rolling import CREATE_ANSWER_S, try_create

pytestmark = requires("namespaces", "redis")


@pytest.fixture
def replicas() -> Iterator[Replicas]:
    with replicated_stack(2) as replicas:
        yield replicas


@pytest.mark.alone
async def test_sessions_continue_while_redis_is_stopped(replicas: Replicas) -> None:
    stack = replicas.stack
    pid = stack.pid("redis")
    with FaultProxy(replicas.targets[0]) as first:
        async with AsyncSandboxClient(first.url, stack.key) as client, await client.create_sandbox(IMAGE) as sandbox:
            shell = await sandbox.shell()
            await shell.run("mark=kept")
            os.kill(pid, signal.SIGSTOP)
            try:
                for number in range(50):
                    assert (await shell.run(f"echo {number}")).stdout == f"{number}\n"
                for port in replicas.ports:
                    status, headers, took_s, code = await asyncio.to_thread(try_create, port, stack.key)
                    assert (status, code) == (503, "placement_unavailable")
                    assert int(headers["retry-after"]) >= 1
                    assert took_s <= CREATE_ANSWER_S
                first.retarget(replicas.targets[1])
                assert first.cut_all() >= 1
                assert (await shell.run("echo $mark")).stdout == "kept\n"
                assert sandbox._driver is not None
                assert sandbox._driver.engine.resumes == 1
            finally:
                os.kill(pid, signal.SIGCONT)
            async with await client.create_sandbox(IMAGE, ready_timeout_s=60) as another:
                assert (await another.exec("echo up")).stdout == "up\n"
