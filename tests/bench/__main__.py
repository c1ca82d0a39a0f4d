"""`make bench`: starts its own stack, measures the figures one after the other, prints the table, writes bench.json.

Owns the order and the command line. Exit status 1 when a budget is missed. `--only P1,P6` selects some of them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from holdfast import AsyncSandbox, AsyncSandboxClient
from holdfast_server.embed import EmbeddedStack, running_stack

from tests.bench import (
    beside_page,
    branches,
    bundle,
    command_line,
    cpu,
    figures,
    growth,
    latency,
    lifecycle,
    many,
    memory,
    page,
    pods,
    previews,
    streams,
    throughput,
    transfers,
    warm,
)
from tests.bench.workers import workers

_ALL = (
    "P1",
    "P2",
    "P3",
    "P4",
    *pods.NAMES[:2],
    "P5",
    *pods.NAMES[2:],
    "P6",
    "P7",
    "P8",
    "P9",
    "P10",
    "P11",
    "P12",
    "P13",
    "P14",
    "P15",
    "P16",
    "P18",
    "PC",
    "PE",
)
_IDLE_SESSIONS = 1000


async def measure(stack: EmbeddedStack, wanted: set[str], count: int) -> list[figures.Figure]:
    """The wanted figures, in the order of their numbers."""
    environment = {**os.environ, "HOLDFAST_URL": stack.url, "HOLDFAST_API_KEY": stack.key}
    taken: list[figures.Figure] = []

    def take(figure: figures.Figure) -> None:
        print(f"  {figure.id}: {figures.shown(figure.value)} {figure.unit}", flush=True)
        taken.append(figure)

    async with AsyncExitStack() as scope:
        client = await scope.enter_async_context(AsyncSandboxClient(stack.url, stack.key))
        if "P9" in wanted:  # first: after figures that enlarge the gateway's heap, new sessions would use free memory in it
            async with _idle_sandboxes(client) as idle_sandboxes:
                session = await memory.p9(_gateway_pid(stack), [each.id for each in idle_sandboxes], environment)
                take(session)
                take(await memory.p9e(_gateway_pid(stack), stack.url, stack.key, session.value))
        if "P7" in wanted:
            for run, ids, name in (
                (many.rollouts, ("P7", "P7c"), "sandboxes at once, created, used, deleted"),
                (many.all_alive, ("P7a", "P7b"), "alive at once before the first is used"),
            ):
                burst = await run(client, stack.data, count)
                print(burst.table())
                for figure in many.figures(*ids, name, burst):
                    take(figure)
            take(await warm.p7w(client, stack))
        async with await client.create_sandbox("host", cpu="2", memory="1Gi") as sandbox:
            shell = await sandbox.shell()
            steps: dict[str, Callable[[], Awaitable[figures.Figure]]] = {
                "P5": lambda: latency.p5(sandbox, stack.url, stack.key),
                "P10": lambda: streams.p10(sandbox),
                "P6": lambda: lifecycle.p6(client),
                "P8": lambda: memory.p8(client),
                "P14": lambda: asyncio.to_thread(bundle.p14),
                "P15": lambda: previews.p15(sandbox, stack.url, stack.key),
            }
            spent: list[tuple[str, cpu.Spent]] = []
            if "P1" in wanted:
                take(latency.p1(await latency.shell_round_trip(shell, latency.P1_COUNT)))
                take(await latency.p1r(shell))
                spent.append(("one session", await cpu.one_session(shell, stack.data)))
                take(cpu.figure("P1c", "CPU time of a command, one session", spent[-1][1]))
            if "P4" in wanted:
                take((await latency.p4(sandbox))[0])
            if wanted & set(pods.NAMES):
                folder = scope.enter_context(tempfile.TemporaryDirectory(prefix="hf-bench-pods-"))
                async for figure in pods.figures(Path(folder), sandbox, wanted):
                    take(figure)
            for name in [name for name in steps if name in wanted]:
                take(await steps[name]())
            if "P18" in wanted:
                for figure in await branches.p18():
                    take(figure)
            if "PC" in wanted:
                take(await asyncio.to_thread(command_line.pc, environment))
            if "P11" in wanted:
                for figure in await transfers.p11(sandbox, _gateway_pid(stack), environment):
                    take(figure)
            if "P13" in wanted:
                for figure in await growth.p13(client, sandbox, lambda: AsyncSandboxClient(stack.url, stack.key)):
                    take(figure)
            if wanted & {"P2", "P3"}:
                fifty = await throughput.fifty_sessions(environment, stack.data, shell)
                spent += [("50 sessions", fifty.spent), ("50, the prototype", fifty.prototype_spent)]
                for figure in (throughput.p2(fifty), throughput.p3(fifty), throughput.p3c(fifty)):
                    if _asked(figure) in wanted:
                        take(figure)
            if "P16" in wanted:
                take(await throughput.p16(environment))
            if "PE" in wanted:
                for figure in await beside_page.figures(client, sandbox, shell, stack.url, stack.key):
                    take(figure)
            if "P12" in wanted:
                async with _idle_sandboxes(client) as idle_sandboxes:
                    half = _IDLE_SESSIONS // 2
                    shell = await idle_sandboxes[0].shell()
                    around = [await latency.shell_round_trip(shell, 1000)]
                    async with workers("idle", (half, half), [each.id for each in idle_sandboxes], environment):
                        beside = await latency.shell_round_trip(shell)
                    around.append(await latency.shell_round_trip(shell, 1000))
                take(latency.p12(latency.joined(around), beside, _IDLE_SESSIONS))
            if spent:
                print(cpu.table(spent))
    return sorted(taken, key=lambda figure: _ALL.index(_asked(figure)))


def _asked(figure: figures.Figure) -> str:
    """The name that selects a figure: P1, P3, P7, P9, P11, P13, P18 and PE are several figures."""
    name = figure.id.upper()
    return name if name in _ALL else name[:-1]


def _gateway_pid(stack: EmbeddedStack) -> int:
    return int((stack.data / "run" / "gateway.pid").read_text())


@asynccontextmanager
async def _idle_sandboxes(client: AsyncSandboxClient) -> AsyncIterator[list[AsyncSandbox]]:
    """The sandboxes for many idle sessions."""
    async with AsyncExitStack() as several:
        yield [await several.enter_async_context(await client.create_sandbox("host", cpu="1", memory="512Mi")) for _ in range(20)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description="Speed and memory beside their floors.")
    parser.add_argument("--only", default=",".join(_ALL), help=f"some of {','.join(_ALL)}")
    parser.add_argument("--many", type=int, default=many.COUNT, metavar="N", help=f"sandboxes of P7 (default: {many.COUNT})")
    parser.add_argument("--output", type=Path, default=Path("bench.json"), help="where to write (default: bench.json)")
    parser.add_argument(
        "--page", type=Path, default=Path("build/bench"), help="the folder of the page with pictures (default: build/bench)"
    )
    options = parser.parse_args()
    wanted = set(options.only.upper().split(","))
    if "P15" in wanted and not previews.is_installed():
        print("P15 is left out: it needs nginx (Debian: apt-get install nginx-light)")
        wanted.discard("P15")
    if unknown := wanted - set(_ALL):
        parser.error(f"no such figure: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory(prefix="hf-bench-") as folder, running_stack(Path(folder)) as stack:
        print(f"measuring on {stack.url} …", flush=True)
        taken = asyncio.run(measure(stack, wanted, options.many))
    machine = figures.machine()
    print(f"\n{machine['cores']} cores of {machine['cpu']}, Linux {machine['kernel']}, Python {machine['python']}\n")
    print(figures.table(taken))
    made = page.write_figures(options.page, figures.write(options.output, taken))
    missed = [figure.id for figure in taken if not figure.ok]
    missed += sorted(wanted - {_asked(figure) for figure in taken})
    print(f"\n{options.output}, {made}: {len(taken)} figures{', missed: ' + ', '.join(missed) if missed else ', all within their budgets'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
