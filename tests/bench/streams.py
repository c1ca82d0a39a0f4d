"""P10: how fast output streams to the SDK, beside a bare relay that moves the same bytes."""

from __future__ import annotations

import time

from holdfast import AsyncSandbox

from tests.bench import prototype
from tests.bench.figures import Figure, at_least

_GIB = 1 << 30
_SHARE = 0.4


async def p10(sandbox: AsyncSandbox, size: int = _GIB) -> Figure:
    with prototype.running() as bare:
        async with prototype.client(bare.folder) as client:
            started = time.perf_counter()
            floor = await client.zeros(size) / (time.perf_counter() - started) / 1e6
    started = time.perf_counter()
    received = 0
    async with await sandbox.start(["head", "-c", str(size), "/dev/zero"]) as process:
        async for chunk in process:
            received += len(chunk.data)
    value = received / (time.perf_counter() - started) / 1e6
    assert received == size, f"{received} of {size} bytes"
    how = f"{size >> 20} MiB of zeros from head(1) through the whole chain; floor: the bare relay, 256 KiB messages"
    return at_least("P10", "output streamed to the SDK", value, "MB/s", floor, _SHARE, None, how)
