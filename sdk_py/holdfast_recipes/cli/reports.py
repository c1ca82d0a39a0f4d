"""``holdfast recipes eval``, ``agree`` and ``report``: success rates, agreement of values, and one HTML page of everything.

Owns arguments, and which files are read. Rates are in ``pipeline.evaluate``, the page in ``pipeline.pages``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from holdfast_recipes.core.records import from_json
from holdfast_recipes.core.trajectory import Trajectory
from holdfast_recipes.pipeline import files, pages, runs
from holdfast_recipes.pipeline.agreement import agreement
from holdfast_recipes.pipeline.errors import SettingError
from holdfast_recipes.pipeline.evaluate import Prices, Report, compare, dumped, text
from holdfast_recipes.pipeline.evaluate import evaluate as evaluated


def add_evaluate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", metavar="RUN", type=Path, help="a run's folder, a data set, or a file of trajectories")
    parser.add_argument("--k", type=int, nargs="+", default=[1], metavar="K", help="pass@K for each (1)")
    parser.add_argument("--against", type=Path, metavar="RUN", help="also the paired difference to this run, over the tasks of both")
    parser.add_argument("--confidence", type=float, default=0.95, help="of the intervals (%(default)s)")
    parser.add_argument("--sandbox-hour", type=float, default=0.0, metavar="USD", help="price of a sandbox for an hour")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write the HTML page")


def evaluate(arguments: argparse.Namespace) -> int:
    report = _report(arguments.runs, arguments)
    other = _report(arguments.against, arguments) if arguments.against else None
    found = compare(report, other) if other else None
    if arguments.html:
        reports = [report, *([other] if other else [])]
        arguments.html.write_text(pages.page(pages.Content(f"Evaluation of {report.name}", reports=reports)))
    print(dumped(report, found) if arguments.json else text(report, found))
    return 0


def _report(path: Path, arguments: argparse.Namespace) -> Report:
    if not 0 < arguments.confidence < 1:
        raise SettingError(f"a confidence must be between 0 and 1, not {arguments.confidence}")
    prices = Prices(arguments.sandbox_hour)
    attempts = runs.attempts(path) if path.is_dir() else None
    return evaluated(_all_of(path), name=path.name, ks=arguments.k, attempts=attempts, prices=prices, confidence=arguments.confidence)


def _all_of(path: Path) -> Iterator[Trajectory]:
    """Those that infrastructure spoiled too, which the report counts apart."""
    yield from files.trajectories(path)
    if path.is_dir():
        yield from map(from_json, runs.faults(path))


def _slim(path: Path) -> Iterator[Trajectory]:
    """Of runs with values what the page shows."""
    for run in files.trajectories(path):
        if run.values is not None:
            yield replace(run, messages=(), tools=(), tokens=None)


def add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the page to write")
    parser.add_argument("--steps", action="append", default=[], metavar="NAME=FILE", help="a training run: JSON lines, one per update")
    parser.add_argument("--runs", type=Path, metavar="PATH", help="annotated or curated trajectories, for value curves")
    parser.add_argument("--eval", action="append", default=[], type=Path, metavar="RUN", help="a run whose success rates are shown")
    parser.add_argument("--k", type=int, nargs="+", default=[1], metavar="K", help="pass@K of those (1)")
    parser.add_argument("--title", default="Recipes on Holdfast", help="of the page (%(default)s)")
    parser.add_argument("--note", default="", help="a sentence under the title")


def report(arguments: argparse.Namespace) -> int:
    steps = {}
    for word in arguments.steps:
        name, separator, path = word.partition("=")
        if not separator or not name or name in steps:
            raise SettingError(f"--steps must be written NAME=FILE, each name once, not {word!r}")
        steps[name] = [record for _, record in files.lines(Path(path))]
    arguments.confidence, arguments.sandbox_hour = 0.95, 0.0
    content = pages.Content(
        arguments.title,
        steps,
        list(_slim(arguments.runs)) if arguments.runs else (),
        [_report(path, arguments) for path in arguments.eval],
        arguments.note,
    )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(pages.page(content))
    shown = {
        "file": str(arguments.out),
        "training_runs": len(steps),
        "trajectories": len(content.runs),
        "evaluations": len(content.reports),
    }
    print(json.dumps(shown) if arguments.json else f"wrote {arguments.out}")
    return 0


def add_agree(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("first", metavar="FILE", type=Path, help="runs annotated by one estimator")
    parser.add_argument("second", metavar="OTHER", type=Path, help="the same runs, annotated by another")


def agree(arguments: argparse.Namespace) -> int:
    found = agreement(files.trajectories(arguments.first), files.trajectories(arguments.second))
    if arguments.json:
        print(json.dumps(found.to_json(), indent=2))
        return 0
    rho = found.correlation
    shown = "no run has a rank correlation" if rho is None else f"rank correlation {rho.estimate:.2f} [{rho.low:.2f}, {rho.high:.2f}]"
    print(f"{found.runs} runs: {shown}" + (f"; {found.constant} without, one side being constant" if found.constant else ""))
    print(f"curves that rise, then fall: {found.inverted_u[0]:.1%} and {found.inverted_u[1]:.1%}")
    return 0
