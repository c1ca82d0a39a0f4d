"""Reports: what counts as a trial, the rates against figures worked out by hand, costs, and paired comparison."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from holdfast_recipes.core.scored import Blame, Status
from holdfast_recipes.core.trajectory import Trajectory
from holdfast_recipes.pipeline.errors import DataError, SettingError
from holdfast_recipes.pipeline.evaluate import Prices, Trial, compare, dumped, evaluate, text, trial_of

from tests.recipes.pipeline.made import lost, made


def trials(**outcomes: str) -> list[Trajectory]:
    """``a="++-x"``: task a with two solved trials, a failed one and one with an infrastructure failure."""
    runs = []
    for task, marks in outcomes.items():
        for number, mark in enumerate(marks):
            name = f"{task}{number}"
            runs.append(lost(name, task_id=task) if mark == "x" else made(name, resolved=mark == "+", task_id=task))
    return runs


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"reward": 1.0}, Trial.SOLVED),
        ({"reward": 0.0}, Trial.FAILED),
        ({"status": Status.TIMEOUT, "blame": Blame.POLICY}, Trial.FAILED),
        ({"status": Status.TRUNCATED}, Trial.FAILED),
        ({"status": Status.ABORTED, "blame": Blame.WORKLOAD}, Trial.FAILED),
        ({"status": Status.ABORTED, "blame": Blame.INFRASTRUCTURE}, Trial.INFRASTRUCTURE),
        ({"status": Status.COMPLETED, "blame": Blame.INFRASTRUCTURE}, Trial.INFRASTRUCTURE),
        ({"status": Status.COMPLETED, "blame": Blame.ENVIRONMENT}, Trial.ENVIRONMENT),
        ({"status": Status.COMPLETED}, Trial.UNGRADED),
    ],
)
def test_what_counts_as_a_trial(changes: dict[str, Any], expected: Trial) -> None:
    assert trial_of(replace(made(), **{"reward": None, **changes})) is expected


def test_rates_of_three_tasks() -> None:
    """3/3, 2/3 and 0/3: pass@1 5/9, pass@3 2/3, pass^3 1/3."""
    report = evaluate(trials(a="+++", b="++-", c="---"), ks=(3, 1))
    assert [rate.k for rate in report.rates] == [1, 3]
    assert report.rates[0].pass_at.estimate == pytest.approx(5 / 9)
    assert report.rates[1].pass_at.estimate == pytest.approx(2 / 3)
    assert report.rates[1].pass_hat == pytest.approx(1 / 3)
    assert report.rates[0].pass_at.low <= 5 / 9 <= report.rates[0].pass_at.high


def test_an_infrastructure_failure_is_not_a_failed_trial() -> None:
    report = evaluate(trials(a="+x", b="xx-", c="xx"), ks=(1, 2))
    assert report.by_task == {"a": (1, 1), "b": (0, 1), "c": (0, 0)}
    assert report.rates[0].pass_at.estimate == 0.5
    assert (report.rates[0].tasks, report.rates[1].tasks) == (2, 0)
    assert math.isnan(report.rates[1].pass_at.estimate)
    record = json.loads(dumped(report))
    assert record["trials"] == {"solved": 1, "failed": 1, "infrastructure": 5, "environment": 0, "ungraded": 0}
    assert record["tasks_without_trial"] == 1
    assert record["rates"][1]["pass_at_k"]["estimate"] is None
    shown = text(report)
    assert "5 infrastructure; 1 tasks have no trial" in shown
    assert "pass@2   no task has 2 trials" in shown
    assert "node_lost 5" in shown


def test_one_trial_per_task_has_wilsons_interval() -> None:
    report = evaluate(trials(**{f"t{n}": "+" if n < 3 else "-" for n in range(10)}))
    assert report.rates[0].pass_at.estimate == 0.3
    assert (report.rates[0].pass_at.low, report.rates[0].pass_at.high) == pytest.approx((0.1078, 0.6032), abs=1e-4)


def test_equal_outcomes_of_all_tasks_do_not_give_certainty() -> None:
    report = evaluate(trials(a="++", b="++", c="++"), ks=(1, 2))
    assert {(rate.pass_at.estimate, round(rate.pass_at.low, 3), rate.pass_at.high) for rate in report.rates} == {(1.0, 0.439, 1.0)}


def test_cost_of_a_solved_task() -> None:
    attempts: list[dict[str, Any]] = [{"wall_s": 1800, "cost_usd": 0.25}, {"wall_s": 1800, "cost_usd": 0.0}, {"wall_s": 3600}]
    report = evaluate(trials(a="+", b="+", c="-"), attempts=attempts, prices=Prices(0.5))
    assert (report.cost.sandbox_hours, report.cost.sandbox_usd, report.cost.policy_usd) == (2.0, 1.0, 0.25)
    assert report.cost.per_solved_usd == 0.625
    assert "$0.6250 per solved task" in text(report)
    assert evaluate(trials(a="-"), prices=Prices(0.5)).cost.per_solved_usd is None
    timed = replace(made("a"), turns=(replace(made().turns[0], started_s=3595.0, seconds=5.0),))
    assert evaluate([timed], prices=Prices(0.5)).cost.total_usd == 0.5


def test_paired_comparison() -> None:
    before = evaluate(trials(**{f"t{n}": "-" if n < 15 else "+" for n in range(20)}, z="+"), name="sft")
    after = evaluate(trials(**{f"t{n}": "-" if n < 5 else "+" for n in range(20)}, y="-"), name="rl")
    found = compare(after, before)
    assert (found.difference.estimate, found.tasks, found.left_out) == (0.5, 20, 2)
    assert 0.2 < found.difference.low < 0.5 < found.difference.high < 0.8
    assert "against sft: +50.0 points [" in text(after, found)
    assert json.loads(dumped(after, found))["comparison"]["tasks"] == 20
    with pytest.raises(DataError, match="no task in common"):
        compare(evaluate(trials(a="+")), evaluate(trials(b="+")))


def test_invalid_settings_are_refused() -> None:
    for ks in ((), (0,)):
        with pytest.raises(SettingError):
            evaluate(trials(a="+"), ks=ks)
    with pytest.raises(DataError, match="no runs"):
        evaluate([])
    with pytest.raises(SettingError):
        Prices(-1)
