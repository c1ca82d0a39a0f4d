"""A slow or dead reader affects no other session: its own command waits, memory stays bounded, other sessions keep their speed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from holdfast import AsyncProcess, AsyncSandbox, AsyncSandboxClient

from tests.support.stack import Stack
from tests.support.until import until_async

from .proxy import FaultProxy
from .report import percentile

MIB = 1024 * 1024
GATEWAY_MIB = 8
AGENT_MIB = 40
"""Windows of a few MiB for three commands, far from the 64 MiB a spool may hold: readers that are connected push back."""
CLIENT_MIB = 16
DETACHED_AGENT_MIB = 32 + 2 * 16
"""A quarter of the sandbox's memory for what is kept, and for each of sixteen commands a window that was under way, twice."""
DETACHED_TAIL = 4 * MIB
SLOWEST_P99_S = 5.0
"""A session that waited for another's reader would never end, so any bound detects it; `make bench` measures the speed."""


def resident_mib(pid: int | str) -> float:
    """The resident memory of a process of this machine."""
    fields = Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()
    return int(fields[0]) / 1024


async def agent_mib(sandbox: AsyncSandbox) -> float:
    """The resident memory of the sandbox's first process, as the sandbox sees it."""
    status = (await sandbox.exec("cat /proc/1/status")).stdout
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


async def p99_of_short_commands(sandbox: AsyncSandbox, count: int = 200) -> float:
    """The p99 of short commands on a session of its own, seconds."""
    shell = await sandbox.shell()
    times = []
    for _ in range(count):
        began = time.perf_counter()
        assert (await shell.run("echo x")).stdout == "x\n"
        times.append(time.perf_counter() - began)
    await shell.close()
    return percentile(times, 99)


async def test_readers_that_stop_or_die_while_yes_runs(
    stack: Stack, sandbox: AsyncSandbox, client: AsyncSandboxClient, cut_client: AsyncSandboxClient, proxy: FaultProxy
) -> None:
    """One reader stops taking chunks, another's connection becomes a black hole, a third takes a little now and then."""
    gateway = stack.pid("gateway")
    calm = client.get_sandbox(sandbox.id)
    await p99_of_short_commands(calm, 50)
    before = (resident_mib(gateway), await agent_mib(calm), resident_mib("self"))
    stopped, dead, slow = client.get_sandbox(sandbox.id), cut_client.get_sandbox(sandbox.id), client.get_sandbox(sandbox.id)
    processes: list[AsyncProcess] = [await reader.start("yes", stdin=False) for reader in (stopped, dead, slow)]
    await processes[0].read()
    await processes[1].read()
    proxy.freeze()
    reading = asyncio.create_task(_take_a_little(processes[2]))
    await _stands_still(lambda: processes[0]._call.received[1], "the command of the reader that stopped to wait")
    p99 = await p99_of_short_commands(calm)
    after = (resident_mib(gateway), await agent_mib(calm), resident_mib("self"))
    grown = [now - then for now, then in zip(after, before, strict=True)]
    assert grown[0] < GATEWAY_MIB, f"the gateway grew by {grown[0]:.0f} MiB"
    assert grown[1] < AGENT_MIB, f"the agent grew by {grown[1]:.0f} MiB"
    assert grown[2] < CLIENT_MIB, f"the client grew by {grown[2]:.0f} MiB"
    assert p99 < SLOWEST_P99_S, f"other sessions' p99 is {p99:.3f} s"
    reading.cancel()
    proxy.thaw()
    for process in processes:
        await process.kill()
        result = await process.wait()
        assert result.signal == "KILL"
        assert set(result.stdout_bytes) <= {ord("y"), ord("\n")}
        assert result.streams[1].seen - result.streams[1].dropped >= len(result.stdout_bytes)
    for reader in (stopped, dead, slow, calm):
        await reader.close()


async def test_floods_of_detached_sessions_fit_the_sandbox(
    stack: Stack, client: AsyncSandboxClient, cut_client: AsyncSandboxClient, proxy: FaultProxy
) -> None:
    """No client is connected, sixteen commands write without end, and the sandbox has 128 MiB: the stored output must fit."""
    async with await client.create_sandbox("python:3.12", memory="128Mi") as sandbox:
        gateway = stack.pid("gateway")
        handles = [cut_client.get_sandbox(sandbox.id) for _ in range(8)]
        for handle in handles:
            await handle.exec("true")
        before = (resident_mib(gateway), await agent_mib(sandbox), resident_mib("self"))
        floods: list[AsyncProcess] = []
        for handle in handles:
            floods += [
                await handle.start("yes", stdin=False),
                await handle.start("yes", stdin=False, spool="tail", spool_bytes=DETACHED_TAIL),
            ]
        for flood in floods:
            await flood.read()
        proxy.refuse(True)
        proxy.cut_all()
        seen: list[float] = []

        async def seen_enough() -> bool:
            seen.append(await agent_mib(sandbox))
            return len(seen) >= 50

        await until_async(seen_enough, deadline_s=60, what="50 looks at the agent's memory")
        highest = max(seen)
        p99 = await p99_of_short_commands(sandbox)
        after = (resident_mib(gateway), max(highest, await agent_mib(sandbox)), resident_mib("self"))
        grown = [now - then for now, then in zip(after, before, strict=True)]
        print(f"grown by MiB: gateway {grown[0]:.1f}, agent {grown[1]:.1f}, client {grown[2]:.1f}; p99 {p99 * 1000:.1f} ms")
        assert grown[0] < GATEWAY_MIB, f"the gateway grew by {grown[0]:.0f} MiB"
        assert grown[1] < DETACHED_AGENT_MIB, f"the agent grew by {grown[1]:.0f} MiB"
        assert grown[2] < CLIENT_MIB, f"the client grew by {grown[2]:.0f} MiB"
        assert p99 < SLOWEST_P99_S, f"other sessions' p99 is {p99:.3f} s"
        proxy.refuse(False)
        for number, flood in enumerate(floods):
            await flood.kill()
            result = await flood.wait()
            count = result.streams[1]
            assert (result.signal, set(result.stdout_bytes) <= {ord("y"), ord("\n")}) == ("KILL", True)
            assert number % 2 or (count.dropped, result.truncated) == (0, False), "what blocks loses nothing"
            assert count.seen == len(result.stdout_bytes) + count.dropped
        for handle in handles:
            await handle.close()


async def _take_a_little(process: AsyncProcess) -> None:
    while True:
        await process.read()
        await asyncio.sleep(0.05)  # a reader that is slow by the clock is what is tested


async def _stands_still(value: Callable[[], int], what: str) -> None:
    """Wait until ``value()`` is the same at 25 looks in a row: half a second."""
    seen: list[int] = []

    def still() -> bool:
        seen.append(value())
        return len(seen) > 25 and len(set(seen[-25:])) == 1

    await until_async(still, deadline_s=60, what=what)
