"""Chaos scenario: tens of thousands of appends while connections are cut between any two frames, on both sides of the gateway.

Sessions of several sandboxes run through proxies with different faults; two of the sandboxes also have a proxy between gateway and
agent. At the end the checker must find no duplicates and no lost acknowledgements.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

from holdfast import AsyncSandboxClient

from session_agent.node.settings import from_environment
from tests.support.stack import Stack

from .context import IMAGE, Context, Replicas, check_all, settle, watch
from .history import History
from .load import Appender
from .proxy import FaultProxy, Weather
from .report import Outcome

COMMANDS = 30_000
SANDBOXES = 6
SESSIONS = 24
WEATHERS = (
    Weather(cut_every_bytes=3_000),
    Weather(cut_every_bytes=6_000, split=True, delay_s=0.001),
    Weather(cut_every_bytes=4_000, linger=0.5),
    Weather(lose=0.05),
)
INSIDE = Weather(cut_every_bytes=20_000, linger=0.3)
"""The faults between gateway and agent."""


async def run(context: Context, replicas: Replicas, outcome: Outcome, seconds: float) -> None:
    """Run all ``COMMANDS`` if there is time; a full run always completes them."""
    stack = replicas.stack
    started = time.monotonic()
    with contextlib.ExitStack() as stacked:
        outside = [
            stacked.enter_context(FaultProxy(stack.url.replace("http", "tcp"), seed=context.seed + n, weather=weather))
            for n, weather in enumerate(WEATHERS)
        ]
        direct = AsyncSandboxClient(stack.url, stack.key)
        made = [await direct.create_sandbox(IMAGE) for _ in range(SANDBOXES)]
        inside = [stacked.enter_context(interposed(context, stack, sandbox.id)) for sandbox in made[:2]]
        clients = [AsyncSandboxClient(proxy.url, stack.key) for proxy in outside]
        histories = {sandbox.id: History() for sandbox in made}
        left = [COMMANDS]

        def more() -> bool:
            left[0] -= 1
            return left[0] >= 0 and (context.full or time.monotonic() - started < seconds)

        sandboxes = [clients[n % len(clients)].get_sandbox(made[n % SANDBOXES].id) for n in range(SESSIONS)]
        appenders = [
            Appender(f"s{n}", sandbox, histories[sandbox.id], by_exec=n % 4 == 3, rng=context.rng("appends", n))
            for n, sandbox in enumerate(sandboxes)
        ]
        tasks = [asyncio.create_task(appender.run(more), name=appender.name) for appender in appenders]
        try:
            await watch(context, "appends", tasks, appenders, [*outside, *inside])
        finally:
            for task in tasks:
                task.cancel()
        check_all(outcome, stack.data, histories)
        settle(outcome, appenders, [*outside, *inside])
        for proxy in (*outside, *inside):
            proxy.weather = Weather()
        await asyncio.gather(*[sandbox.close() for sandbox in sandboxes])
        await asyncio.gather(*[sandbox.delete() for sandbox in made])
        for client in (*clients, direct):
            await client.close()
    outcome.seconds = time.monotonic() - started
    outcome.notes["commands a second"] = round(outcome.commands / outcome.seconds)


def interposed(context: Context, stack: Stack, sandbox_id: str) -> FaultProxy:
    """A proxy between the gateways and one agent: the agent's socket is renamed, and the proxy listens under its old name."""
    socket = Path(from_environment({"HOLDFAST_DATA": str(stack.data)}).agent_socket(sandbox_id))
    behind = socket.with_suffix(".behind")
    socket.rename(behind)
    return FaultProxy(f"unix://{behind}", seed=context.seed, weather=INSIDE, listen_unix=str(socket))
