"""The HTML page: what it shows, that it fetches nothing, and that numbers at the edges draw."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from holdfast_recipes.pipeline import charts
from holdfast_recipes.pipeline.charts import Bar, Point, Series
from holdfast_recipes.pipeline.evaluate import evaluate
from holdfast_recipes.pipeline.pages import Content, page
from hypothesis import given
from hypothesis import strategies as st

from tests.recipes.pipeline.made import lost, made
from tests.support.requires import requires


def step(number: int, **more: Any) -> dict[str, Any]:
    groups = [
        {"kind": "balanced", "positives": 4, "trained": 8, "generated": 8},
        {"kind": "relaxed", "positives": 1, "trained": 8, "generated": 16},
    ]
    counts = {"generated": 40, "balanced": 1, "relaxed": 2, "dropped_zero_variance": 1}
    return {"step": number, "groups": groups, "counts": counts, "seconds": {"loop": 2.5}, "events": {"escalated": 1}} | more


def test_everything_on_one_page() -> None:
    steps = {"BAR": [step(1, evaluation={"estimate": 0.4, "low": 0.3, "high": 0.5}), step(2, reward=0.25, evaluation={"estimate": 0.5})]}
    runs = [made("<run>", 4, values=(0.4, 0.5, 0.6, 0.1), value_of="after", rises=((0, 2),), credited=(1, 2))]
    reports = [evaluate([made("a", resolved=True), lost("b")], name="x & y")]
    text = page(Content("A <title>", steps, runs, reports, "A note."))
    for part in (
        "<h1>A &lt;title&gt;</h1>",
        "A note.",
        "BAR: 1 → 0.4 [0.3, 0.5]",
        "BAR: 80 → 0.5",
        "Groups of BAR",
        "Faults and events: escalated 2.",
        "1: relaxed 2",
        "2: zero_variance 1",
        "4/8: groups 2",
        "BAR: 1 → 20",
        "&lt;run&gt;",
        "1 runs with values, 1 with rise segments; 2 of 4 turns",
        "turn 2 gets loss",
        "x &amp; y",
        "100.0%",
    ):
        assert part in text, part


def test_nothing_is_fetched_and_every_chart_is_sound() -> None:
    text = page(Content("t", {"a": [step(1, loss=0.5)]}, [made("r", 2, values=(0.4, 0.1), value_of="after")]))
    assert not re.search(r"<script|https?:|src=|@import|url\(", text)
    svgs = re.findall(r"<svg.*?</svg>", text)
    assert len(svgs) >= 6
    for svg in svgs:
        ElementTree.fromstring(svg)
        assert "nan" not in svg
        assert "inf" not in svg


def test_a_page_of_nothing() -> None:
    assert "nothing to show yet" in page(Content("t"))
    assert "nothing to show yet" in page(Content("t", {"a": []}, [made()]))
    assert "no points yet" in charts.lines([], x="x", y="y")
    assert "nothing to count" in charts.bars(["1"], {"a": [0]}, x="x", y="y")


@given(st.lists(st.tuples(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9)), min_size=1, max_size=20))
def test_any_finite_points_lie_within_the_chart(points: list[tuple[float, float]]) -> None:
    svg = charts.lines([Series("s", [Point(x, y) for x, y in points])], x="x", y="y")
    for x, y in re.findall(r'<circle r="2.6" cx="([^"]+)" cy="([^"]+)"', svg):
        assert -0.1 <= float(x) <= charts.WIDTH + 0.1
        assert -0.1 <= float(y) <= charts.HEIGHT + 0.1


def test_rollouts_per_second_of_steps_that_were_timed() -> None:
    text = page(Content("t", {"a": [step(1, wall_s=20.0), step(2)]}))
    assert "a: 1 → 2</title>" in text.partition("Rollouts per second")[2]
    assert "Rollouts per second" not in page(Content("t", {"a": [step(1)]}))


@given(st.lists(st.tuples(*[st.floats(-1e9, 1e9)] * 3), min_size=1, max_size=12), st.booleans())
def test_any_intervals_lie_within_the_chart(rows: list[tuple[float, float, float]], zero: bool) -> None:
    bars = [Bar(f"arm {number}", sorted(row)[1], min(row), max(row)) for number, row in enumerate(rows)]
    svg = charts.intervals(bars, x="x", zero=zero)
    ElementTree.fromstring(svg)
    marks = re.findall(r'<circle r="4" cx="([^"]+)"', svg)
    assert len(marks) == len(rows)
    assert all(0 <= float(mark) <= charts.WIDTH for mark in marks)
    assert ('class="zero"' in svg) == zero


def test_intervals_without_numbers_are_left_out() -> None:
    assert "no estimates yet" in charts.intervals([Bar("a", math.nan, 0, 1)], x="x")
    svg = charts.intervals([Bar("<a>" + "b" * 60, 0.5, 0.5, 0.5), Bar("c", math.inf, 0, 1)], x="x")
    assert svg.count("<circle") == 1
    assert "&lt;a&gt;" in svg


@pytest.mark.parametrize("value", [0.0, 1e-12, 1.0, -3.0, 1e12, 123456.0])
def test_a_single_point_has_axes(value: float) -> None:
    svg = charts.lines([Series("s", [Point(1, value, value, value), Point(2, math.nan)])], x="x", y="y")
    assert svg.count("<circle") == 1
    assert svg.count('class="tick"') >= 4


@requires("chromium")
def test_a_browser_draws_it(tmp_path: Path) -> None:
    browser = str(shutil.which("chromium"))
    (tmp_path / "page.html").write_text(page(Content("t", {"a": [step(n, loss=1 / n) for n in range(1, 5)]})))
    shot = tmp_path / "page.png"
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile", f"--screenshot={shot}"]
    subprocess.run([*command, "--window-size=1000,1400", f"file://{tmp_path}/page.html"], check=True, capture_output=True, timeout=120)
    assert shot.stat().st_size > 20_000
