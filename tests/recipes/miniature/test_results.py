"""What keeps and reads the results of learning runs: lines that survive a kill, figures of E1 and their verdicts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infra.recipes import jobs, repair_report, report, tables
from infra.recipes.verdicts import verdicts


def test_a_line_that_a_kill_cut_off_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    jobs.append(path, {"a": 1})
    with path.open("a") as file:
        file.write('{"a": 2, "cut')
    jobs.append(path, {"a": 3})
    assert jobs.read(path) == [{"a": 1}, {"a": 3}]


def solved(*trials: list[int]) -> dict[str, Any]:
    return {
        "train": {"by_task": {f"t{number}": each for number, each in enumerate(trials)}, "spoilt": 0},
        "held": {"by_task": {"h": [0]}, "spoilt": 1},
    }


def lines(gain: int = 1, refused: int = 0, faults: float = 3.0) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    before, after = solved(*[[0, 0]] * 8, [1, 0]), solved(*[[gain, gain]] * 8, [1, 0])
    for seed in (1, 2, 3):
        sft = {"tasks": {"train": 9, "held": 1}, "teacher": {"solved": 4, "runs": 8}, "solved": before}
        made.append({"experiment": "e1", "arm": "sft", "seed": seed, "plan": "p", "seconds": 1, "result": sft})
        for arm, lost in (("faults 0", 0.0), ("faults 0.05", faults)):
            seconds = {"create": 1.0, "delete": 0.5, "round trips": 0.5, "commands": 5.0, "policy": 1.0, "rollouts": 10.0}
            rl = {"updates": 2, "optimiser_steps": 4, "refused": refused, "generated": 20.0, "infrastructure": lost, "solved": after}
            rl |= {"injected": {"sandbox": 2} if lost else {}, "seconds_of_rollouts": seconds, "rl_seconds": 10.0}
            rl |= {"curve": [{"pool_reward": -1.0, "learn_s": 0.5}, {"pool_reward": 1.0, "learn_s": 1.5}]}
            made.append({"experiment": "e1", "arm": arm, "seed": seed, "plan": "p", "seconds": 1, "result": rl})
    return made


def test_figures_of_e1() -> None:
    made = repair_report.summary(lines(), [0.0, 0.05])
    assert made["sft"]["solved"]["train"] == pytest.approx(0.5 / 9, abs=1e-4)
    arm = made["arms"]["faults 0"]
    assert (arm["updates"], arm["generated"], arm["rollouts_per_second"], arm["seconds_of_a_step"]) == (6, 60.0, 2.0, 5.0)
    assert arm["learner_seconds_of_a_step"] == 1.0
    assert arm["shares_of_a_rollout"]["holdfast"] == 0.2
    assert (arm["curve"], arm["spoilt_in_evaluation"]) == ([-1.0, 1.0], 3)
    gain = made["differences"]["faults 0, train: RL over SFT"]
    assert gain["seeds"] == 3
    assert gain["interval"][0] == pytest.approx(8 / 9, abs=1e-4)
    assert made["differences"]["faults 0.05 over faults 0, train"]["interval"] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("changes", "first", "second"),
    [({}, True, True), ({"gain": 0}, False, True), ({"refused": 1}, True, False), ({"faults": 0.0}, True, False)],
)
def test_verdicts_of_e1(changes: dict[str, Any], first: bool, second: bool) -> None:
    found = verdicts({}, repair_report.summary(lines(**changes), [0.0, 0.05]))
    assert [each["held"] for each in found[:2]] == [first, second]


def test_without_runs_there_is_no_verdict() -> None:
    assert [each["held"] for each in verdicts({}, repair_report.summary([], [0.0, 0.05]))[:2]] == [None, None]


def test_figures_of_earlier_runs_stay(tmp_path: Path) -> None:
    earlier = tmp_path / "earlier.json"
    earlier.write_text(Path(report.__file__).with_name("results.json").read_text())
    made = report.write(lines(), tmp_path / "now.json", earlier)
    assert made["experiments"] == json.loads(earlier.read_text())["experiments"]
    page = tables.page(made)
    assert "| E1-H1 |" in page
    assert "| faults 0.05 | 2.00 |" in page
