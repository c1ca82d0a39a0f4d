"""A tenth of the peak, the peak for the middle fifth of the run, a tenth again, to see the recovery."""

from __future__ import annotations

from loadtest.shapes.base import TimedShape


class Spike(TimedShape):
    """See the module."""

    def share(self, passed: float) -> float:
        return 1.0 if 0.4 <= passed < 0.6 else 0.1
