"""The page of results as one HTML file: the text and tables of `tables`, with charts of the same figures (`report`) under each heading.

Owns which charts there are, and the few forms of Markdown that `tables` writes. Marks and the frame of the page are the recipes' own
(`pipeline.charts`, `pipeline.pages`); nothing is fetched when it is opened.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from holdfast_recipes.pipeline import charts, pages
from holdfast_recipes.pipeline.charts import Bar, Point, Series

from . import tables

Figures = list[tuple[str, str]]


def page(made: Mapping[str, Any]) -> str:
    """The whole file."""
    title, body = "Results", list[str]()
    for block in re.split(r"\n{2,}", tables.page(made).strip()):
        if block.startswith("# "):
            title = block[2:]
        elif block.startswith("## "):
            body.append(f"<h2>{_inline(block[3:])}</h2>{_grid(_figures(block[3:], made))}")
        elif block.startswith("|"):
            body.append(_table(block.splitlines()))
        else:
            body.append(f"<p>{_inline(block)}</p>")
    return pages.document(title, "", "".join(body))


def _inline(text: str) -> str:
    """An estimate stays on a line with its interval."""
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(" ".join(text.split())))
    return re.sub(r"(-?\d[\d.]*) \[(-?[\d.]+), (-?[\d.]+)\]", r"\1&nbsp;[\2,&nbsp;\3]", marked)


def _table(lines: Sequence[str]) -> str:
    head, _, *rows = ([cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in lines)
    return pages.table([_inline(cell) for cell in head], [[_inline(cell) for cell in row] for row in rows])


def _grid(figures: Figures) -> str:
    return pages.grid(figures) if figures else ""


def _figures(heading: str, made: Mapping[str, Any]) -> Figures:
    """Those of a section, by its heading."""
    if heading.startswith("E1") and "first" not in heading:
        return list(_repair(made["e1"]))
    if heading.startswith("E1"):
        return [
            ("Differences, paired over tasks", charts.intervals(_differences(made["e1_first"]), x="difference (95 % interval)", zero=True))
        ]
    name = next((name for name, title in (tables.CREDIT | tables.BALANCE).items() if title == heading), None)
    if name is None or name not in made["experiments"]:
        return []
    arms = made["experiments"][name]
    return list(_credit(arms) if name in tables.CREDIT else _balance(arms))


def _differences(made: Mapping[str, Any]) -> list[Bar]:
    return [Bar(name, *each["interval"]) for name, each in made["differences"].items() if each and "held" not in name]


def _repair(made: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    arms = made["arms"]
    levels = {"SFT": made["sft"], **{f"RL, {name}": arm for name, arm in arms.items()}}
    bars = [Bar(name, *each["interval"]) for name, each in levels.items() if each.get("interval")]
    if bars:
        yield "Solved, train functions", charts.intervals(bars, x="share of rollouts that solved their task (95 % interval)")
    yield "Differences, paired over tasks", charts.intervals(_differences(made), x="difference (95 % interval)", zero=True)
    curves = {name: arm["learning"] for name, arm in arms.items() if arm.get("learning")}
    if curves:
        caption = "Rollouts of training that solved their task (band: seeds)"
        by_update = [Series(name, [_point(index + 1, each) for index, each in enumerate(points)]) for name, points in curves.items()]
        yield f"{caption}, by update", charts.lines(by_update, x="update", y="solved", low=0.0)
        by_rollout = [Series(name, [_point(each["generated"], each) for each in points]) for name, points in curves.items()]
        yield f"{caption}, by rollouts", charts.lines(by_rollout, x="rollouts generated, of a seed", y="solved", low=0.0)
    speeds = [arm["rollouts_per_second"] for arm in arms.values()]
    yield "Rollouts per second, of one seed of three that ran side by side", charts.bars(list(arms), {"rollouts/s": speeds}, x="", y="1/s")
    yield "Where the seconds of a step went", charts.bars(list(arms), _seconds(arms), x="", y="seconds of a step")


def _seconds(arms: Mapping[str, Any]) -> dict[str, list[float]]:
    """Of a step's wall time: what is Holdfast's, the commands, the policy, and the rest."""
    shares = {
        "Holdfast: sandboxes": ("create", "delete"),
        "Holdfast: round trips": ("round trips",),
        "commands": ("commands",),
        "policy": ("policy",),
    }
    made: dict[str, list[float]] = {name: [] for name in (*shares, "waiting")}
    for arm in arms.values():
        whole, of = arm["seconds_of_a_step"], arm["shares_of_a_rollout"]
        for name, parts in shares.items():
            made[name].append(round(whole * sum(of[part] for part in parts), 2))
        made["waiting"].append(round(max(0.0, whole * (1 - sum(share for part, share in of.items() if part != "holdfast"))), 2))
    return made


def _point(x: float, each: Mapping[str, float]) -> Point:
    return Point(x, each["solved"], each["low"], each["high"])


def _credit(arms: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield (
        "Solved",
        charts.intervals(
            [Bar(name, *(row.get("over_seeds") or row["solved"])) for name, row in arms.items()], x="share solved (95 % interval)"
        ),
    )
    differences = {name: row.get("solved_over_control_nested") or row.get("solved_over_control") for name, row in arms.items()}
    over = [Bar(name, *difference) for name, difference in differences.items() if difference]
    if over:
        yield "Over resolved runs only, paired over tasks", charts.intervals(over, x="difference (95 % interval)", zero=True)


def _balance(arms: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    full = {name: row for name, row in arms.items() if "curve" in row}
    if not full:
        return
    for key, words in (("updates", "updates"), ("generated", "rollouts generated")):
        series = [Series(name, [Point(point[key], point["solved"]) for point in row["curve"]]) for name, row in full.items()]
        yield f"Solved, by {words}", charts.lines(series, x=words, y="solved", low=0.0)
    yield "Solved after the last update", charts.intervals([Bar(name, *row["solved"]) for name, row in full.items()], x="share solved")
    differences = {name: row.get("solved_over_fixed_nested") or row.get("solved_over_fixed") for name, row in full.items()}
    over = [Bar(name, *difference) for name, difference in differences.items() if difference]
    if over:
        yield "Over fixed groups, paired over tasks", charts.intervals(over, x="difference (95 % interval)", zero=True)
    yield (
        "Rollouts generated, and groups trained on that are balanced",
        charts.bars([*full], {"rollouts": [row["generated"] for row in full.values()]}, x="", y="rollouts"),
    )
