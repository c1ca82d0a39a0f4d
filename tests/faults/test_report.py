"""The parts of a chaos run that summarise its results must not make them look better than they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from holdfast import HoldfastError

from .history import check
from .load import classify_error, story
from .report import Outcome, percentile, reading, text, total, write
from .worker import Log, read_log


@pytest.mark.parametrize(
    ("detail", "expected"),
    [
        ({}, "failed"),
        ({"command_id": "c"}, "unknown"),
        ({"command_id": "c", "started": None}, "unknown"),
        ({"command_id": "c", "started": True}, "unknown"),
        ({"command_id": "c", "started": False}, "failed"),
    ],
)
def test_only_an_error_that_excludes_a_start_is_a_definite_failure(detail: dict[str, object], expected: str) -> None:
    assert classify_error(HoldfastError("internal", "x", detail=detail)) == expected


def test_percentiles_are_values_that_occurred() -> None:
    assert percentile([], 99) == 0.0
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([float(n) for n in range(1, 101)], 99) == 99.0
    assert percentile([1.0, 9.0], 99) == 9.0


def test_a_run_without_failures_is_bounded_and_a_violation_is_shown(tmp_path: Path) -> None:
    clean = Outcome("a", 7)
    clean.faults["cut"] = 300
    assert reading(total([clean])) == "zero failures in 300 faults says only: fewer than 3/300"
    violated = Outcome("b", 7)
    violated.expect(True, "fine")
    violated.expect(False, "it broke")
    assert "CHAOS_SEED=7" in reading(total([clean, violated]))
    assert "VIOLATION b: it broke" in text([clean, violated])
    write([clean, violated], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"chaos.txt", "chaos.json"}


@pytest.mark.parametrize(("faults", "acknowledged", "violations"), [(0, 9, 1), (9, 0, 1), (0, 0, 2), (1, 1, 0)])
def test_a_run_in_which_nothing_happened_is_not_clean(faults: int, acknowledged: int, violations: int) -> None:
    outcome = Outcome("a", 7, acknowledged=acknowledged)
    outcome.faults["cut"] = faults
    outcome.conclude()
    assert len(outcome.violations) == violations


def test_the_log_of_a_killed_worker_names_its_open_commands(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    log.sent("w-0", "w-0.0")
    log.answer("w-0.0", "acknowledged")
    log.sent("w-0", "w-0.1")
    log.note("resume", "0.5")
    read = read_log(tmp_path / "log")
    assert (read.next_number, read.open_command, read.notes) == ({"w-0": 2}, {"w-0": "w-0.1"}, [("resume", "0.5")])
    assert check(read.history, ["w-0.0"]).clean
    assert check(read.history, ["w-0.0", "w-0.1", "w-0.1"]).duplicates == 1


def test_each_command_without_a_result_has_a_line_in_the_report(tmp_path: Path) -> None:
    lost = HoldfastError("sandbox_gone", "the node died\nwith it", reason="node-lost", detail={"command_id": "w-0.1", "started": True})
    log = Log(tmp_path / "log")
    log.sent("w-0", "w-0.1")
    log.note("story", json.dumps(story("w-0.1", "unknown", lost, repeated=True)))
    ((kind, value),) = read_log(tmp_path / "log").notes
    line = json.loads(value)
    assert (kind, line.split()[:2]) == ("story", ["unknown", "sandbox_gone/node-lost"])
    assert line.endswith("w-0.1, repeated: the node died\nwith it (started=True)")
    outcome = Outcome("monkey", 7, stories=[line])
    write([outcome], tmp_path)
    assert line in (tmp_path / "chaos.txt").read_text()
    assert json.loads((tmp_path / "chaos.json").read_text())["scenarios"][0]["stories"] == [line]
