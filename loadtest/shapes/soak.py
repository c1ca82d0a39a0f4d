"""A rise within a twentieth of the run, then the peak until its end, to find growth."""

from __future__ import annotations

from loadtest.shapes.base import TimedShape


class Soak(TimedShape):
    """See the module."""

    def share(self, passed: float) -> float:
        return min(passed / 0.05, 1.0)
