"""Load shapes: the share of the peak number of users, 0 to 1, when a share of the run, 0 to 1, is over. ``shapefile`` follows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

SHAPES: Mapping[str, Callable[[float], float]] = {
    # A linear rise for four fifths of the run, then the peak.
    "ramp": lambda passed: min(passed / 0.8, 1.0),
    # Five equal steps up, each a fifth of the run, to find the knee.
    "step": lambda passed: (int(passed * 5) + 1) / 5,
    # A tenth of the peak, the peak for the middle fifth of the run, a tenth again, to see the recovery.
    "spike": lambda passed: 1.0 if 0.4 <= passed < 0.6 else 0.1,
    # A rise within a twentieth of the run, then the peak until its end, to find growth.
    "soak": lambda passed: min(passed / 0.05, 1.0),
}
