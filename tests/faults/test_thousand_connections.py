"""A thousand connections of one sandbox at once, through the whole service, while its gateway is killed."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast import AsyncConnection, AsyncSandboxClient

from tests.support.requires import requires
from tests.support.stack import Stack

pytestmark = requires("namespaces", "redis")

COUNT = 1000
PROGRAM = """
import asyncio, sys
port, count = int(sys.argv[1]), int(sys.argv[2])

async def ask(number):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"%d\\n" % number)
    return await reader.read()

async def main():
    answers = await asyncio.gather(*(ask(number) for number in range(count)))
    print(sum(answer == b"answer to %d\\n" % number for number, answer in enumerate(answers)))

asyncio.run(main())
"""


async def test_a_thousand_connections_at_once(stack: Stack) -> None:
    seen: list[bytes] = []
    every, go_on = asyncio.Event(), asyncio.Event()

    async def handle(connection: AsyncConnection) -> None:
        line = await connection.read()
        seen.append(line)
        if len(seen) == COUNT:
            every.set()
        await go_on.wait()
        await connection.write(b"answer to " + line)

    async with AsyncSandboxClient(stack.url, stack.key) as client, client.create_sandbox("host", memory="1Gi") as sandbox:
        listener: Any = await sandbox.listen(0, handle)
        process = await sandbox.start(["python3", "-c", PROGRAM, str(listener.address.port), str(COUNT)], timeout=170)
        async with asyncio.timeout(100):
            await every.wait()  # all of them are open at the same time
        old = await asyncio.to_thread(stack.kill_process, "gateway")
        go_on.set()
        result = await process.wait(150)
        assert (result.stdout, result.stderr) == (f"{COUNT}\n", "")
        assert sorted(map(int, seen)) == list(range(COUNT))
        assert listener.last_error is None
        await listener.close()
        await asyncio.to_thread(stack.wait_restarted, "gateway", old)
        await asyncio.to_thread(stack.wait_ready)
