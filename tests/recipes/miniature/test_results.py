"""What keeps and reads the results of learning runs: lines that survive a kill, figures of E1 and their verdicts."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from infra.recipes import jobs, page, plan, repair_report, report, tables
from infra.recipes.verdicts import EXACT, RESOLVED, RISES, TWICE, UNMASKED, verdicts


def test_a_line_that_a_kill_cut_off_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    jobs.append(path, {"a": 1})
    with path.open("a") as file:
        file.write('{"a": 2, "cut')
    jobs.append(path, {"a": 3})
    assert jobs.read(path) == [{"a": 1}, {"a": 3}]


DIGEST = plan.digest(plan.REPAIR)


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
        made.append({"experiment": "e1", "arm": "sft", "seed": seed, "plan": DIGEST, "seconds": 1, "result": sft})
        for arm, lost in (("faults 0", 0.0), ("faults 0.05", faults)):
            seconds = {"create": 1.0, "delete": 0.5, "round trips": 0.5, "commands": 5.0, "policy": 1.0, "rollouts": 10.0}
            rl = {"updates": 2, "optimiser_steps": 4, "refused": refused, "generated": 20.0, "infrastructure": lost, "solved": after}
            rl |= {"injected": {"sandbox": 2} if lost else {}, "seconds_of_rollouts": seconds, "rl_seconds": 10.0}
            rl |= {
                "curve": [
                    {"learn_s": 0.5, "generated": 8.0, "graded": 8, "solved": 0},
                    {"learn_s": 1.5, "generated": 12.0, "graded": 10, "solved": seed},
                ]
            }
            made.append({"experiment": "e1", "arm": arm, "seed": seed, "plan": DIGEST, "seconds": 1, "result": rl})
    return made


def test_figures_of_e1() -> None:
    made = repair_report.summary(lines(), [0.0, 0.05])
    assert made["sft"]["solved"]["train"] == pytest.approx(0.5 / 9, abs=1e-4)
    arm = made["arms"]["faults 0"]
    assert (arm["updates"], arm["generated"], arm["rollouts_per_second"], arm["seconds_of_a_step"]) == (6, 60.0, 2.0, 5.0)
    assert arm["learner_seconds_of_a_step"] == 1.0
    assert arm["shares_of_a_rollout"]["holdfast"] == 0.2
    assert (arm["holdfast_seconds_of_a_step"], arm["spoilt_in_evaluation"]) == (1.0, 3)
    assert arm["learning"] == [
        {"solved": 0.0, "low": 0.0, "high": 0.0, "generated": 8},
        {"solved": 0.2, "low": 0.1, "high": 0.3, "generated": 20},
    ]
    assert arm["interval"][0] == pytest.approx(8.5 / 9, abs=1e-4)
    gain = made["differences"]["faults 0, train: RL over SFT"]
    assert gain["seeds"] == 3
    assert gain["interval"][0] == pytest.approx(8 / 9, abs=1e-4)
    assert gain["by_seed"] == [pytest.approx(8 / 9, abs=1e-4)] * 3
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
    shown = tables.page(made)
    assert "| E1-H1 |" in shown
    assert "| faults 0.05 | 2.00 |" in shown
    assert "the first registration" in shown
    assert "0.073 [0.015, 0.132]" in shown


def test_runs_of_another_registration_count_for_nothing(tmp_path: Path) -> None:
    other = [line | {"plan": "another"} for line in lines()]
    assert report.summary([*other, *lines()])["e1"] == report.summary(lines())["e1"]
    assert report.summary(other)["e1"]["arms"] == {}
    earlier = tmp_path / "earlier.json"
    earlier.write_text(json.dumps(report.summary(lines()) | {"e1_first": None}))
    assert report.write([], tmp_path / "now.json", earlier)["e1"]["arms"].keys() == {"faults 0", "faults 0.05"}
    before = json.loads(earlier.read_text())
    before["e1"]["plan"] = "another"
    earlier.write_text(json.dumps(before))
    assert report.write([], tmp_path / "now.json", earlier)["e1"]["arms"] == {}


def test_the_page_shows_what_the_tables_say(tmp_path: Path) -> None:
    made = report.write(lines(), tmp_path / "now.json", Path(report.__file__).with_name("results.json"))
    text = page.page(made)
    for part in (
        "<h1>Results of the miniature</h1>",
        "RL, faults 0.05: 0.944 [",
        "faults 0: 2 → 0.2 [0.1, 0.3]",
        "faults 0: 20 → 0.2 [0.1, 0.3]",
        "faults 0.05: rollouts/s 2",
        "faults 0: Holdfast: sandboxes 0.75",
        "faults 0: commands 2.5",
        "+ unresolved, rise segments: 0.280 [",
        "plain GRPO 8: 40 →",
        "<td>E4-H1</td>",
        "0.073&nbsp;[0.015,&nbsp;0.132]",
        "<code>plan.md</code>",
    ):
        assert part in text, part
    assert text.count("<td>") == sum(line.count(" | ") + 1 for line in tables.page(made).splitlines() if line.startswith("| ")) - sum(
        each.count("<th>") for each in [text]
    )
    for svg in re.findall(r"<svg.*?</svg>", text):
        ElementTree.fromstring(svg)


EQUAL = plan.digest(plan.EQUAL)


def credit_lines(experiment: str, gains: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Of arms that solve this share of 100 tasks, by seed."""
    made = []
    for arm, shares in gains.items():
        for seed, share in zip((11, 12, 13, 14, 15), shares, strict=True):
            solved = [int(index < 100 * share) for index in range(100)]
            outcomes = {"solved": solved, "localised": solved, "malformed": [0] * 100}
            training = {"rows": 96.0, "steps": 600.0, "supervised_tokens": 376e3, "tokens_read": 8e5}
            result = {"training": training, "rollouts": 140, "data": {}, "sampled": outcomes, "greedy": outcomes}
            made.append({"experiment": experiment, "arm": arm, "seed": seed, "plan": EQUAL, "seconds": 20.0, "result": result})
    return made


def of_e4(rises: list[float], experiment: str = "steps") -> dict[str, Any]:
    arms = {RESOLVED: [0.4] * 5, UNMASKED: [0.3] * 5, RISES: rises, EXACT: [0.41] * 5, TWICE: [0.6] * 5}
    made = report.summary(credit_lines(experiment, arms))
    return {each["name"]: each for each in made["hypotheses"] if each["name"].startswith("E4 ")}


def test_a_verdict_says_its_condition_and_its_interval_is_over_seeds_too() -> None:
    found = of_e4([0.7, 0.7, 0.7, 0.7, 0.7])
    assert [each["held"] for each in found.values()] == [True, False, True, True, False]
    assert all(each["text"].startswith("at equal steps") and each["seeds"] == 5 for each in found.values())
    assert "read the task's solution" in found["E4 steps-H1"]["text"]
    wide = of_e4([0.9, 0.9, 0.4, 0.3, 0.35], "tokens")  # 17 points on average, of which single seeds show nothing
    assert wide["E4 tokens-H1"]["figures"]["difference"][0] == pytest.approx(0.17)
    assert wide["E4 tokens-H1"]["held"] is False
    assert wide["E4 tokens-H1"]["text"].startswith("at equal tokens")


def test_the_old_verdicts_stay_with_what_was_wrong(tmp_path: Path) -> None:
    made = report.write(
        credit_lines("steps", {RESOLVED: [0.4] * 5, RISES: [0.5] * 5}),
        tmp_path / "now.json",
        Path(report.__file__).with_name("results.json"),
    )
    old = [each for each in made["hypotheses"] if each["name"].startswith("E4-")]
    assert [each["name"] for each in old] == ["E4-H1", "E4-H2", "E4-H3", "E4-H4"]
    assert all("half of the optimiser steps" in each["text"] for each in old)
    shown = tables.page(made)
    assert "superseded: equal epochs" in shown
    assert "| 140 | 20.0 |" in shown
    assert "not run yet: " in shown


def test_held_out_pairs() -> None:
    def line(arm: str, before: float, after: float) -> list[dict[str, Any]]:
        solved = [[int(task < 100 * share) for task in range(100)] for share in (before, after)]
        point = {"updates": 0, "generated": 0, "solved": solved[0], "localised": 1, "pool_solved": 0.1}
        curve = [point, point | {"updates": 40, "generated": 5000, "solved": solved[1]}]
        totals = {"generated": 5000.0, "trained_groups": 4.0, "trained_balanced": 2.0}
        result = {"pool": 20, "curve": curve, "updates": 40, "totals": totals}
        common = {"experiment": "transfer", "arm": arm, "plan": EQUAL, "seconds": 9.0, "result": result}
        return [common | {"seed": seed} for seed in range(11, 16)]

    made = report.summary([*line("fixed 8, filtered", 0.4, 0.6), *line("BAR 8/16, s=4", 0.4, 0.7)])
    found = {each["name"]: each["held"] for each in made["hypotheses"] if each["name"].startswith("T")}
    assert found == {"T1": True, "T2": False}
    assert "held-out pairs" in tables.page(made | {"e1_first": None})
