"""``make chaos``: injects faults under load for some minutes, prints progress, and writes a report at the end.

CHAOS_SECONDS bounds the run (default 420), CHAOS_SEED repeats one, CHAOS_FULL=1 runs the full numbers however long they take,
CHAOS_ONLY names scenarios. Writes ``chaos.txt`` and ``chaos.json``. The exit status is 1 after a violation.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path

from tests.support.requires import missing

from . import appends, holes, monkey, report, rolling, seq
from .context import Context, Replicas, replicated_stack
from .report import Outcome

Scenario = Callable[[Context, Replicas, Outcome, float], Coroutine[None, None, None]]
DEFAULT_S = 420.0
SHARES: dict[str, tuple[float, Scenario]] = {
    "appends": (0.22, appends.run),
    "seq": (0.12, seq.run),
    "rolling": (0.27, rolling.rolling),
    "redis": (0.15, rolling.redis_away),
    "monkey": (0.18, monkey.run),
    "holes": (0.08, holes.run),
}
"""Each scenario's share of the time."""
REPLICAS = {"rolling": 3, "redis": 3, "monkey": 2}
"""How many gateways a scenario needs, if more than one."""


def main() -> int:
    argparse.ArgumentParser(prog="make chaos", description=__doc__).parse_args()  # no arguments: any argument is an error
    for need in ("namespaces", "redis", "root"):
        reason = missing(need)
        if reason is not None:
            print(f"chaos needs {need}: {reason}", file=sys.stderr)
            return 2
    started = time.monotonic()
    seconds = float(os.environ.get("CHAOS_SECONDS") or DEFAULT_S)
    seed = int(os.environ.get("CHAOS_SEED") or time.time())
    only = (os.environ.get("CHAOS_ONLY") or ",".join(SHARES)).split(",")

    def log(line: str) -> None:
        print(f"[{time.monotonic() - started:5.0f}] {line}", flush=True)

    context = Context(seed, os.environ.get("CHAOS_FULL", "") not in ("", "0"), log)
    log(f"chaos: {seconds:.0f} s, CHAOS_SEED={seed}, scenarios {', '.join(only)}")
    outcomes: list[Outcome] = []
    for name in only:
        share, scenario = SHARES[name]
        outcomes.append(one(context, name, scenario, share * seconds))
        for line in outcomes[-1].lines():
            log(line)
        report.write(outcomes, Path.cwd())
    print(f"\n{report.text(outcomes)}", flush=True)
    return 1 if any(outcome.violations for outcome in outcomes) else 0


def one(context: Context, name: str, scenario: Scenario, seconds: float) -> Outcome:
    """Run one scenario. An exception that ends it counts as a violation, and the other scenarios still run."""

    outcome = Outcome(name, context.seed)
    try:
        with replicated_stack(REPLICAS.get(name, 1), HOLDFAST_DRAIN_S="4") as replicas:
            asyncio.run(scenario(context, replicas, outcome, seconds))
        outcome.conclude()
    except Exception as broken:
        traceback.print_exc()
        outcome.violations.append(f"broke off: {type(broken).__name__}: {str(broken).partition(chr(10))[0][:300]}")
    return outcome


if __name__ == "__main__":
    sys.exit(main())
