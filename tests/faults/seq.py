"""Chaos scenario: long output over a slow, jittery link that is cut again and again (kubernetes#124571).

`seq` writes 15 MB each time. What arrives is all of it with the right digest, or says that it is truncated: never short with exit
code 0. A part of the runs asks for truncation, by an output limit or by a spool that keeps the tail, and must be told of it.
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
    """``RUNS`` runs when there is time, or in any case when the run is full."""
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
                    way = rng.choice(["exec", "exec", "exec", "process", "limit", "tail"])
                    result = await _one(sandbox, way, rng.random())
                    truncated[0] += result.truncated
                    judge(outcome, way, result, expected)
                await sandbox.close()

            tasks = [asyncio.create_task(reader(number)) for number in range(READERS)]
            while not all(task.done() for task in tasks):
                await asyncio.wait(tasks, timeout=5)
                line = f"{outcome.commands} runs of {len(expected) / 1e6:.0f} MB, {proxy.faults.cuts} cuts"
                context.say(f"seq      {time.monotonic() - started:4.0f} s  {line}")
            for task in tasks:
                task.result()
            for sandbox in made:
                await sandbox.delete()
        outcome.faults["cut"] = proxy.faults.cuts
        outcome.notes["MB through the proxy"] = round(proxy.faults.bytes / 1e6)
    outcome.notes["truncated, and said so"] = truncated[0]
    outcome.seconds = time.monotonic() - started


async def _one(sandbox: AsyncSandbox, way: str, chance: float) -> CommandResult:
    command = f"seq 1 {NUMBERS}"
    if way in ("exec", "limit"):
        return await sandbox.exec(command, max_output_bytes=LIMIT if way == "limit" else None)
    process = await sandbox.start(command, stdin=False, spool="tail" if way == "tail" else "block")
    for _ in range(int(chance * 20)):
        if await process.read() is None:
            break
    return await process.wait()


def judge(outcome: Outcome, way: str, result: CommandResult, expected: bytes) -> None:
    """What a run answered against what `seq` wrote."""
    outcome.commands += 1
    outcome.acknowledged += 1
    data, count = result.stdout_bytes, result.streams[1]
    outcome.expect(result.exit_code == 0, f"{way}: exit code {result.exit_code}")
    outcome.expect(count.seen == len(expected), f"{way}: {count.seen} bytes seen of {len(expected)}")
    outcome.expect(count.sha256 == hashlib.sha256(expected).hexdigest(), f"{way}: the agent's digest is another")
    if not result.truncated:
        outcome.expect(data == expected, f"{way}: {len(data)} bytes of {len(expected)} with exit code 0 and no word of it")
        outcome.expect(way != "limit", f"{way}: not truncated")
    elif way == "limit":
        outcome.expect(data == expected[:LIMIT], f"{way}: not the first {LIMIT} bytes")
    else:
        outcome.expect(way == "tail", f"{way}: truncated although nobody asked for it")
        outcome.expect(len(data) == len(expected) - count.dropped, f"{way}: {len(data)} bytes and {count.dropped} dropped")
        outcome.expect(count.dropped == 0 or expected.endswith(data[-1000:]), f"{way}: the tail is another")
