"""P7w: creates a second while spares of the image are ready, and the CPU time of each process for one of them.

Owns the filling: a burst of creates raises the node's demand for spares, and the next burst begins when all spares are ready. It creates
as many sandboxes at once as there are spares. A create ends when the sandbox is ready; no command runs.
"""

from __future__ import annotations

import asyncio
import re

import httpx
from holdfast import AsyncSandbox, AsyncSandboxClient
from holdfast_server.embed import EmbeddedStack

from tests.bench import many
from tests.bench.figures import Figure, percentile, quartiles
from tests.support.until import until_async

_ROUNDS = 3
_BURST = 100
_MOONSHOT = 200.0
_SPARES = re.compile(r'^holdfast_node_spares\{state="(\w+)"\} ([0-9.]+)$', re.MULTILINE)


async def p7w(client: AsyncSandboxClient, stack: EmbeddedStack) -> Figure:
    """The median of the rounds; the CPU time of each process is that of the median round."""
    rounds: list[tuple[float, int, many.Phase]] = []
    accounts = many.Accounts(stack.data)
    for _ in range(_ROUNDS):
        await _round(client, _BURST, accounts)
        count = await _filled(stack.url)
        phase = await _round(client, count, accounts)
        rounds.append((count / phase.wall_s, count, phase))
    rounds.sort(key=lambda each: each[0])
    rate, count, phase = rounds[_ROUNDS // 2]
    shares = {name: spent / count * 1e3 for name, spent in phase.cpu_s.items()}
    how = f"{count} at once with as many spares; CPU of each {sum(shares.values()):.1f} ms: " + ", ".join(
        f"{name} {share:.1f}" for name, share in shares.items()
    )
    rates = [each[0] for each in rounds]
    return Figure(
        "P7w", "creates a second from ready spares", percentile(rates, 0.5), "/s", _MOONSHOT, rate / _MOONSHOT, "", "200/s", True, how,
        quartiles(rates),
    )  # fmt: skip


async def _round(client: AsyncSandboxClient, count: int, accounts: many.Accounts) -> many.Phase:
    boxes: list[AsyncSandbox] = []

    async def create() -> None:
        boxes.append(await client.create_sandbox("host", cpu="1", memory="256Mi"))

    phases: list[many.Phase] = []
    try:
        await many.phase("create", [create] * count, accounts, phases)
    finally:
        async with asyncio.TaskGroup() as group:
            for box in boxes:
                group.create_task(_delete(box))
    return phases[0]


async def _delete(box: AsyncSandbox) -> None:
    await box.delete()


async def _filled(url: str) -> int:
    """Wait until the node has as many spares as it wants; returns their number."""
    async with httpx.AsyncClient() as http:
        spares: dict[str, float] = {}

        async def ready() -> bool:
            spares.update({state: float(count) for state, count in _SPARES.findall((await http.get(f"{url}/metrics")).text)})
            return spares["ready"] >= spares["wanted"]

        await until_async(ready, deadline_s=120, what="the spares to be filled")
        return int(spares["ready"])
