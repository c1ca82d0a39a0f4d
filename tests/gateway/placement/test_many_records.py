"""A hundred thousand records in a real Redis: what a page, a request and a controller's pass cost beside few records (``make soak``).

Sandboxes are simulated: records of the real store and entries of a runtime in memory, of which the controller's reconciler compares all.
``HOLDFAST_RECORDS`` sets another number for the largest stage.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import time
from pathlib import Path
from typing import Any

import pytest

from gateway.controller.reconciler import Reconciler
from gateway.model.names import id_of
from gateway.model.records import SandboxSpec
from tests.gateway.harness import ADA, MemoryRuntime, Served, serve
from tests.support.requires import requires

pytestmark = [requires("redis"), pytest.mark.timeout(1800)]

ADAS = 1000
MOST = int(os.environ.get("HOLDFAST_RECORDS", "100000"))
STAGES = (1000, MOST // 10, MOST)
_AT_ONCE = 200
_ROUNDS = 40


async def test_many_records_cost_a_request_nothing(redis_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with serve(redis_url, tmp_path) as served:
        reconciler = Reconciler(served.store, served.runtime, 60.0)
        table = []
        made = 0
        for stage in STAGES:
            await fill(served, served.runtime, made, stage)
            made = stage
            gc.collect()
            gc.freeze()  # the simulated runtime is in this process: the collector must not walk it during the measurements
            table.append(await measured(served, reconciler, stage))
        gc.unfreeze()
        few, tenth, most = table
        with capsys.disabled():
            print()
            for row in table:
                print("  ".join(f"{name} {value:.3f}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items()))
        assert most["cpu_ms"] <= 1.5 * few["cpu_ms"], "of gateway and client; what Redis does is counted in commands, below"
        assert most["pass_s"] <= 12 * tenth["pass_s"]
        assert most["steps"] <= few["steps"] * 1.2, "a request path that walks records would send more to Redis"
        assert most["grown_mib"] <= 32


async def fill(served: Served, runtime: MemoryRuntime, first: int, last: int) -> None:
    """Create and make ready the records from ``first`` to ``last``: ada's, then those of a thousand other owners."""
    for start in range(first, last, _AT_ONCE):
        await asyncio.gather(*(one(served, runtime, number) for number in range(start, min(start + _AT_ONCE, last))))


async def one(served: Served, runtime: MemoryRuntime, number: int) -> None:
    owner, name = ("ada", f"a{number}") if number < ADAS else (f"o{number % 1000}", f"s{number}")
    spec = SandboxSpec(id_of(owner, name), owner, f"{number:016x}", "host", labels={"run": str(number % 7)}, lifetime_s=86400.0)
    await served.store.create(spec, fingerprint=name)
    await served.store.mark_ready(spec.sandbox_id, spec.incarnation, runtime.endpoint)
    runtime.add(spec.sandbox_id, spec.incarnation, owner=owner, lifetime_s=86400.0)


async def measured(served: Served, reconciler: Reconciler, stage: int) -> dict[str, Any]:
    pages = []
    async with served.client(ADA) as ada:
        await requests(ada)
        before, commands = rss_mib(), await sent(served)
        for _ in range(_ROUNDS):
            begun, used = time.perf_counter(), time.process_time()
            answer = await ada.get("/sandboxes", params={"limit": 100})
            pages.append((time.process_time() - used, time.perf_counter() - begun))
            assert len(answer.json()["sandboxes"]) == 100
        await requests(ada)
        steps, grown = await sent(served) - commands, rss_mib() - before
    await reconciler.run_once(1)  # the first pass after a change reads more
    begun = time.perf_counter()
    await reconciler.run_once(1)
    passed_s = time.perf_counter() - begun
    cpu_ms, page_ms = (1000 * min(times) for times in zip(*pages, strict=True))  # other work on the machine only ever adds to them
    return {"records": stage, "cpu_ms": cpu_ms, "page_ms": page_ms, "steps": steps, "pass_s": passed_s, "grown_mib": grown}


async def requests(ada: Any) -> None:
    """One of each kind that finds, selects, makes, changes and ends sandboxes."""
    made = await ada.post("/sandboxes", json={"image": "host", "sandbox_id": "new", "wait": True})
    assert made.status_code == 200, made.text
    assert (await ada.get("/sandboxes/a7")).status_code == 200
    assert len((await ada.get("/sandboxes", params={"label": "run in (1,2)", "limit": 50})).json()["sandboxes"]) > 20
    assert (await ada.patch("/sandboxes/a7", json={"labels": {"x": "1"}})).status_code == 200
    assert (await ada.post("/sandboxes/a7/heartbeat", json={})).status_code == 200
    assert (await ada.get("/limits")).status_code == 200
    assert (await ada.delete("/sandboxes/new")).status_code == 200


async def sent(served: Served) -> int:
    """How many commands Redis has executed, those of scripts included."""
    stats = await served.store._redis.command("INFO", "commandstats")
    text = stats if isinstance(stats, str) else "\n".join(f"{name}:calls={value['calls']}," for name, value in stats.items())
    return sum(int(part.partition("calls=")[2].partition(",")[0]) for part in text.splitlines() if "calls=" in part)


def rss_mib() -> float:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
