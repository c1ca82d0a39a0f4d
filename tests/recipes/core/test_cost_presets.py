"""The cost calculator against Table 2, and the presets against the table of hyper-parameters."""

from __future__ import annotations

import json
from dataclasses import is_dataclass
from decimal import Decimal
from typing import Any

import pytest
from holdfast_recipes.cli import main
from holdfast_recipes.core import cost
from holdfast_recipes.core.presets import PRESETS, Rl, Sft


def test_costs_of_table_2_and_of_its_text() -> None:
    lines = {line.name: line for line in cost.table()}
    totals = {"daytona": 7078, "e2b": 7078, "modal": 10305, "megaflow": 4608, "orchard": 3362, "orchard_spot": 673}
    assert {name: round(lines[name].total) for name in totals} == totals
    rates = {"daytona": "0.230", "e2b": "0.230", "modal": "0.335", "megaflow": "0.150", "orchard": "0.109", "orchard_spot": "0.022"}
    assert {name: f"{lines[name].per_sandbox_hour:.3f}" for name in rates} == rates
    corrected = lines["orchard_spot_service_on_demand"]
    assert corrected.total == Decimal("831.36")
    assert lines["orchard_spot"].total == Decimal("673.20")
    assert (f"{corrected.per_sandbox_hour:.4f}", f"{corrected.relative:.3f}") == ("0.0271", "0.117")
    assert cost.Workload().sandbox_hours == 30_720


def test_node_capacity_decides_how_many_nodes_are_needed() -> None:
    work = cost.Workload()
    real = cost.Nodes(cost.SPOT, cost.ON_DEMAND, allocatable_cpu=Decimal("15.5"))
    assert (real.per_node(work), real.count(work)) == (7, 19)
    assert cost.Nodes(cost.SPOT, cost.SPOT, overcommit=Decimal(2)).count(work) == 8
    assert cost.Nodes(cost.SPOT, cost.SPOT, overcommit=Decimal(20), most_pods=110).count(cost.Workload(sandboxes=111)) == 2
    with pytest.raises(ValueError, match="fits"):
        cost.Nodes(cost.SPOT, cost.SPOT).per_node(cost.Workload(cpu=Decimal(17)))
    with pytest.raises(ValueError, match="above zero"):
        cost.Workload(sandboxes=0)


def test_cost_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost"]) == 0
    printed = capsys.readouterr().out
    for figure in ("7,077.89", "10,304.96", "4,608.00", "3,361.92", "673.20", "831.36"):
        assert figure in printed
    assert main(["cost", "--json", "--allocatable-cpu", "15.5"]) == 0
    lines = {line["name"]: line for line in json.loads(capsys.readouterr().out)["lines"]}
    assert lines["orchard"]["nodes"] == 20
    for wrong in (["--cpu", "0"], ["--cpu", "NaN"], ["--hours", "x"], ["--sandboxes", "0"], ["--cpu", "99"]):
        assert main(["cost", *wrong]) == 2


def test_presets_are_the_table_of_the_paper() -> None:
    swe, claw, gui = PRESETS["swe_sft"], PRESETS["claw_sft"], PRESETS["gui_sft"]
    assert isinstance(swe, Sft)
    assert isinstance(claw, Sft)
    assert isinstance(gui, Sft)
    assert (swe.steps, claw.steps, gui.steps) == (5 * 838, 284, 3 * 24)
    assert [round(swe.schedule().at(step), 9) for step in (0, swe.steps // 2, swe.steps)] == [1e-5, 5.5e-6, 1e-6]
    assert gui.schedule().at(0) == 0
    rl = {name: preset for name, preset in PRESETS.items() if isinstance(preset, Rl)}
    assert {name: preset.batch for name, preset in rl.items()} == {"swe_rl": 128, "gui_rl": 240, "claw_rl": 64}
    assert rl["swe_rl"].group.balance().wants() == 16
    assert rl["claw_rl"].schedule().at(149) == rl["claw_rl"].schedule().at(0) == 1e-6
    assert rl["swe_rl"].schedule().at(150) == 0


@pytest.mark.parametrize("name", list(PRESETS))
def test_assumptions_name_fields_that_exist(name: str) -> None:
    for path in PRESETS[name].assumed:
        value: Any = PRESETS[name]
        for part in path.split("."):
            assert is_dataclass(value)
            value = getattr(value, part)
