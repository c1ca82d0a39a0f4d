"""Detects growth in a soak: a trend in the readings of ``footprint`` after the warm-up. Pure functions without I/O.

Owns the rule. A number grows when it rises by more than its allowance, by the median of all slopes between two moments (Theil and Sen),
and rises in most of these pairs: noise and a single step are no trend. The first third of a run is warm-up. ``python -m loadtest.growth
FILE.csv`` judges a file again.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import median

from loadtest.footprint import AGENT, STACK

WARM_UP = 1 / 3
MIN_SAMPLES = 20
_MOMENTS = 40
_RISING = 0.7
_COVERED = 0.9
_MIB = 1 << 20
_WORK = "creates_total"
_REDIS_BYTES = 1024
"""Redis keeps the end of each sandbox for an hour and the name of each create for a day, in some 500 bytes."""
_LOCUST_BYTES_PER_S = 2560
"""Locust keeps a count of each name for each second of the run, some 100 bytes."""
ALLOWED: Mapping[str, tuple[float, float]] = {"memory_bytes": (0.03, 4 * _MIB), "mounts": (0.0, 0.5), "threads": (0.0, 0.5)}
"""By measure: as a share of the first value, and at least. A heap settles late, at a level that the largest transfers set. Others may rise
by a tenth and at least by 5: load comes and goes."""
_OTHERS = (0.1, 5.0)

Sample = tuple[float, str, int, str, float]
"""Seconds since the start, process, pid, measure, value."""


@dataclass(frozen=True, slots=True)
class Growth:
    """One measure of one process between the end of the warm-up and the end of the run."""

    process: str
    pid: int
    measure: str
    first: float
    last: float
    rise: float
    rising: float
    """The share of pairs of moments of which the later one is higher."""
    kept: float = 0.0
    """How much data may remain for each finished request."""

    @property
    def allowed(self) -> float:
        share, least = ALLOWED.get(self.measure, _OTHERS)
        return self.kept + max(least, share * self.first)

    @property
    def is_growing(self) -> bool:
        return self.rise > self.allowed and self.rising > _RISING


def judged(samples: Iterable[Sample]) -> list[Growth]:
    """Every series that covers the judged part of the run; none where the run was too short to judge."""
    series: dict[tuple[str, int, str], list[tuple[float, float]]] = defaultdict(list)
    end = 0.0
    for seconds, process, pid, measure, value in samples:
        series[process, pid, measure].append((seconds, value))
        end = max(end, seconds)
    begin = end * WARM_UP
    found = []
    for (process, pid, measure), points in series.items():
        points = [point for point in points if point[0] >= begin]
        if len(points) >= MIN_SAMPLES and points[-1][0] - points[0][0] >= _COVERED * (end - begin):
            found.append(_growth(process, pid, measure, points))
    creates = sum(row.rise for row in found if row.measure == _WORK)
    kept = {"redis": _REDIS_BYTES * creates, "locust": _LOCUST_BYTES_PER_S * (end - begin)}
    return [
        replace(row, kept=kept[row.process]) if row.process in kept and row.measure == "memory_bytes" else row
        for row in found
        if row.measure != _WORK
    ]


def _growth(process: str, pid: int, measure: str, points: Sequence[tuple[float, float]]) -> Growth:
    size = max(1, len(points) // _MOMENTS)
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    moments = [(median(time for time, _ in group), median(value for _, value in group)) for group in groups]
    pairs = [(later[1] - earlier[1]) / (later[0] - earlier[0]) for earlier, later in combinations(moments, 2)]
    tenth = max(1, len(points) // 10)
    return Growth(
        process,
        pid,
        measure,
        first=median(value for _, value in points[:tenth]),
        last=median(value for _, value in points[-tenth:]),
        rise=median(pairs) * (points[-1][0] - points[0][0]),
        rising=sum(slope > 0 for slope in pairs) / len(pairs),
    )


def broken(samples: Sequence[Sample]) -> list[str]:
    """One sentence for each process that grew or was started again."""
    found = []
    pids: dict[str, set[int]] = defaultdict(set)
    for _, process, pid, _, _ in samples:
        pids[process].add(pid)
    for process, several in pids.items():
        if len(several) > 1 and process != AGENT:
            found.append(f"{process} was started again: it had {len(several)} process ids")
    rows = judged(samples)
    if not rows:
        return [*found, f"the run was too short to judge growth: fewer than {MIN_SAMPLES} samples in its last two thirds"]
    for row in rows:
        if row.is_growing:
            name = row.process if row.process == STACK else f"{row.process} ({row.pid})"
            found.append(
                f"{name}: {row.measure} rose by {_number(row.measure, row.rise)} from {_number(row.measure, row.first)}:"
                f" more than {_number(row.measure, row.allowed)}"
            )
    return found


def table(samples: Sequence[Sample]) -> str:
    """A row for each measure; of the agents, the one that rose most."""
    rows = judged(samples)
    agents = [row for row in rows if row.process == AGENT]
    shown = [row for row in rows if row.process != AGENT]
    measures = dict.fromkeys(row.measure for row in agents)
    shown += [max((row for row in agents if row.measure == measure), key=lambda row: row.rise) for measure in measures]
    names = {row.pid for row in agents}
    lines = [f"{'process':<18}{'measure':<14}{'first':>12}{'last':>12}{'rise':>12}{'allowed':>12}"]
    for row in shown:
        name = f"{AGENT}, of {len(names)}" if row.process == AGENT else row.process
        values = (row.first, row.last, row.rise, row.allowed)
        cells = "".join(f"{_number(row.measure, value):>12}" for value in values)
        lines.append(f"{name:<18}{row.measure.removesuffix('_bytes'):<14}{cells}{'  grows' if row.is_growing else ''}")
    return "\n".join(lines)


def _number(measure: str, value: float) -> str:
    return f"{value / _MIB:.1f} MiB" if measure == "memory_bytes" else f"{value:.4g}"


def load(path: Path) -> list[Sample]:
    """The samples of a file that ``watch`` wrote."""
    with path.open(newline="") as file:
        return [
            (float(row["seconds"]), row["process"], int(row["pid"]), row["measure"], float(row["value"])) for row in csv.DictReader(file)
        ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m loadtest.growth", description="Judge the samples of a soak again.")
    parser.add_argument("file", metavar="FILE.csv", type=Path, help="build/load/footprint.csv of a soak")
    try:
        loaded = load(parser.parse_args().file)
    except (OSError, ValueError, KeyError) as error:
        parser.error(f"this is not the footprint.csv of a soak: {error}")
    print(table(loaded))
    sentences = broken(loaded)
    print("\n".join(f"threshold: {sentence}" for sentence in sentences))
    sys.exit(1 if sentences else 0)
