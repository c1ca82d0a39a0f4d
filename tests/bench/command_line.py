"""PC: how long the command line takes, compared with an interpreter that does nothing.

Owns one figure: `holdfast list` against the bench's own stack, from starting its process to its end.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tests.bench.figures import Figure, at_most, percentile, quartiles

_WARM_UP = 3
_BUDGET = 4.0


def pc(environment: Mapping[str, str], count: int = 50) -> Figure:
    """Measure in turn `python -c pass` and `holdfast list`, with compiled bytecode as after an installation by pip."""
    environment = {name: value for name, value in environment.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [str(Path(sys.executable).with_name("holdfast")), "list"]
    figures: list[float] = []
    under: list[float] = []
    for _ in range(count + _WARM_UP):
        under.append(_timed([sys.executable, "-c", "pass"], environment))
        figures.append(_timed(command, environment))
    value, floor = (percentile(samples[_WARM_UP:], 0.5) * 1e3 for samples in (figures, under))
    how = f"p50 of {count} of `holdfast list` with one request to the gateway, in turn with `python -c pass`"
    return at_most("PC", "`holdfast list`, from start to end", value, "ms", floor, _BUDGET, None, how, quartiles(figures[_WARM_UP:], 1e3))


def _timed(command: list[str], environment: Mapping[str, str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, env=dict(environment), check=True, stdin=subprocess.DEVNULL, capture_output=True)
    return time.perf_counter() - started
