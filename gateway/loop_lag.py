"""How late the event loop of this process is: what a busy or blocked loop costs everything that it serves.

Owns the measurement, four times a second. Called by the lifespans of gateway and controller.
"""

from __future__ import annotations

import asyncio
from typing import Final

from gateway.metrics import Metrics

_EVERY_S: Final = 0.25


async def measure_lag(metrics: Metrics) -> None:
    """Measure until cancelled."""
    clock = asyncio.get_running_loop().time
    observe = metrics.histogram("loop_lag_seconds")
    while True:
        due = clock() + _EVERY_S
        await asyncio.sleep(_EVERY_S)
        observe(max(clock() - due, 0.0))
