"""Chaos scenario: long output over a slow, jittery link that is cut repeatedly (kubernetes#124571).

`seq` writes 15 MB each time. The result is complete with the right digest, or is marked truncated; it is never short with exit code 0
and no mark. Some runs request truncation, by an output limit or a spool that stores the tail, and their results must be marked.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time

from holdfast import AsyncSandbox, AsyncSandboxClient, CommandResult

from .context import IMAGE, Context, Replicas
from .load import watch_resumes
from .proxy import FaultProxy, Weather
from .report import Outcome

RUNS = 200
NUMBERS = 2_000_000
READERS = 6
LIMIT = 100_000
WEATHER = Weather(cut_every_bytes=4_000_000, delay_s=0.004, rate_bytes_s=40_000_000, linger=0.3)


async def run(context: Context, replicas: Replicas, outcome: Outcome, seconds: float) -> None:
    """Do ``RUNS`` runs if there is time; a full run always completes them."""
    started = time.monotonic()
    expected = "".join(f"{n}\n" for n in range(1, NUMBERS + 1)).encode()
    stack, left, truncated = replicas.stack, [RUNS], [0]
    with contextlib.ExitStack() as stacked:
        proxy = stacked.enter_context(FaultProxy(replicas.targets[0], seed=context.seed, weather=WEATHER))
        async with AsyncSandboxClient(proxy.url, stack.key) as client, AsyncSandboxClient(stack.url, stack.key) as direct:
            made = [await direct.create_sandbox(IMAGE) for _ in range(2)]

            async def reader(number: int) -> None:
                sandbox, rng = client.get_sandbox(made[number % 2].id), context.rng("seq", number)
                await sandbox.exec("true")
                assert sandbox._driver is not None
                watch_resumes(sandbox._driver.engine, outcome.resumes)
                while left[0] > 0 and (context.full or time.monotonic() - started < seconds):
                    left[0] -= 1
                    mode = rng.choice(["exec", "exec", "exec", "process", "limit", "tail"])
                    result = await _one(sandbox, mode, rng.random())
                    truncated[0] += result.truncated
                    check_result(outcome, mode, result, expected)
                await sandbox.close()

            tasks = [asyncio.create_task(reader(number)) for number in range(READERS)]
            while not all(task.done() for task in tasks):
                await asyncio.wait(tasks, timeout=5)
                line = f"{outcome.commands} runs of {len(expected) / 1e6:.0f} MB, {proxy.faults.cuts} cuts"
                context.log(f"seq      {time.monotonic() - started:4.0f} s  {line}")
            for task in tasks:
                task.result()
            for sandbox in made:
                await sandbox.delete()
        outcome.faults["cut"] = proxy.faults.cuts
        outcome.notes["MB through the proxy"] = round(proxy.faults.bytes / 1e6)
    outcome.notes["truncated, and said so"] = truncated[0]
    outcome.seconds = time.monotonic() - started


async def _one(sandbox: AsyncSandbox, mode: str, chance: float) -> CommandResult:
    command = f"seq 1 {NUMBERS}"
    if mode in ("exec", "limit"):
        return await sandbox.exec(command, max_output_bytes=LIMIT if mode == "limit" else None)
    process = await sandbox.start(command, stdin=False, spool="tail" if mode == "tail" else "block")
    for _ in range(int(chance * 20)):
        if await process.read() is None:
            break
    return await process.wait()


def check_result(outcome: Outcome, mode: str, result: CommandResult, expected: bytes) -> None:
    """Compare the result of a run with what `seq` wrote."""
    outcome.commands += 1
    outcome.acknowledged += 1
    data, count = result.stdout_bytes, result.streams[1]
    outcome.expect(result.exit_code == 0, f"{mode}: exit code {result.exit_code}")
    outcome.expect(count.seen == len(expected), f"{mode}: {count.seen} bytes seen of {len(expected)}")
    outcome.expect(count.sha256 == hashlib.sha256(expected).hexdigest(), f"{mode}: the agent's digest is different")
    if not result.truncated:
        outcome.expect(data == expected, f"{mode}: {len(data)} bytes of {len(expected)} with exit code 0, not marked truncated")
        outcome.expect(mode != "limit", f"{mode}: not truncated")
    elif mode == "limit":
        outcome.expect(data == expected[:LIMIT], f"{mode}: not the first {LIMIT} bytes")
    else:
        outcome.expect(mode == "tail", f"{mode}: truncated although it was not requested")
        outcome.expect(len(data) == len(expected) - count.dropped, f"{mode}: {len(data)} bytes and {count.dropped} dropped")
        outcome.expect(count.dropped == 0 or expected.endswith(data[-1000:]), f"{mode}: the tail is different")
