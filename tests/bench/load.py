"""One load process: a share of the sessions, each busy or attached and idle.

Owns a client process of P2, P3, P9, P12 and P16. Started as `python -m tests.bench.load busy|recorded|traced|idle|proto COUNT BEFORE
WHERE`, with BEFORE as the number of sessions in earlier processes; prints `ready` once every session has run a command. After a line
`go SECONDS PERIOD` it works for SECONDS (each session begins a command every PERIOD seconds, or with 0 as soon as the last
one ended), and answers with one JSON line. Ends when its standard input ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from holdfast import AsyncSandboxClient, AsyncShell

from tests.bench import prototype
from tests.bench.figures import percentile

_ATTACH_AT_ONCE = 16


async def _loops(work: list[Callable[[], Awaitable[object]]], seconds: float, period_s: float) -> dict[str, object]:
    latencies: list[float] = []
    end = time.perf_counter() + seconds

    async def loop(one: Callable[[], Awaitable[object]], phase: float) -> None:
        due = time.perf_counter() + phase * period_s
        while due < end:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            began = time.perf_counter()
            await one()
            after = time.perf_counter()
            latencies.append(after - began)
            due = max(after, due + period_s)

    started = time.perf_counter()
    await asyncio.gather(*(loop(one, index / len(work)) for index, one in enumerate(work)))
    elapsed = time.perf_counter() - started
    return {"commands": len(latencies), "seconds": elapsed, "p50": percentile(latencies, 0.5), "p99": percentile(latencies, 0.99)}


async def _line() -> str:
    return await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


async def _work(work: list[Callable[[], Awaitable[object]]]) -> None:
    print("ready", flush=True)
    while line := await _line():
        _, seconds, period_s = line.split()
        print(json.dumps(await _loops(work, float(seconds), float(period_s))), flush=True)


def _make_spans() -> None:
    """Make spans as for an exporter, and drop them there."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class Dropped(SpanExporter):
        def export(self, spans: object) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Dropped()))
    trace.set_tracer_provider(provider)


async def _busy(count: int, *, record: bool, tracing: bool = False) -> None:
    """`count` sandboxes with one session and one shell each. `record`: they are recorded, `tracing`: their commands are traced."""
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(AsyncSandboxClient(tracing=tracing))
        work: list[Callable[[], Awaitable[object]]] = []
        for _ in range(count):
            sandbox = await stack.enter_async_context(await client.create_sandbox("host", cpu="2", memory="256Mi", record=record))
            shell = await sandbox.shell()
            await shell.run("true")
            work.append(partial(_true, shell))
        await _work(work)


async def _true(shell: AsyncShell) -> None:
    result = await shell.run("true")
    assert result.exit_code == 0, result  # a command that fails would be fast


async def _idle(count: int, sandbox_ids: list[str]) -> None:
    """`count` sessions over the given sandboxes, each attached by its own client."""
    gate = asyncio.Semaphore(_ATTACH_AT_ONCE)
    async with contextlib.AsyncExitStack() as stack:

        async def attach(sandbox_id: str) -> None:
            async with gate:
                client = await stack.enter_async_context(AsyncSandboxClient())
                sandbox = client.get_sandbox(sandbox_id)
                result = await sandbox.exec(["true"])
                assert result.exit_code == 0, result

        await asyncio.gather(*(attach(sandbox_ids[index % len(sandbox_ids)]) for index in range(count)))
        await _work([])


async def _proto(count: int, folder: Path, first: int) -> None:
    """`count` connections to agents of the prototype, from number `first`."""
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(prototype.client(folder, first + number)) for number in range(count)]
        for client in clients:
            await client.true()
        await _work([client.true for client in clients])


if __name__ == "__main__":
    kind, number, before, *where = sys.argv[1:]
    if kind in ("busy", "recorded", "traced"):
        if kind == "traced":
            _make_spans()
        asyncio.run(_busy(int(number), record=kind != "busy", tracing=kind == "traced"))
    elif kind == "idle":
        asyncio.run(_idle(int(number), where))
    else:
        asyncio.run(_proto(int(number), Path(where[0]), int(before)))
