"""How many spares are wanted over time: as many as recent creates, never more than the machine's memory allows."""

from __future__ import annotations

import pytest

from session_agent.node.demand import TOTAL, WINDOW_S, Demand, most_spares


def test_an_image_requested_once_gets_the_minimum() -> None:
    demand: Demand[str] = Demand(4, 64)
    demand.asked("one", 0.0)
    assert demand.wanted(0.0) == {"one": 4}
    assert demand.wanted(1e6) == {"one": 4}


def test_a_burst_raises_the_number_and_time_lowers_it() -> None:
    demand: Demand[str] = Demand(4, 64)
    for _ in range(40):
        demand.asked("one", 0.0)
    counts = [demand.wanted(seconds)["one"] for seconds in (0.0, WINDOW_S, 2 * WINDOW_S, 10 * WINDOW_S)]
    assert counts == [40, 15, 6, 4]


def test_a_steady_rate_wants_the_creates_of_one_window() -> None:
    demand: Demand[str] = Demand(4, 1000)
    for number in range(2000):
        demand.asked("one", number * 0.2)
    assert demand.wanted(400.0)["one"] == pytest.approx(5 * WINDOW_S, rel=0.05)


def test_all_images_together_stay_within_the_maximum() -> None:
    demand: Demand[str] = Demand(4, 20)
    for name in ("old", "middle", "new"):
        for _ in range(15):
            demand.asked(name, 0.0)
    assert demand.wanted(0.0) == {"new": 15, "middle": 5}
    demand.asked("old", 0.0)
    assert demand.wanted(0.0) == {"old": 4, "new": 15, "middle": 1}, "an image that was dropped starts again at the minimum"


def test_rarely_requested_images_share_a_total() -> None:
    demand: Demand[str] = Demand(3, 64)
    for name in ("a", "b", "c", "d"):
        demand.asked(name, 0.0)
    assert demand.wanted(0.0) == {"d": 3, "c": 3, "b": 2}
    demand.forget("d")
    assert demand.wanted(0.0) == {"c": 3, "b": 3}


def test_a_minimum_of_zero_disables_spares() -> None:
    demand: Demand[str] = Demand(0, 64)
    demand.asked("one", 0.0)
    assert demand.wanted(0.0) == {}


@pytest.mark.parametrize(("gibibytes", "most"), [(0.25, TOTAL), (4, TOTAL), (16, 32), (64, 128), (1024, 128)])
def test_the_maximum_depends_on_the_machines_memory(gibibytes: float, most: int) -> None:
    assert most_spares(int(gibibytes * (1 << 30))) == most
