"""The report of the benchmarks: budgets, knees, pages. `make bench` takes the measurements."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from tests.bench import beside_page, figures, growth, page
from tests.bench.__main__ import main
from tests.bench.curves import curve
from tests.bench.latency import Samples, joined

MACHINE = figures.machine()


def test_a_budget_is_met_up_to_its_last_hundredth_and_missed_beyond() -> None:
    assert figures.at_most("P1", "x", 8.0, "µs", 1.0, 8, 4, "").ok
    assert not figures.at_most("P1", "x", 8.01, "µs", 1.0, 8, 4, "").ok
    assert figures.at_least("P10", "x", 40.0, "MB/s", 100.0, 0.4, None, "").ok
    assert not figures.at_least("P10", "x", 39.9, "MB/s", 100.0, 0.4, None, "").ok


@pytest.mark.parametrize(
    ("points", "knee"),
    [
        ([(1, 10.0), (10, 10.0), (100, 14.9)], None),
        ([(1, 10.0), (10, 15.1), (100, 90.0)], 10),
        ([(1, 30.0), (10, 10.0), (100, 16.0)], 100),
        ([(1, 10.0)], None),
    ],
)
def test_the_knee_is_where_a_unit_costs_one_and_a_half_times_the_cheapest_before(
    points: list[tuple[float, float]], knee: float | None
) -> None:
    found = curve("creates", "sandboxes", "ms", points)
    assert found.knee == knee
    assert ("no knee up to" in str(found)) == (knee is None)


@pytest.mark.parametrize(("exponent", "ok"), [(1.0, True), (1.05, True), (1.12, False), (2.0, False)])
async def test_growth_is_measured_correctly_despite_disturbed_rounds(exponent: float, ok: bool) -> None:
    calls = 0

    async def work(count: int) -> float:
        nonlocal calls
        calls += 1
        return float(count**exponent) * (4.0 if 10 < calls < 15 or 50 < calls < 53 else 1.0)

    figure = await growth.grown("P13x", "pieces of work", 100, work)
    assert figure.ok is ok
    assert figure.ratio == pytest.approx(10**exponent)
    assert figure.floor is not None
    assert figure.value / figure.floor == pytest.approx(figure.ratio)


@pytest.mark.parametrize(("slower", "ok"), [(1.0, True), (0.8, True), (1.02, True), (1.3, False)])
def test_pairs_are_judged_by_their_interval(slower: float, ok: bool) -> None:
    alone = [1.0 + 0.1 * (n % 5) for n in range(20)]
    beside = [slower * (1.0 + 0.1 * ((n + 2) % 5)) for n in range(20)]
    figure = beside_page.judged("PE1", "x", beside, alone, "")
    assert figure.ok is ok
    assert figure.ratio == pytest.approx(slower)


def test_samples_of_several_runs_are_joined() -> None:
    both = joined([Samples([3.0, 1.0], [0.1]), Samples([2.0], [0.3, 0.2])])
    assert (both.p50, both.floor_p50, len(both.figure)) == (2.0, 0.2, 3)


def test_pages_need_no_other_file(tmp_path: Path) -> None:
    taken = [
        figures.at_most("P1", "`true` <in> a shell", 500.0, "µs", 100.0, 8, 4, "how & why", (450.0, 600.0)),
        figures.Figure("P8", "memory", 13.0, "MiB", None, None, "≤ 12 MiB", "6 MiB", False, ""),
        figures.Figure("P4t", "TCP", 2.0, "ms", 1.0, 2.0, "≤ 3 ms or 1.5×", "", True, ""),
    ]
    written = page.write_figures(tmp_path, figures.write(tmp_path / "bench.json", taken))
    text = written.read_text()
    assert "&lt;in&gt;" in text
    assert "450–600" in text
    assert text.count("<img") == 1
    assert 'src="data:image/png;base64,' in text
    assert (tmp_path / "budgets.png").read_bytes().startswith(b"\x89PNG")
    curves = [curve("creates", "sandboxes", "ms", [(1, 1.0), (10, 2.0)]), curve("output", "MB", "ms", [(1, 1.0), (10, 1.0)])]
    text = page.write_curves(tmp_path, {"machine": MACHINE, "curves": [asdict(each) for each in curves]}).read_text()
    assert text.count("<img") == 2


def test_an_unknown_figure_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["bench", "--only", "P1,P99"])
    with pytest.raises(SystemExit):
        main()
    assert "no such figure: P99" in capsys.readouterr().err
