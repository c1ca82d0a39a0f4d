"""A linear rise for four fifths of the run, then the peak."""

from __future__ import annotations

from loadtest.shapes.base import TimedShape


class Ramp(TimedShape):
    """See the module."""

    def share(self, passed: float) -> float:
        return min(passed / 0.8, 1.0)
