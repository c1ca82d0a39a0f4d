"""Bugs planted on purpose: a suite of seeded worlds that does not notice one of them proves nothing.

Owns the search for the seed that notices; the bugs and the worlds are those of the test that calls it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

Plant = Callable[[pytest.MonkeyPatch], None]


def expect_caught(
    plant: Plant, patch: pytest.MonkeyPatch, run: Callable[[int], object], seeds: int, errors: tuple[type[Exception], ...]
) -> None:
    """Fail unless the world of one of the first ``seeds`` seeds ends with one of ``errors`` once the bug is planted."""
    plant(patch)
    for seed in range(seeds):
        try:
            run(seed)
        except errors:
            return
    pytest.fail(f"{getattr(plant, '__name__', plant)} survived {seeds} worlds")
