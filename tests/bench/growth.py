"""P13: ten times the work costs at most twelve times as much, for each kind of work.

Owns the kinds of work: sandboxes created, sessions attached, commands in one session, bytes of one command's output. The same
functions draw the curves of `tests.bench.curves`. A round does ten times the work at once, and five times the single work before and after:
both sides take about as long and see the same machine. The figure is the median of five rounds, so one slow moment affects only one.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from holdfast import AsyncSandbox, AsyncSandboxClient

from tests.bench.figures import Figure, at_most, quartiles

_ROUNDS = 5
_TIMES = 10
_BUDGET = 12.0
_AT_ONCE = 16
_SESSIONS = 4 * _AT_ONCE
"""Four waves. A single wave, whose sessions all start together, costs a fifth less CPU time for each session than a steady stream, also
when each session is closed at once; compared with it, a stream looks like growth."""
_MB = 1_000_000

Work = Callable[[int], Awaitable[float]]


async def create(client: AsyncSandboxClient, count: int) -> float:
    """Seconds for `count` sandboxes requested at once: created, one command run, deleted."""

    async def one() -> None:
        async with await client.create_sandbox("host", cpu="0.1", memory="64Mi") as sandbox:
            result = await sandbox.exec(["true"])
            assert result.exit_code == 0, result

    started = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(count)))
    return time.perf_counter() - started


async def attach(sandbox_ids: list[str], count: int, another: Callable[[], AsyncSandboxClient]) -> float:
    """Seconds for `count` sessions, sixteen at a time over the given sandboxes: attached and one command run."""
    async with attached(sandbox_ids, count, another) as elapsed_s:
        return elapsed_s


@contextlib.asynccontextmanager
async def attached(sandbox_ids: list[str], count: int, another: Callable[[], AsyncSandboxClient]) -> AsyncIterator[float]:
    """Hold `count` idle sessions, each with its own client; yields the seconds that attaching them took."""
    turn = asyncio.Semaphore(_AT_ONCE)
    async with contextlib.AsyncExitStack() as held:

        async def one(sandbox_id: str) -> None:
            async with turn:
                client = await held.enter_async_context(another())
                result = await client.get_sandbox(sandbox_id).exec(["true"])
                assert result.exit_code == 0, result

        started = time.perf_counter()
        await asyncio.gather(*(one(sandbox_ids[number % len(sandbox_ids)]) for number in range(count)))
        yield time.perf_counter() - started


async def commands(sandbox: AsyncSandbox, count: int) -> float:
    """Seconds for `count` commands, one after the other, in a new shell."""
    shell = await sandbox.shell()
    started = time.perf_counter()
    for _ in range(count):
        result = await shell.run("true")
        assert result.exit_code == 0, result
    elapsed = time.perf_counter() - started
    await shell.close()
    return elapsed


async def output(sandbox: AsyncSandbox, size_mb: int) -> float:
    """Seconds for one command's output of that many megabytes, read as it arrives."""
    received = 0
    started = time.perf_counter()
    async with await sandbox.start(["head", "-c", str(size_mb * _MB), "/dev/zero"]) as process:
        async for chunk in process:
            received += len(chunk.data)
    assert received == size_mb * _MB, received
    return time.perf_counter() - started


async def p13(client: AsyncSandboxClient, sandbox: AsyncSandbox, another: Callable[[], AsyncSandboxClient]) -> list[Figure]:
    """P13c, P13s, P13n, P13o: seconds for ten times the work beside ten times the seconds for the work."""
    async with contextlib.AsyncExitStack() as several:
        idle = [await several.enter_async_context(await client.create_sandbox("host", cpu="0.5", memory="256Mi")) for _ in range(10)]
        ids = [each.id for each in idle]
        kinds: list[tuple[str, str, int, Work]] = [
            ("P13c", "sandboxes created and deleted", 10, lambda count: create(client, count)),
            ("P13s", "sessions attached", _SESSIONS, lambda count: attach(ids, count, another)),
            ("P13n", "commands in one session", 300, lambda count: commands(sandbox, count)),
            ("P13o", "megabytes of output of one command", 30, lambda count: output(sandbox, count)),
        ]
        return [await grown(*kind) for kind in kinds]


async def grown(number: str, what: str, count: int, work: Work) -> Figure:
    """The cost of ten times the work, compared with the work."""
    await work(count)
    rounds: list[tuple[float, float]] = []
    for _ in range(_ROUNDS):
        once = [await work(count) for _ in range(_TIMES // 2)]
        ten = await work(_TIMES * count)
        once += [await work(count) for _ in range(_TIMES - _TIMES // 2)]
        rounds.append((_TIMES * ten / sum(once), ten))
    ratio, value = sorted(rounds)[_ROUNDS // 2]
    floor = value / ratio
    ratios = [each for each, _ in rounds]
    how = (
        f"the median of {_ROUNDS} rounds, by ratio ({min(ratios):.1f} to {max(ratios):.1f}); in each {_TIMES * count} between "
        f"{_TIMES} times {count}, whose mean is the floor; {_TIMES}× is no growth"
    )
    spread = quartiles(ratios, floor)
    return at_most(number, f"{_TIMES * count} {what}, beside {count}", value, "s", floor, _BUDGET, _TIMES, how, spread)
