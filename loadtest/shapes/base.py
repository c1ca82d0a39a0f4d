"""A shape that is a function of the share of the run that has passed.

Owns the clock and the rate at which users start. Each shape defines its share of the peak.
"""

from __future__ import annotations

import math
from abc import abstractmethod

from locust import LoadTestShape
from locust.util.timespan import parse_timespan

DEFAULT_DURATION_S = 60.0
FASTEST = 100.0
"""Users started per second; locust warns beyond it."""


class TimedShape(LoadTestShape):
    """``--users`` is the peak, ``--run-time`` the length; the run ends with it."""

    abstract = True
    use_common_options = True

    @abstractmethod
    def share(self, passed: float) -> float:
        """The share of the peak, 0 to 1, when ``passed`` (0 to 1) of the run is over."""

    def tick(self) -> tuple[int, float] | None:
        """Locust asks once a second."""
        options = self.runner.environment.parsed_options if self.runner is not None else None
        peak = (options.num_users if options is not None else None) or 1
        wanted = options.run_time if options is not None else None
        duration_s = float(parse_timespan(wanted) if isinstance(wanted, str) else wanted or DEFAULT_DURATION_S)
        passed = self.get_run_time() / duration_s
        if passed >= 1:
            return None
        return max(1, math.ceil(self.share(passed) * peak)), max(1.0, min(float(peak), FASTEST))
