"""P10: how fast output streams to the SDK, compared with a bare relay that moves the same bytes."""

from __future__ import annotations

import time

from holdfast import AsyncSandbox

from tests.bench import prototype
from tests.bench.figures import Figure, at_least, percentile, quartiles

_SIZE_BYTES = 256 << 20
_ROUNDS = 5
_SHARE = 0.4


async def p10(sandbox: AsyncSandbox) -> Figure:
    figures: list[float] = []
    under: list[float] = []
    with prototype.running() as bare:
        async with prototype.client(bare.folder) as client:
            for _ in range(_ROUNDS):
                started = time.perf_counter()
                under.append(await client.zeros(_SIZE_BYTES) / (time.perf_counter() - started) / 1e6)
                figures.append(await _stream(sandbox))
    value, floor = percentile(figures, 0.5), percentile(under, 0.5)
    how = (
        f"median of {_ROUNDS} rounds of {_SIZE_BYTES >> 20} MiB of zeros from head(1) through the whole chain; floor, in turn: the bare "
        "relay, 256 KiB messages"
    )
    return at_least("P10", "output streamed to the SDK", value, "MB/s", floor, _SHARE, None, how, quartiles(figures))


async def _stream(sandbox: AsyncSandbox) -> float:
    started = time.perf_counter()
    received = 0
    async with await sandbox.start(["head", "-c", str(_SIZE_BYTES), "/dev/zero"]) as process:
        async for chunk in process:
            received += len(chunk.data)
    assert received == _SIZE_BYTES, f"{received} of {_SIZE_BYTES} bytes"
    return received / (time.perf_counter() - started) / 1e6
