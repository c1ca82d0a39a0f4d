"""The report with pictures: PNGs by matplotlib and one HTML page with them, for bench.json and for curves.json.

Owns no measurement. The pictures are embedded in the page.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_OK, _MISSED, _AIM = "#2b7a78", "#b3402e", "#888888"


def write_figures(folder: Path, report: Mapping[str, Any]) -> Path:
    """Write `budgets.png`, the share of its budget that each figure takes, and `index.html`. Returns the page."""
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    rows = [(each, share) for each in report["figures"] if (share := _share(each)) is not None]
    picture = Figure(figsize=(9, 1.2 + 0.34 * len(rows)), layout="constrained")
    axes = picture.subplots()
    axes.barh([each["id"] for each, _ in rows], [share for _, share in rows], color=[_OK if each["ok"] else _MISSED for each, _ in rows])
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xlabel("share of the budget (1: all of it; less is better)")
    axes.invert_yaxis()
    for position, (each, share) in enumerate(rows):
        axes.text(share, position, f" {each['name']}: {_number(each['value'])} {each['unit']}", va="center", fontsize=7)
    axes.set_xlim(0, max(2.2, *(share * 1.1 for _, share in rows)) if rows else 1)
    picture.savefig(folder / "budgets.png", dpi=110)
    body = [
        _image(folder / "budgets.png"),
        "<table><tr><th>",
        "<th>figure<th>value<th>middle half<th>floor<th>ratio<th>budget<th>aim<th></tr>",
    ]
    body += [_row(each) for each in report["figures"]]
    return _page(folder / "index.html", "Speed and memory beside their floors", report, [*body, "</table>"])


def write_curves(folder: Path, report: Mapping[str, Any]) -> Path:
    """Write a PNG for each curve, with a logarithmic x axis, and `index.html`. Returns the page."""
    from matplotlib.figure import Figure

    body: list[str] = []
    for number, each in enumerate(report["curves"], 1):
        picture = Figure(figsize=(6, 3.4), layout="constrained")
        axes = picture.subplots()
        axes.plot(*zip(*each["points"], strict=True), marker="o", color=_OK)
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.set_xlabel(each["x"])
        axes.set_ylabel(each["unit"], fontsize=8)
        axes.set_title(each["name"])
        if each["knee"] is not None:
            axes.axvline(each["knee"], color=_MISSED, linestyle="--", label=f"knee: {each['knee']:,g}")
            axes.legend()
        picture.savefig(folder / f"{number:02}.png", dpi=110)
        body.append(_image(folder / f"{number:02}.png"))
    return _page(folder / "index.html", "Where cost grows", report, body)


def _share(figure: Mapping[str, Any]) -> float | None:
    """The share of its budget that a figure takes, None where the budget is not one number."""
    sign, _, rest = str(figure["budget"]).partition(" ")
    number = rest.split()[0].rstrip("×") if rest else ""
    try:
        budget = float(number.replace(",", ""))
    except ValueError:
        return None
    measured = figure["ratio"] if rest.split()[0].endswith("×") else figure["value"]
    if not measured or not budget:
        return None
    return float(measured / budget if sign == "≤" else budget / measured)


def _row(figure: Mapping[str, Any]) -> str:
    spread = "" if figure["spread"] is None else "–".join(map(_number, figure["spread"]))
    floor = "" if figure["floor"] is None else f"{_number(figure['floor'])} {figure['unit']}"
    ratio = "" if figure["ratio"] is None else f"{figure['ratio']:.2f}×"
    value = f"{_number(figure['value'])} {figure['unit']}"
    cells = (figure["id"], figure["name"], value, spread, floor, ratio, figure["budget"], figure["aim"], "ok" if figure["ok"] else "missed")
    return f'<tr title="{html.escape(figure["how"])}">' + "".join(f"<td>{html.escape(str(cell))}" for cell in cells) + "</tr>"


def _page(path: Path, title: str, report: Mapping[str, Any], body: Iterable[str]) -> Path:
    machine = report["machine"]
    where = f"{machine['cores']} cores of {machine['cpu']}, Linux {machine['kernel']}, Python {machine['python']}"
    style = "body{font:15px/1.5 sans-serif;max-width:62em;margin:2em auto}td,th{padding:.2em .7em;text-align:left}img{max-width:100%}"
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{style}</style>'
    path.write_text("\n".join([head, f"<h1>{title}</h1><p>{html.escape(where)}</p>", *body]) + "\n")
    return path


def _image(path: Path) -> str:
    return f'<p><img alt="{path.stem}" src="data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}">'


def _number(value: float) -> str:
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
