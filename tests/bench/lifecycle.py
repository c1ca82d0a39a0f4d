"""P6: from the request for a sandbox to the end of its first command."""

from __future__ import annotations

import asyncio
import time

from holdfast import AsyncSandboxClient

from tests.bench import floors
from tests.bench.figures import Figure, at_most, percentile, quartiles

_WARM_UP = 3
_PAUSE_S = 0.2
"""Pause after each, as between episodes: the node prepares later sandboxes in this time, so that figure and floor are undisturbed."""


async def p6(client: AsyncSandboxClient, count: int = 40) -> Figure:
    figures: list[float] = []
    under: list[float] = []
    with floors.EmptyNamespaces() as namespaces:
        for _ in range(count + _WARM_UP):
            under.append(namespaces.sample())
            started = time.perf_counter()
            sandbox = await client.create_sandbox("host", cpu="2", memory="512Mi")
            result = await sandbox.exec("true")
            figures.append(time.perf_counter() - started)
            assert result.exit_code == 0, result
            await sandbox.delete()
            await asyncio.sleep(_PAUSE_S)
    value, floor = (percentile(samples[_WARM_UP:], 0.5) * 1e3 for samples in (figures, under))
    how = (
        f"p50 of {count}, one after the other with {_PAUSE_S:g} s between them, deletion not counted; "
        "floor: user, mount, pid, net, ipc and uts namespaces, mapped, with a first process, made and left"
    )
    return at_most("P6", "create to first command done, p50", value, "ms", floor, 8, 4, how, quartiles(figures[_WARM_UP:], 1e3))
