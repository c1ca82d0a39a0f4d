"""The second file for ``locust -f``, with ``--shape``: the number of users follows one of ``shapes``.

Owns the clock and the rate at which users start. It reads locust's own ``--users`` (the peak) and ``--run-time``.
"""

from __future__ import annotations

import math

from locust import LoadTestShape
from locust.util.timespan import parse_timespan

from loadtest.shapes import SHAPES

DEFAULT_DURATION_S = 60.0
FASTEST = 100.0
"""Users started per second; locust warns beyond it."""


class Shape(LoadTestShape):
    """``--users`` is the peak, ``--run-time`` the length; the run ends with it."""

    use_common_options = True

    def tick(self) -> tuple[int, float] | None:
        """Locust asks once a second."""
        options = self.runner.environment.parsed_options if self.runner is not None else None
        assert options is not None
        peak = options.num_users or 1
        wanted = options.run_time
        duration_s = float(parse_timespan(wanted) if isinstance(wanted, str) else wanted or DEFAULT_DURATION_S)
        passed = self.get_run_time() / duration_s
        if passed >= 1:
            return None
        return max(1, math.ceil(SHAPES[options.shape](passed) * peak)), max(1.0, min(float(peak), FASTEST))
