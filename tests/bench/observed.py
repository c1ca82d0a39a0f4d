"""``python -m tests.bench.observed``: P16 with everything on: commands a second of fifty sessions with recording, metrics by owner, audit,
JSON logs, quotas and rates, and then with traces too, as shares of those with all of it off.

Owns the three stacks and the order of the rounds: in turn, so that a slow moment of a shared machine falls on all. Prints the median of
the ratios and their range. Spans are made, and dropped where an exporter would send them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import tempfile
from pathlib import Path

from holdfast import AsyncSandboxClient

from tests.bench.workers import Workers, workers
from tests.support.stack import Stack, running_stack

_SHARES = (25, 25)
_ROUND_S = 1.5
_BUDGET = 0.95


def _everything(folder: Path) -> dict[str, str]:
    quotas = {"HOLDFAST_QUOTA_SANDBOXES": "1000", "HOLDFAST_MAX_SANDBOXES": "2000"}
    logs = {"HOLDFAST_AUDIT": str(folder / "audit.jsonl"), "HOLDFAST_LOG_FORMAT": "json", "HOLDFAST_METRICS_OWNERS": "1"}
    return {**quotas, **logs}


async def _limited(stack: Stack) -> None:
    """Rates that no round reaches, so that each request is counted."""
    async with AsyncSandboxClient(stack.url, stack.key) as client:
        await client.limits.set("owner:*", {"requests_per_minute": 10_000_000, "output_bytes_per_minute": 2**50})


async def measure(rounds: int) -> dict[str, list[float]]:
    """Ratios by what is on."""
    async with contextlib.AsyncExitStack() as scope:
        folder = Path(scope.enter_context(tempfile.TemporaryDirectory(prefix="hf-observed-")))
        plain = scope.enter_context(running_stack({"HOLDFAST_RECORDINGS": "off"}))
        observed = scope.enter_context(running_stack(_everything(folder)))
        tracing = {"HOLDFAST_TRACING": "1", "OTEL_TRACES_EXPORTER": "none"}
        traced = scope.enter_context(running_stack({**_everything(folder), **tracing}))
        for stack in (observed, traced):
            await _limited(stack)
        loads: dict[str, Workers] = {
            "off": await scope.enter_async_context(workers("busy", _SHARES, [], plain.environment())),
            "on": await scope.enter_async_context(workers("recorded", _SHARES, [], observed.environment())),
            "on, with traces": await scope.enter_async_context(workers("traced", _SHARES, [], traced.environment())),
        }
        done: dict[str, list[float]] = {name: [] for name in loads}
        for number in range(rounds):
            for name in list(loads) if number % 2 else reversed(loads):
                done[name].append((await loads[name].work(_ROUND_S)).per_second)
    off = done.pop("off")
    return {name: sorted(one / other for one, other in zip(each, off, strict=True)) for name, each in done.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.observed", description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    for name, ratios in asyncio.run(measure(parser.parse_args().rounds)).items():
        middle = ratios[len(ratios) // 2]
        verdict = "ok" if middle >= _BUDGET else "below"
        print(f"P16, {name}: {middle:.3f} of off ({ratios[0]:.3f} to {ratios[-1]:.3f}, {len(ratios)} pairs), budget {_BUDGET}: {verdict}")


if __name__ == "__main__":
    main()
