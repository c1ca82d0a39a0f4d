"""Charts as SVG text: lines with bands, stacked bars, intervals, and value curves with their rise segments. No script, no network.

Owns axes, scales and marks. Colours are variables of the page (``pages``), so that a dark theme is possible. Every mark has its numbers
in a ``<title>``, which browsers show under the pointer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 560, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 14, 14, 38
COLOURS = 6
"""The number of colours that the page defines: ``--c0`` … ``--c5``."""


@dataclass(frozen=True, slots=True)
class Point:
    """``low`` and ``high`` are the ends of an interval, None where there is none."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    points: Sequence[Point]


@dataclass(frozen=True, slots=True)
class Bar:
    """A named estimate with the ends of its interval."""

    name: str
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def lines(series: Sequence[Series], *, x: str, y: str, low: float | None = None, high: float | None = None) -> str:
    """Curves over a common axis. ``low`` and ``high`` fix the ends of the y axis; points that are no numbers are left out."""
    kept = [Series(each.name, [point for point in each.points if math.isfinite(point.x) and math.isfinite(point.y)]) for each in series]
    points = [point for each in kept for point in each.points]
    if not points:
        return _empty("no points yet")
    ends = [end for point in points for end in (point.low, point.high, point.y) if end is not None and math.isfinite(end)]
    across = _axis([point.x for point in points], _LEFT, WIDTH - _RIGHT)
    up = _axis([*ends, *(each for each in (low, high) if each is not None)], HEIGHT - _BOTTOM, _TOP)
    body = [_axes(across, up, x, y)]
    for number, each in enumerate(kept):
        body.append(_band(each.points, across, up, number))
        if len(each.points) > 1:
            body.append(f'<polyline class="line" style="stroke:var(--c{number % COLOURS})" points="{_path(each.points, across, up)}"/>')
        body += [_dot(point, each.name, across, up, number) for point in each.points]
    return _svg("".join(body)) + _legend([each.name for each in kept])


def bars(columns: Sequence[str], parts: Mapping[str, Sequence[float]], *, x: str, y: str) -> str:
    """Stacked bars: each of ``parts`` gives one height for each column."""
    sums = [math.fsum(heights[index] for heights in parts.values()) for index in range(len(columns))]
    if not columns or not any(sums):
        return _empty("nothing to count yet")
    up = _axis([0.0, max(sums)], HEIGHT - _BOTTOM, _TOP)
    step = (WIDTH - _LEFT - _RIGHT) / len(columns)
    body = [_axes(None, up, x, y)]
    every = math.ceil(len(columns) / 16)
    for index, name in enumerate(columns):
        bottom = 0.0
        left = _LEFT + index * step
        for number, (part, heights) in enumerate(parts.items()):
            height = heights[index]
            if height:
                top = up.at(bottom + height)
                gap = min(2.0, step * 0.1)
                body.append(
                    f'<rect x="{left + gap:.1f}" y="{top:.1f}" width="{step - 2 * gap:.1f}" height="{up.at(bottom) - top:.1f}" '
                    f'style="fill:var(--c{number % COLOURS})"><title>{escape(f"{name}: {part} {height:g}")}</title></rect>'
                )
            bottom += height
        if index % every == 0:
            body.append(
                f'<text class="tick" x="{left + step / 2:.1f}" y="{HEIGHT - _BOTTOM + 14}" text-anchor="middle">{escape(name)}</text>'
            )
    return _svg("".join(body)) + _legend(list(parts))


def intervals(rows: Sequence[Bar], *, x: str, zero: bool = False) -> str:
    """A row for each estimate: its name, a line from end to end, a mark at the estimate. ``zero`` draws a line at 0, for differences."""
    kept = [each for each in rows if all(map(math.isfinite, (each.value, each.low, each.high)))]
    if not kept:
        return _empty("no estimates yet")
    left, row = 12 + min(260, round(6.2 * max(len(each.name) for each in kept))), 26
    bottom = _TOP + row * len(kept)
    across = _axis([end for each in kept for end in (each.low, each.high)] + ([0.0] if zero else []), left, WIDTH - _RIGHT)
    body = []
    for value in _ticks(across):
        place = across.at(value)
        body.append(f'<line class="grid" x1="{place:.1f}" x2="{place:.1f}" y1="{_TOP}" y2="{bottom}"/>')
        body.append(f'<text class="tick" x="{place:.1f}" y="{bottom + 14}" text-anchor="middle">{_number(value)}</text>')
    if zero:
        body.append(f'<line class="zero" x1="{across.at(0):.1f}" x2="{across.at(0):.1f}" y1="{_TOP}" y2="{bottom}"/>')
    for number, each in enumerate(kept):
        y = _TOP + row * (number + 0.5)
        title = f"<title>{escape(f'{each.name}: {each.value:.3f} [{each.low:.3f}, {each.high:.3f}]')}</title>"
        body.append(f'<text class="tick" x="{left - 8}" y="{y + 3.5:.1f}" text-anchor="end">{escape(_cut(each.name))}{title}</text>')
        ends = f'x1="{across.at(each.low):.1f}" x2="{across.at(each.high):.1f}"'
        body.append(f'<line class="line" style="stroke:var(--c0)" {ends} y1="{y:.1f}" y2="{y:.1f}">{title}</line>')
        body.append(f'<circle r="4" cx="{across.at(each.value):.1f}" cy="{y:.1f}" style="fill:var(--c0)">{title}</circle>')
    body.append(f'<text class="label" x="{(left + WIDTH - _RIGHT) / 2}" y="{bottom + 32}" text-anchor="middle">{escape(x)}</text>')
    return f'<svg viewBox="0 0 {WIDTH} {bottom + 40}" role="img">{"".join(body)}</svg>'


def _cut(name: str, most: int = 44) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def value_curve(values: Sequence[float], rises: Sequence[tuple[int, int]] = (), credited: Sequence[int] | None = None) -> str:
    """The values of one run in [0, 1], its rise segments drawn over them, and a tick for every turn that gets loss."""
    if not values:
        return _empty("no values")
    width, height = 268, 132
    across = _Axis(0, max(1, len(values) - 1), 30, width - 8)
    up = _Axis(0, 1, height - 24, 8)
    body = [f'<line class="grid" x1="30" x2="{width - 8}" y1="{up.at(mark):.1f}" y2="{up.at(mark):.1f}"/>' for mark in (0, 0.5, 1)]
    body += [f'<text class="tick" x="25" y="{up.at(mark) + 3.5:.1f}" text-anchor="end">{mark:g}</text>' for mark in (0, 0.5, 1)]
    points = [Point(index, value) for index, value in enumerate(values)]
    body.append(f'<polyline class="line" style="stroke:var(--muted)" points="{_path(points, across, up)}"/>')
    for start, end in rises:
        body.append(f'<polyline class="line rise" points="{_path(points[start : end + 1], across, up)}"/>')
    inside = {index for start, end in rises for index in range(start, end + 1)}
    for point in points:
        colour = "var(--c1)" if int(point.x) in inside else "var(--muted)"
        title = f"<title>{int(point.x)}: {point.y:.2f}</title>"
        body.append(f'<circle r="2.4" cx="{across.at(point.x):.1f}" cy="{up.at(point.y):.1f}" style="fill:{colour}">{title}</circle>')
    for turn in credited or ():
        place = across.at(min(turn, len(values) - 1))
        title = f"<title>turn {turn} gets loss</title>"
        body.append(f'<line class="loss" x1="{place:.1f}" x2="{place:.1f}" y1="{height - 18}" y2="{height - 10}">{title}</line>')
    return f'<svg viewBox="0 0 {width} {height}" role="img">{"".join(body)}</svg>'


def _axis(values: Sequence[float], start: float, end: float) -> _Axis:
    low, high = min(values), max(values)
    if high == low:
        low, high = low - (0.5 if low else 0), high + 0.5
    step = _step((high - low) / 5)
    return _Axis(math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, start, end)


def _step(raw: float) -> float:
    """1, 2 or 5 times a power of ten, at least ``raw``."""
    power = 10.0 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))


def _ticks(axis: _Axis) -> list[float]:
    step = _step((axis.high - axis.low) / 5)
    return [axis.low + index * step for index in range(round((axis.high - axis.low) / step) + 1)]


def _axes(across: _Axis | None, up: _Axis, x: str, y: str) -> str:
    bottom = HEIGHT - _BOTTOM
    parts = []
    for value in _ticks(up):
        place = up.at(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{place:.1f}" y2="{place:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{place + 3.5:.1f}" text-anchor="end">{_number(value)}</text>')
    for value in _ticks(across) if across else ():
        assert across is not None
        parts += [f'<text class="tick" x="{across.at(value):.1f}" y="{bottom + 14}" text-anchor="middle">{_number(value)}</text>']
    parts.append(f'<text class="label" x="{(_LEFT + WIDTH - _RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x)}</text>')
    middle = (_TOP + bottom) / 2
    parts.append(f'<text class="label" transform="translate(12 {middle}) rotate(-90)" text-anchor="middle">{escape(y)}</text>')
    return "".join(parts)


def _number(value: float) -> str:
    return f"{value:.6g}" if abs(value) < 10_000 else f"{value / 1000:g}k"


def _path(points: Sequence[Point], across: _Axis, up: _Axis) -> str:
    return " ".join(f"{across.at(point.x):.1f},{up.at(point.y):.1f}" for point in points)


def _band(points: Sequence[Point], across: _Axis, up: _Axis, number: int) -> str:
    known = [(point.x, point.low, point.high) for point in points if point.low is not None and point.high is not None]
    known = [each for each in known if all(map(math.isfinite, each))]
    if len(known) < 2:
        return ""
    upper = [f"{across.at(x):.1f},{up.at(high):.1f}" for x, _, high in known]
    lower = [f"{across.at(x):.1f},{up.at(low):.1f}" for x, low, _ in reversed(known)]
    return f'<polygon class="band" style="fill:var(--c{number % COLOURS})" points="{" ".join([*upper, *lower])}"/>'


def _dot(point: Point, name: str, across: _Axis, up: _Axis, number: int) -> str:
    span = "" if point.low is None or point.high is None else f" [{point.low:.4g}, {point.high:.4g}]"
    title = escape(f"{name}: {point.x:g} → {point.y:.4g}{span}")
    place = f'cx="{across.at(point.x):.1f}" cy="{up.at(point.y):.1f}"'
    return f'<circle r="2.6" {place} style="fill:var(--c{number % COLOURS})"><title>{title}</title></circle>'


def _legend(names: Sequence[str]) -> str:
    items = [f'<span><i style="background:var(--c{number % COLOURS})"></i>{escape(name)}</span>' for number, name in enumerate(names)]
    return f'<div class="legend">{"".join(items)}</div>'


def _svg(body: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{body}</svg>'


def _empty(text: str) -> str:
    return f'<p class="empty">{escape(text)}</p>'
