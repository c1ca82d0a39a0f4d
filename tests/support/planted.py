"""Bugs planted on purpose: a simulation that does not detect one of them proves nothing.

Owns the search for a seed that detects the bug; the calling test provides the bugs and the simulations.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

Plant = Callable[[pytest.MonkeyPatch], None]


def expect_caught(
    plant: Plant, patch: pytest.MonkeyPatch, run: Callable[[int], object], seeds: int, errors: tuple[type[Exception], ...]
) -> None:
    """Fail unless, with the planted bug, ``run`` raises one of ``errors`` for one of the first ``seeds`` seeds."""
    plant(patch)
    for seed in range(seeds):
        try:
            run(seed)
        except errors:
            return
    pytest.fail(f"{getattr(plant, '__name__', plant)} survived {seeds} worlds")
