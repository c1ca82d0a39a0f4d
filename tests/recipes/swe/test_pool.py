"""`holdfast recipes tasks screen` in sandboxes of this machine, and `tasks band` on runs."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from holdfast_recipes.cli import main
from holdfast_recipes.core.records import to_json
from holdfast_recipes.pipeline import files
from holdfast_recipes.swe.pool import reason

from tests.recipes.pipeline.made import lost, made
from tests.recipes.swe.conftest import TESTS, small_task
from tests.recipes.swe.test_job import edited
from tests.support.requires import requires
from tests.support.stack import Stack

pytestmark = requires("namespaces", "redis", "git")

FLAKY = TESTS + (
    "def test_flaky():\n    import os\n    seen = os.path.exists('/tmp/seen')\n"
    "    os.remove('/tmp/seen') if seen else open('/tmp/seen', 'w').close()\n    assert seen\n"
)


@pytest.fixture
def service(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Stack:
    monkeypatch.setenv("HOLDFAST_URL", stack.url)
    monkeypatch.setenv("HOLDFAST_API_KEY", stack.key)
    return stack


def test_tasks_are_screened_with_a_count_for_each_reason(service: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = small_task(tmp_path / "archives").task
    flaky = edited("tests/test_calc.py", TESTS, FLAKY)
    tasks = [
        task,
        replace(task, task_id="flaky", test_patch=flaky, pass_to_pass=("tests/test_calc.py::test_flaky",)),
        replace(task, task_id="mute", test_commands=("echo nothing",)),
        replace(task, task_id="unfixed", fail_to_pass=("tests/test_calc.py::test_double",), pass_to_pass=()),
        replace(task, task_id="broken", start_commands=("exit 3",)),
        replace(task, task_id="leaking", start_commands=("cp -r /testbed /opt/later && sed -i 's/a - b/a + b/' /opt/later/calc.py",)),
    ]
    files.write_lines(tmp_path / "tasks.jsonl", [each.to_json() for each in tasks])
    words = [
        "tasks",
        "screen",
        str(tmp_path / "tasks.jsonl"),
        "--out",
        str(tmp_path / "out"),
        "--runs",
        "2",
        "--cpu",
        "1",
        "--memory",
        "0.5",
        "--json",
    ]
    assert main(words) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["tasks"], record["lost_to_infrastructure"]) == (6, 0)
    journal = {line["task_id"]: line for _, line in files.lines(tmp_path / "out" / "screened.jsonl")}
    found = {name: reason(line["problems"][0]) if line["problems"] else "" for name, line in journal.items()}
    assert found == {
        "calc-1": "",
        "flaky": "flaky",
        "mute": "no_tests",
        "unfixed": "not_fixed_by_gold",
        "broken": "environment",
        "leaking": "leak",
    }
    assert journal["flaky"]["flaky"] == ["tests/test_calc.py::test_flaky"]
    assert [each.task_id for each in files.tasks(tmp_path / "out" / "tasks.jsonl")] == [name for name in found if not found[name]]
    assert sum(record["left_out"].values()) + record["kept"] == 6
    assert main(words) == 0  # goes on where it was: nothing is checked again
    assert json.loads(capsys.readouterr().out)["kept"] == record["kept"]
    assert len(list(files.lines(tmp_path / "out" / "screened.jsonl"))) == 6
    shutil.rmtree(tmp_path / "out")


def test_the_band_keeps_tasks_of_trainable_difficulty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = small_task(tmp_path / "archives").task
    files.write_lines(tmp_path / "tasks.jsonl", [replace(task, task_id=name).to_json() for name in ("easy", "hard", "right", "few")])
    runs = [made(f"e{number}", 1, resolved=True, task_id="easy") for number in range(4)]
    runs += [made(f"h{number}", 1, task_id="hard") for number in range(4)]
    runs += [made(f"r{number}", 1, resolved=number == 0, task_id="right") for number in range(4)]
    runs += [made("f", 1, resolved=True, task_id="few"), lost("l", task_id="few"), lost("m", task_id="right")]
    files.write_lines(tmp_path / "runs.jsonl", map(to_json, runs))
    words = [
        "tasks",
        "band",
        str(tmp_path / "tasks.jsonl"),
        "--runs-of",
        str(tmp_path / "runs.jsonl"),
        "--out",
        str(tmp_path),
        "--least",
        "2",
    ]
    assert main([*words, "--json"]) == 2  # it would write over the tasks that it reads
    assert "another folder" in capsys.readouterr().err
    words[words.index("--out") + 1] = str(tmp_path / "out")
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "tasks": 4,
        "kept": 1,
        "left_out": {"too_few_rollouts": 1, "too_hard": 1, "too_easy": 1},
        "rollouts_without_a_grade": 2,
    }
    assert [each.task_id for each in files.tasks(tmp_path / "out" / "tasks.jsonl")] == ["right"]
    assert main([*words, "--high", "2"]) == 2
    assert main(["tasks", "band", str(tmp_path / "tasks.jsonl"), "--out", str(tmp_path / "out")]) == 2
