"""Figures, their budgets and the report. Owns how a measurement is reported; measures nothing.

A budget is a ratio to the floor of the same run wherever a floor exists, since absolute times differ from machine to
machine; where it is absolute (commands a second, memory), `budget` has a unit.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Figure:
    """One row. `budget` and `aim` are text; `ok`: whether the budget is met; `how`: how the figure was taken.

    `spread` is the middle half of the samples that `value` is the median of (lower and upper quartile, in `unit`), None of a single one.
    """

    id: str
    name: str
    value: float
    unit: str
    floor: float | None
    ratio: float | None
    budget: str
    aim: str
    ok: bool
    how: str
    spread: tuple[float, float] | None = None


def at_most(
    number: str,
    name: str,
    value: float,
    unit: str,
    floor: float,
    budget: float,
    aim: float | None,
    how: str,
    spread: tuple[float, float] | None = None,
) -> Figure:
    """A figure whose ratio to its floor must not exceed `budget`."""
    ratio = value / floor
    return Figure(number, name, value, unit, floor, ratio, f"≤ {budget:g}×", f"{aim:g}×" if aim else "", ratio <= budget, how, spread)


def at_least(
    number: str,
    name: str,
    value: float,
    unit: str,
    floor: float,
    budget: float,
    aim: float | None,
    how: str,
    spread: tuple[float, float] | None = None,
) -> Figure:
    """A figure whose ratio to its floor must not fall below `budget`."""
    ratio = value / floor
    return Figure(number, name, value, unit, floor, ratio, f"≥ {budget:g}×", f"{aim:g}×" if aim else "", ratio >= budget, how, spread)


def quartiles(values: Sequence[float], scale: float = 1.0) -> tuple[float, float]:
    """Lower and upper quartile of `values`, each times `scale`."""
    return percentile(values, 0.25) * scale, percentile(values, 0.75) * scale


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile. `share` from 0 to 1."""
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


def table(figures: Sequence[Figure]) -> str:
    """The report, one line a figure."""
    rows = [("", "figure", "value", "middle half", "floor", "ratio", "budget", "aim", "")]
    rows += [
        (
            figure.id,
            figure.name,
            f"{shown(figure.value)} {figure.unit}",
            "" if figure.spread is None else "–".join(map(shown, figure.spread)),
            "" if figure.floor is None else f"{shown(figure.floor)} {figure.unit}",
            "" if figure.ratio is None else f"{figure.ratio:.2f}×",
            figure.budget,
            figure.aim,
            "MISSED" if not figure.ok else "ok" if figure.budget else "",
        )
        for figure in figures
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def shown(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value == 0:
        return "0"
    digits = max(2 - math.floor(math.log10(abs(value))), 0)
    return f"{value:,.{digits}f}"


def machine() -> dict[str, object]:
    """The machine of this run."""
    memory = next(line.split()[1] for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    models = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": int(memory) * 1024,
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def write(path: Path, figures: Sequence[Figure]) -> dict[str, object]:
    """Write and return the report: the machine and every figure."""
    report: dict[str, object] = {"machine": machine(), "figures": [asdict(figure) for figure in figures]}
    path.write_text(json.dumps(report, indent=2) + "\n")
    return report
