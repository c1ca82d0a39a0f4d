"""`python -m tests.bench.curves` plots the cost of a unit of work over the amount of work, and names each curve's knee.

Owns the amounts and the reading of memory and Redis; the work itself is `tests.bench.growth`. Writes curves.json, a PNG for each
curve and one page. A cluster is planned from these curves (infra/decisions/0062).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from holdfast import AsyncSandbox, AsyncSandboxClient
from holdfast_server.datadir import open_data_dir
from holdfast_server.embed import EmbeddedStack, running_stack
from redis.asyncio import Redis

from tests.bench import figures, growth, page
from tests.bench.latency import shell_round_trip
from tests.bench.memory import rss_bytes

_KNEE = 1.5
_KIB = 1024


@dataclass(frozen=True, slots=True)
class Curve:
    """Cost per unit (`unit`) at each amount of work (`x`); `knee`: the first amount where it is over 1.5 times the lowest cost before."""

    name: str
    x: str
    unit: str
    points: list[tuple[float, float]]
    knee: float | None

    def __str__(self) -> str:
        knee = f"knee at {self.knee:,g}" if self.knee is not None else f"no knee up to {self.points[-1][0]:,g}"
        points = ", ".join(f"{amount:,g}: {figures.shown(cost)}" for amount, cost in self.points)
        return f"{self.name}, {self.unit} by {self.x}: {points}; {knee}"


def curve(name: str, x: str, unit: str, points: Sequence[tuple[float, float]]) -> Curve:
    """A curve with its knee."""
    knee, cheapest = None, points[0][1]
    for amount, cost in points:
        if knee is None and cheapest > 0 and cost > _KNEE * cheapest:
            knee = amount
        cheapest = min(cheapest, cost)
    return Curve(name, x, unit, list(points), knee)


class Machine:
    """Memory of the stack's own processes, and memory and commands of its Redis."""

    def __init__(self, stack: EmbeddedStack, redis: Redis) -> None:
        self._pids = {path.stem: int(path.read_text()) for path in (stack.data / "run").glob("*.pid")}
        self._redis = redis

    def memory_bytes(self, *names: str) -> int:
        """The resident sets of services. Not proportional sets: those of the node shrink with each sandbox that shares its pages."""
        return sum(rss_bytes(self._pids[name]) for name in names)

    async def redis(self) -> tuple[int, int]:
        """Bytes used, and commands processed."""
        info = await self._redis.info()
        return int(info["used_memory"]), int(info["total_commands_processed"])


@dataclass(frozen=True, slots=True)
class Stage:
    """The objects that every curve needs."""

    client: AsyncSandboxClient
    another: Callable[[], AsyncSandboxClient]
    sandbox: AsyncSandbox
    machine: Machine
    scale: float

    def amounts(self, *amounts: int) -> Iterator[int]:
        """The amounts of work that the scale allows, at least two."""
        admitted = [amount for amount in amounts if amount <= amounts[-1] * self.scale]
        yield from admitted if len(admitted) > 1 else amounts[:2]


async def created(stage: Stage) -> list[Curve]:
    """Sandboxes requested at once: wall time and Redis commands for each."""
    wall: list[tuple[float, float]] = []
    commands: list[tuple[float, float]] = []
    await growth.create(stage.client, 5)
    for count in stage.amounts(10, 30, 100, 300, 1000):
        _, before = await stage.machine.redis()
        wall.append((count, await growth.create(stage.client, count) / count * 1e3))
        _, after = await stage.machine.redis()
        commands.append((count, (after - before) / count))
    return [
        curve("creates", "sandboxes asked for at once", "ms each (create, one command, delete)", wall),
        curve("Redis commands of a create", "sandboxes asked for at once", "commands each", commands),
    ]


async def alive(stage: Stage) -> list[Curve]:
    """Sandboxes that stay alive: memory of node and gateway, bytes and commands a second in Redis, and the time of the next create."""
    next_one: list[tuple[float, float]] = []
    memory: list[tuple[float, float]] = []
    bytes_: list[tuple[float, float]] = []
    idle: list[tuple[float, float]] = []
    turn = asyncio.Semaphore(16)
    async with contextlib.AsyncExitStack() as held:

        async def add() -> None:
            async with turn:
                await held.enter_async_context(await stage.client.create_sandbox("host", cpu="0.05", memory="32Mi"))

        services = ("node", "gateway", "controller")
        empty, (empty_redis, _) = stage.machine.memory_bytes(*services), await stage.machine.redis()
        there = 0
        for count in stage.amounts(20, 50, 100, 200, 400):
            await asyncio.gather(*(add() for _ in range(count - there)))
            there = count
            started = time.perf_counter()
            async with await stage.client.create_sandbox("host", cpu="0.05", memory="32Mi") as another:
                await another.exec(["true"])
                next_one.append((count, (time.perf_counter() - started) * 1e3))
            used, before = await stage.machine.redis()
            memory.append((count, (stage.machine.memory_bytes(*services) - empty) / count / _KIB))
            bytes_.append((count, (used - empty_redis) / count / _KIB))
            await asyncio.sleep(5)
            _, after = await stage.machine.redis()
            idle.append((count, (after - before) / 5 / count))
    return [
        curve("the next create", "sandboxes alive", "ms (create, one command)", next_one),
        curve("memory of the services", "sandboxes alive", "KiB each, of node, gateway and controller", memory),
        curve("memory of Redis", "sandboxes alive", "KiB each", bytes_),
        curve("Redis at rest", "sandboxes alive", "commands a second each, nothing being asked", idle),
    ]


async def attached(stage: Stage) -> list[Curve]:
    """Sessions that are attached and idle: gateway memory for each, and the time of a command beside them."""
    memory: list[tuple[float, float]] = []
    latency: list[tuple[float, float]] = []
    seconds: list[tuple[float, float]] = []
    async with contextlib.AsyncExitStack() as several:
        idle = [await several.enter_async_context(await stage.client.create_sandbox("host", cpu="0.1", memory="64Mi")) for _ in range(10)]
        ids = [each.id for each in idle]
        await growth.attach(ids, 20, stage.another)
        empty, shell = stage.machine.memory_bytes("gateway"), await stage.sandbox.shell()
        for count in stage.amounts(30, 100, 300, 1000):
            async with growth.attached(ids, count, stage.another) as elapsed_s:
                seconds.append((count, elapsed_s / count * 1e3))
                memory.append((count, (stage.machine.memory_bytes("gateway") - empty) / count / _KIB))
                latency.append((count, (await shell_round_trip(shell, 300)).p50 * 1e6))
        await shell.close()
    return [
        curve("attaching", "sessions attached", "ms each (attach, one command)", seconds),
        curve("memory of the gateway", "sessions attached", "KiB each", memory),
        curve("a command beside idle sessions", "sessions attached", "µs, p50", latency),
    ]


async def commands(stage: Stage) -> list[Curve]:
    """Commands in one session."""
    points = [(count, await growth.commands(stage.sandbox, count) / count * 1e6) for count in stage.amounts(100, 300, 1000, 3000, 10_000)]
    return [curve("commands", "commands in one session", "µs each", points)]


async def output(stage: Stage) -> list[Curve]:
    """Output of one command."""
    points = [(size, await growth.output(stage.sandbox, size) / size * 1e3) for size in stage.amounts(10, 30, 100, 300, 1000)]
    return [curve("output", "megabytes of output of one command", "ms per megabyte", points)]


_KINDS: tuple[Callable[[Stage], Awaitable[list[Curve]]], ...] = (created, alive, attached, commands, output)


async def measure(stack: EmbeddedStack, scale: float) -> list[Curve]:
    """All curves, one after the other."""
    taken: list[Curve] = []

    async with contextlib.AsyncExitStack() as scope:
        client = await scope.enter_async_context(AsyncSandboxClient(stack.url, stack.key))
        redis = await scope.enter_async_context(Redis(unix_socket_path=str(open_data_dir(stack.data).redis_socket)))
        sandbox = await scope.enter_async_context(await client.create_sandbox("host", cpu="1", memory="512Mi"))
        stage = Stage(client, lambda: AsyncSandboxClient(stack.url, stack.key), sandbox, Machine(stack, redis), scale)
        for kind in _KINDS:
            for each in await kind(stage):
                print(f"  {each}", flush=True)
                taken.append(each)
    return taken


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.curves", description="Cost per unit of work over the amount of work.")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="how far to go: 1 to a thousand sandboxes and sessions (default), 0.1 to a tenth"
    )
    parser.add_argument("--output", type=Path, default=Path("build/curves"), help="the folder to write (default: build/curves)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hf-curves-") as folder, running_stack(Path(folder)) as stack:
        taken = asyncio.run(measure(stack, options.scale))
    options.output.mkdir(parents=True, exist_ok=True)
    report = {"machine": figures.machine(), "curves": [asdict(each) for each in taken]}
    (options.output / "curves.json").write_text(json.dumps(report, indent=2) + "\n")
    print(page.write_curves(options.output, report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
