"""``python -m tests.bench.instructions``: how many bytecode instructions of Python one command takes, in the SDK and in the agent.

Owns the count (``sys.monitoring``, Python 3.12 and later), which unlike a time is the same on every machine: the least of many commands is
the path without waits. Compare two trees by running it in both; ``--tracing`` counts with traces on. The gateway relays sessions as bytes
and has no part in a command.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast import AsyncSandboxClient

from tests.support.process_channel import client
from tests.support.stack import Stack, running_stack

REPEATS = 300


class Counter:
    """The instructions that this process has executed since the last ``take``, in all threads."""

    def __init__(self) -> None:
        self._count = 0
        monitoring = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        monitoring.use_tool_id(3, "holdfast instructions")
        monitoring.register_callback(3, monitoring.events.INSTRUCTION, self._one)
        monitoring.set_events(3, monitoring.events.INSTRUCTION)

    def _one(self, code: object, offset: int) -> None:
        self._count += 1

    def take(self) -> int:
        count, self._count = self._count, 0
        return count

    def close(self) -> None:
        sys.monitoring.set_events(3, 0)  # type: ignore[attr-defined,unused-ignore]
        sys.monitoring.free_tool_id(3)  # type: ignore[attr-defined,unused-ignore]


async def least(step: Callable[[], Awaitable[object]]) -> int:
    """The least count of many runs of ``step``, after some that warm up."""
    for _ in range(20):
        await step()
    counter = Counter()
    try:
        counts = []
        for _ in range(REPEATS):
            counter.take()
            await step()
            counts.append(counter.take())
        return min(counts)
    finally:
        counter.close()


async def of_agent(*, tracing: bool) -> dict[str, int]:
    """The agent's handlers, without session and socket."""
    more = {"trace": f"00-{'1' * 32}-{'2' * 16}-01"} if tracing else {}
    async with client(env={"PATH": os.environ["PATH"]}) as sandbox:
        shell = sandbox.shell()

        async def run() -> None:
            assert (await shell.run("true", **more)).exit_code == 0

        async def one_off() -> None:
            assert (await sandbox.execute("true", **more)).exit_code == 0

        return {"agent, shell": await least(run), "agent, one-off": await least(one_off)}


async def of_sdk(stack: Stack, *, tracing: bool) -> dict[str, int]:
    """The SDK on asyncio, from the call to the result."""
    more: dict[str, Any] = {"tracing": True} if tracing else {}  # also of trees whose clients have no such argument
    async with AsyncSandboxClient(stack.url, stack.key, **more) as service, await service.create_sandbox("host") as sandbox:
        shell = await sandbox.shell()
        return {
            "SDK, shell": await least(lambda: shell.run("true")),
            "SDK, one-off": await least(lambda: sandbox.exec(["true"])),
        }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.instructions", description=__doc__)
    parser.add_argument("--tracing", action="store_true", help="with traces on")
    tracing = parser.parse_args().tracing
    counts = asyncio.run(of_agent(tracing=tracing))
    with running_stack() as stack:
        counts |= asyncio.run(of_sdk(stack, tracing=tracing))
    for name, count in counts.items():
        print(f"{name:16} {count:6} instructions a command")


if __name__ == "__main__":
    main()
