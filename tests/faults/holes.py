"""Chaos scenario: black holes, cuts during the resume, and new connections while the old ones still look alive.

The pings detect a connection that falls silent without closing after 20 s (PROTOCOL §6.2), not earlier and not much later; the
session resumes on a new connection, and the old one is fenced when it works again. A cut during the greeting delays the resume and
has no other effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

from holdfast import AsyncSandbox, AsyncSandboxClient
from holdfast_wire.limits import Timing

from tests.support.until import until_async

from .context import IMAGE, Context, Replicas, check_all, settle, watch
from .history import History
from .load import Appender
from .proxy import FaultProxy, Weather
from .report import Outcome

SESSIONS = 16
STORM = Weather(cut_every_bytes=700, linger=0.3)
"""Most connections are cut before their greeting is complete."""
DETECTED_S = Timing().silence_limit_s + Timing().ping_interval_s + 5.0


async def run(context: Context, replicas: Replicas, outcome: Outcome, seconds: float) -> None:
    """Run at least one black hole, with a storm of cuts before it; that takes half a minute, however little time there is."""
    started, running, stack = time.monotonic(), [True], replicas.stack
    with FaultProxy(*replicas.targets, seed=context.seed) as proxy:
        client = AsyncSandboxClient(proxy.url, stack.key)
        made = [await client.create_sandbox(IMAGE) for _ in range(4)]
        histories = {sandbox.id: History() for sandbox in made}
        handles = [client.get_sandbox(made[n % 4].id) for n in range(SESSIONS)]
        appenders = [
            Appender(f"s{n}", handle, histories[handle.id], by_exec=n % 4 == 3, rng=context.rng(n), pause_s=0.02)
            for n, handle in enumerate(handles)
        ]
        tasks = [asyncio.create_task(appender.run(lambda: running[0])) for appender in appenders]
        watching = asyncio.create_task(watch(context, "holes", tasks, appenders, [proxy]))
        try:
            await _progress(appenders, "the first commands", 30)
            await _storm(proxy, appenders)
            await _black_hole(proxy, appenders, outcome)
            await _both_alive(proxy, handles, appenders, outcome)
            while time.monotonic() - started < seconds:
                await _storm(proxy, appenders)
                await _both_alive(proxy, handles, appenders, outcome)
            running[0] = False
            await watching
        finally:
            for task in (*tasks, watching):
                task.cancel()
        check_all(outcome, stack.data, histories)
        settle(outcome, appenders, [proxy])
        outcome.expect(not outcome.failed + outcome.unknown, f"{outcome.failed} failed and {outcome.unknown} unknown commands")
        await asyncio.gather(*[sandbox.delete() for sandbox in made])
        for handle in handles:
            with contextlib.suppress(OSError):
                await handle.close()
        await client.close()
    outcome.seconds = time.monotonic() - started


async def _progress(appenders: list[Appender], what: str, deadline_s: float) -> None:
    """Wait until every session has got the answer to a command that it sent after this call."""
    before = [appender.done for appender in appenders]
    await until_async(lambda: all(a.done > b + 1 for a, b in zip(appenders, before, strict=True)), deadline_s=deadline_s, what=what)


async def _storm(proxy: FaultProxy, appenders: list[Appender]) -> None:
    """For three seconds, cut most resumes before they are complete."""
    proxy.weather = STORM
    proxy.cut_all()
    await asyncio.sleep(3)  # the duration of the storm
    proxy.weather = Weather()
    await _progress(appenders, "every session to come out of the storm", 40)


async def _black_hole(proxy: FaultProxy, appenders: list[Appender], outcome: Outcome) -> None:
    """All connections fall silent at once; the old ones work again after their sessions moved to new ones."""
    began = time.monotonic()
    proxy.freeze()
    await _progress(appenders, "every session to come out of the black hole", DETECTED_S)
    took_s = time.monotonic() - began
    outcome.notes["seconds in the black hole"] = round(took_s, 1)
    outcome.expect(took_s > Timing().silence_limit_s - Timing().ping_interval_s, f"silence was taken for death after {took_s:.1f} s")
    proxy.thaw()
    await _progress(appenders, "every session to survive the old connections' return", 20)


async def _both_alive(proxy: FaultProxy, handles: list[AsyncSandbox], appenders: list[Appender], outcome: Outcome) -> None:
    """The client drops its connection while gateway and agent still consider it alive; then it works again."""
    proxy.freeze()
    for handle in handles:
        assert handle._driver is not None
        if handle._driver._wire is not None:
            handle._driver._wire.abort()
        outcome.faults["left unnoticed"] += 1
    await _progress(appenders, "every session to resume beside its old connection", 20)
    proxy.thaw()
    await _progress(appenders, "every session to survive the old connections' return", 20)
