"""The asynchronous API on event loops other than asyncio's default, as trainers use them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest
import uvloop
from holdfast import AsyncSandboxClient

SERVER = """
import socket
listener = socket.create_server(('127.0.0.1', 7788))
while True:
    with listener.accept()[0] as taken:
        taken.sendall(taken.recv(4)[::-1])
"""


def eager_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined, unused-ignore]  # since Python 3.12
    return loop


LOOPS = [uvloop.new_event_loop, *([eager_loop] if sys.version_info >= (3, 12) else [])]


@pytest.mark.parametrize("loop_factory", LOOPS, ids=lambda factory: factory.__module__.partition(".")[0] + "." + factory.__name__)
@pytest.mark.parametrize("debug", [False, True], ids=["", "debug"])
def test_an_episode_on_the_callers_loop(stack: Any, loop_factory: Callable[[], asyncio.AbstractEventLoop], debug: bool) -> None:
    with asyncio.Runner(debug=debug, loop_factory=loop_factory) as runner:
        runner.run(episode(stack))


async def episode(stack: Any) -> None:
    async with AsyncSandboxClient(stack.url, stack.key) as client, await client.create_sandbox("host") as sandbox:
        shell = await sandbox.shell()
        both = await asyncio.gather(shell.run("cd /tmp; echo $((40 + 2))"), sandbox.exec("head -c 3000000 /dev/zero | tr '\\0' x"))
        assert [len(result.stdout) for result in both] == [3, 3_000_000]
        content = bytes(range(256)) * 8000
        await sandbox.files.write("/tmp/big", content)
        assert await sandbox.files.read("/tmp/big") == content
        await sandbox.start(["python3", "-c", SERVER])
        async with await sandbox.tunnel(7788, wait_s=60) as address:
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(b"abcd")
            assert await reader.read() == b"dcba"
            writer.close()
            await writer.wait_closed()
