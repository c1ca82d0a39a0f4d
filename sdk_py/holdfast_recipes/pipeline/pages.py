"""One HTML file of a run: learning curves, value curves with their rise segments, balance and cost of groups, evaluations (C2, issue 11).

Owns which charts there are and the page around them; the marks are in ``charts``. It reads what the other stages wrote: steps of the
rollout manager, curated trajectories, reports. Nothing is fetched when it is opened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import accumulate
from typing import Any

from holdfast_recipes.core.trajectory import Trajectory

from . import charts
from .charts import Point, Series
from .evaluate import Report

MOST_CURVES = 12
KINDS = ("balanced", "relaxed", "top")
Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Content:
    """``steps`` by name of the training run: records as ``rollouts.Step.to_json`` gives them, to which a learner may add ``loss``,
    ``reward`` and ``evaluation`` {estimate, low, high}. ``runs`` are annotated trajectories; ``note`` stands under the title."""

    title: str
    steps: Mapping[str, Sequence[Record]] = field(default_factory=dict)
    runs: Sequence[Trajectory] = ()
    reports: Sequence[Report] = ()
    note: str = ""


def page(content: Content) -> str:
    """The whole file."""
    sections = [*_learning(content.steps), *_groups(content.steps), *_values(content.runs), *_evaluations(content.reports)]
    return document(content.title, content.note, "".join(sections) or '<p class="empty">There is nothing to show yet.</p>')


def document(title: str, note: str, body: str) -> str:
    """The frame of a page, around HTML that was made here."""
    lead = f"<p>{escape(note)}</p>" if note else ""
    return _PAGE.replace("{title}", escape(title)).replace("{note}", lead).replace("{body}", body)


def grid(figures: Iterable[tuple[str, str]], wide: bool = False) -> str:
    """Figures with their captions, side by side where there is room."""
    made = "".join(f"<figure><figcaption>{escape(caption)}</figcaption>{figure}</figure>" for caption, figure in figures)
    return f'<div class="grid{" small" if wide else ""}">{made}</div>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are HTML. A wide one scrolls by itself."""
    names = "".join(f"<th>{name}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table></div>'


def _section(title: str, figures: Iterable[tuple[str, str]], text: str = "", wide: bool = False) -> str:
    lead = f"<p>{escape(text)}</p>" if text else ""
    return f"<section><h2>{escape(title)}</h2>{lead}{grid(figures, wide)}</section>"


def _learning(steps: Mapping[str, Sequence[Record]]) -> list[str]:
    figures = []
    for key, caption, low, high in (
        ("evaluation", "Solved", 0.0, 1.0),
        ("reward", "Mean reward of rollouts", None, None),
        ("loss", "Loss", None, None),
    ):
        series = [Series(name, _points(records, key)) for name, records in steps.items()]
        series = [each for each in series if each.points]
        if not series:
            continue
        figures.append((f"{caption}, by update", charts.lines(series, x="update", y=caption, low=low, high=high)))
        if key == "evaluation":
            spent = [Series(name, _points(records, key, by_rollouts=True)) for name, records in steps.items()]
            figures.append((f"{caption}, by rollouts", charts.lines(spent, x="rollouts generated", y=caption, low=low, high=high)))
    return [_section("Learning", figures, "Bands are the intervals that the records carry.")] if figures else []


def _points(records: Sequence[Record], key: str, *, by_rollouts: bool = False) -> list[Point]:
    spent = list(accumulate(int(record.get("counts", {}).get("generated", 0)) for record in records))
    points = []
    for record, generated in zip(records, spent, strict=True):
        value = record.get(key)
        place = float(generated if by_rollouts else record.get("step", 0))
        if isinstance(value, Mapping) and value.get("estimate") is not None:
            points.append(Point(place, float(value["estimate"]), value.get("low"), value.get("high")))
        elif isinstance(value, int | float):
            points.append(Point(place, float(value)))
    return points


def _groups(steps: Mapping[str, Sequence[Record]]) -> list[str]:
    made = []
    for name, records in steps.items():
        if not any(record.get("counts") for record in records):
            continue
        numbers = [str(record.get("step", index + 1)) for index, record in enumerate(records)]
        counts: list[Mapping[str, int]] = [record.get("counts", {}) for record in records]
        kinds = {kind: [each.get(kind, 0) for each in counts] for kind in KINDS}
        reasons = sorted({key for each in counts for key in each if key.startswith("dropped_") and each[key]})
        fates = {"trained on": [len(record.get("groups", ())) for record in records]}
        fates |= {key.removeprefix("dropped_"): [each.get(key, 0) for each in counts] for key in reasons}
        shares = Counter(_share(group) for record in records for group in record.get("groups", ()))
        columns = sorted(shares, key=_fraction)
        figures = [
            ("How groups were assembled", charts.bars(numbers, kinds, x="update", y="groups")),
            ("What became of groups", charts.bars(numbers, fates, x="update", y="groups")),
            (
                "Successes in the groups trained on",
                charts.bars(columns, {"groups": [shares[each] for each in columns]}, x="n₊ of N with loss", y="groups"),
            ),
            ("Rollouts generated per group trained on", charts.lines([Series(name, _cost(records))], x="update", y="rollouts", low=0.0)),
        ]
        speeds = _speeds(records)
        if speeds:
            figures.append(("Rollouts per second", charts.lines([Series(name, speeds)], x="update", y="1/s", low=0.0)))
        seconds = sorted({key for record in records for key in record.get("seconds", {})})
        if seconds:
            layers = {key: [float(record.get("seconds", {}).get(key, 0)) for record in records] for key in seconds}
            figures.append(("Seconds of rollouts by layer", charts.bars(numbers, layers, x="update", y="seconds")))
        events: Counter[str] = Counter()
        for record in records:
            events.update(record.get("events", {}))
        text = "Faults and events: " + (", ".join(f"{key} {count}" for key, count in events.most_common()) or "none") + "."
        made.append(_section(f"Groups of {name}", figures, text))
    return made


def _share(group: Record) -> str:
    return f"{group['positives']}/{group['trained']}"


def _fraction(share: str) -> tuple[float, int]:
    positives, trained = map(int, share.split("/"))
    return (positives / trained if trained else 0.0, trained)


def _cost(records: Sequence[Record]) -> list[Point]:
    points = []
    for index, record in enumerate(records):
        groups = len(record.get("groups", ()))
        if groups:
            points.append(Point(float(record.get("step", index + 1)), record.get("counts", {}).get("generated", 0) / groups))
    return points


def _speeds(records: Sequence[Record]) -> list[Point]:
    """Rollouts generated for each second that a step waited for its batch."""
    return [
        Point(float(record.get("step", index + 1)), record.get("counts", {}).get("generated", 0) / record["wall_s"])
        for index, record in enumerate(records)
        if record.get("wall_s")
    ]


def _values(runs: Sequence[Trajectory]) -> list[str]:
    valued = [run for run in runs if run.values]
    if not valued:
        return []
    risen = sum(bool(run.rises) for run in valued)
    turns = sum(len(run.turns) for run in valued if run.credited is not None)
    credited = sum(len(run.credited or ()) for run in valued)
    text = f"{len(valued)} runs with values, {risen} with rise segments; {credited} of {turns} turns of curated runs get loss (ticks)."
    shown = sorted(valued, key=lambda run: -len(run.rises or ()))[:MOST_CURVES]
    figures = [(run.trajectory_id, charts.value_curve(run.values or (), run.rises or (), run.credited)) for run in shown]
    return [_section("Values and rise segments", figures, text, wide=True)]


def _evaluations(reports: Sequence[Report]) -> list[str]:
    if not reports:
        return []
    rows = []
    for report in reports:
        apart = sum(count for kind, count in report.trials.items() if not kind.counts)
        per = "–" if report.cost.per_solved_usd is None else f"${report.cost.per_solved_usd:.4f}"
        for rate in report.rates:
            if rate.tasks:
                interval = f"{rate.pass_at.estimate:.1%} [{rate.pass_at.low:.1%}, {rate.pass_at.high:.1%}]"
                cells = (report.name or "runs", f"pass@{rate.k}", interval, f"{rate.pass_hat:.1%}", rate.tasks, apart, per)
                rows.append([escape(str(cell)) for cell in cells])
    head = ("what", "rate", "estimate", "pass^k", "tasks", "trials left out", "per solved task")
    return [f"<section><h2>Evaluations</h2>{table(head, rows)}</section>"]


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root { color-scheme: light dark; --ink: #1c2330; --soft: #5b6576; --rule: #dde2ea; --paper: #ffffff; --card: #f7f8fa; --muted: #98a2b3;
  --c0: #2563c9; --c1: #d9662a; --c2: #2a9d6f; --c3: #8d55c9; --c4: #c2406b; --c5: #7d7440; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --soft: #9aa4b5; --rule: #2c3442; --paper: #12161d; --card: #1a202a;
  --muted: #5d687a; --c0: #6fa3f5; --c1: #f0935e; --c2: #5cc99a; --c3: #b78ae8; --c4: #e87a9c; --c5: #b8ad6a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 32px 24px 64px; max-width: 1240px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif; }
h1 { font-size: 25px; line-height: 1.2; margin: 0 0 4px; }
h2 { font-size: 18px; margin: 36px 0 4px; padding-top: 16px; border-top: 1px solid var(--rule); }
p { margin: 4px 0 12px; color: var(--soft); max-width: 80ch; }
.grid { display: grid; gap: 16px; margin-bottom: 12px; grid-template-columns: repeat(auto-fill, minmax(min(100%, 480px), 1fr)); }
.grid.small { grid-template-columns: repeat(auto-fill, minmax(min(100%, 270px), 1fr)); }
figure { margin: 0; padding: 12px 14px; background: var(--card); border: 1px solid var(--rule); border-radius: 8px; min-width: 0; }
figcaption { font-weight: 600; font-size: 14px; margin-bottom: 4px; overflow-wrap: anywhere; }
svg { display: block; width: 100%; height: auto; }
svg .grid { stroke: var(--rule); stroke-width: 1; }
.tick { font-size: 11px; fill: var(--soft); }
.label { font-size: 12px; fill: var(--soft); }
svg .zero { stroke: var(--soft); stroke-width: 1.5; stroke-dasharray: 4 3; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.rise { stroke: var(--c1); stroke-width: 3.5; }
.loss { stroke: var(--c1); stroke-width: 3; }
.band { opacity: .16; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 13px; color: var(--soft); padding: 4px 0 0 52px; }
.legend i { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 6px; }
.empty { font-style: italic; }
.wide { overflow-x: auto; margin: 12px 0 16px; }
code { font-size: 13px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 6px 12px 6px 0; border-bottom: 1px solid var(--rule); }
th { font-size: 13px; color: var(--soft); font-weight: 600; }
</style>
</head>
<body>
<header><h1>{title}</h1>{note}</header>
{body}
</body>
</html>
"""
