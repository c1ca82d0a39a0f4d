"""A sandbox object whose locks are held by threads that no longer exist: in a forked child, and in a second event loop."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import threading

from holdfast import AsyncSandboxClient, SandboxClient

from tests.sdk.support.fake_agent import FakeAgent
from tests.support.until import until


def test_a_fork_attaches_while_another_thread_of_its_parent_does(agent: FakeAgent) -> None:
    with SandboxClient(agent.url, "key", connect_timeout_s=20.0) as client:
        sandbox = client.get_sandbox("sb")
        agent.refuse_with("placement_unavailable", 1000)
        attaching = threading.Thread(target=sandbox.exec, args=("true",))
        attaching.start()
        until(lambda: agent.requests, deadline_s=60, what="the parent to attach")
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                agent.refuse = []  # only in the child: the parent's thread serves both processes
                os.write(write_end, sandbox.exec("echo child").stdout_bytes)
            finally:
                os._exit(0)
        os.close(write_end)
        agent.refuse.clear()
        try:
            assert select.select([read_end], [], [], 60)[0], "the child waits for a thread that it does not have"
            assert os.read(read_end, 100) == b"child\n"
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(read_end)
            attaching.join(60)


def test_an_event_loop_attaches_after_another_ended_during_its_attach(agent: FakeAgent) -> None:
    client = AsyncSandboxClient(agent.url, "key")
    sandbox = client.get_sandbox("sb")
    agent.refuse_with("placement_unavailable", 1000)
    first = asyncio.new_event_loop()
    attaching = [first.create_task(sandbox.exec("true")) for _ in range(2)]

    async def refused() -> None:
        await asyncio.to_thread(until, lambda: agent.requests, deadline_s=60, what="the client to attach")

    first.run_until_complete(refused())
    agent.refuse.clear()

    async def again() -> None:
        async with asyncio.timeout(60):
            assert (await sandbox.exec("echo on")).stdout == "on\n"
        await client.close()

    asyncio.run(again())
    for task in attaching:
        task.cancel()
    first.run_until_complete(asyncio.gather(*attaching, return_exceptions=True))
    first.run_until_complete(first.shutdown_default_executor())
    first.close()
