"""``holdfast recipes eval suite`` on real sandboxes: references, a scripted model, kill -9 in the middle, faults apart, the table."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from holdfast import SandboxClient
from holdfast_recipes.cli import main
from holdfast_recipes.pipeline import files, runs
from holdfast_recipes.suites.kinds import KINDS
from holdfast_recipes.suites.registry import SUITES

from tests.recipes.pipeline.endpoint import endpoint
from tests.recipes.suites.made import SETTINGS, TEST, harbor_task
from tests.recipes.swe.conftest import small_task
from tests.support.requires import requires
from tests.support.stack import Stack
from tests.support.until import until

pytestmark = requires("namespaces", "redis", "git")

Suite = Callable[..., Any]
SMALL = ("--concurrency", "2", "--no-pull", "--quiet")


@pytest.fixture
def suite(stack: Stack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Suite:
    """Runs a suite with --json and returns the JSON that it printed."""
    monkeypatch.setenv("HOLDFAST_URL", stack.url)
    monkeypatch.setenv("HOLDFAST_API_KEY", stack.key)

    def run(*words: object, status: int = 0) -> Any:
        found = main(["eval", "suite", *map(str, words), *SMALL, "--json"])
        printed = capsys.readouterr()
        assert found == status, printed.err
        return json.loads(printed.out if status in (0, 125) and printed.out else printed.err)

    return run


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """Two tasks that the scripted model can solve, and one that it cannot."""
    folder = tmp_path / "tasks"
    for name in ("easy-1", "easy-2"):
        harbor_task(folder, name)
    harbor_task(folder, "hard", test=TEST.replace("answer", "other"), solve="#!/bin/sh\necho 42 > /tmp/other.txt\n")
    return folder


def answering(body: dict[str, Any]) -> dict[str, Any]:
    """A model that writes the answer in its first turn and ends in its second."""
    turn = sum(message["role"] == "assistant" for message in body["messages"])
    command = ("echo 42 > /tmp/answer.txt", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")[min(turn, 1)]
    function = {"name": "bash", "arguments": json.dumps({"command": command})}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": f"c{turn}", "type": "function", "function": function}]}


def test_the_reference_solves_every_task_and_nothing_solves_none(tasks: Path, tmp_path: Path, suite: Suite) -> None:
    gold = suite("terminal-bench-2", "--tasks", tasks, "--out", tmp_path / "gold", "--agent", "gold", "--rollouts", 1)
    assert {task: (row["solved"], row["trials"]) for task, row in gold["by_task"].items()} == {
        "easy-1": (1, 1),
        "easy-2": (1, 1),
        "hard": (1, 1),
    }
    none = suite("terminal-bench-2", "--tasks", tasks, "--out", tmp_path / "none", "--agent", "nothing", "--rollouts", 1)
    assert [row["solved"] for row in none["by_task"].values()] == [0, 0, 0]
    assert none["report"]["trials"] == {"solved": 0, "failed": 3, "infrastructure": 0, "environment": 0, "ungraded": 0}


def test_a_scripted_model_and_its_table(tasks: Path, tmp_path: Path, suite: Suite) -> None:
    harbor_task(tasks, "compose", **{"environment__docker-compose.yaml": "services: {}\n"})
    harbor_task(tasks, "sick", settings=SETTINGS + '\n[environment.healthcheck]\ncommand = "false"\ninterval_sec = 0.01\nretries = 2\n')
    with endpoint(answering) as served:
        words = ("--policy", served.url, "--model", "m", "--prices", 10, 10, "--rollouts", 2, "--seed", 7, "--sandbox-hour", 0.1)
        found = suite("terminal-bench-2", "--tasks", tasks, "--out", tmp_path / "run", *words)
    assert {task: (row["solved"], row["trials"]) for task, row in found["by_task"].items()} == {
        "easy-1": (2, 2),
        "easy-2": (2, 2),
        "hard": (0, 2),
        "sick": (0, 0),
    }
    assert found["report"]["trials"] == {"solved": 4, "failed": 2, "infrastructure": 0, "environment": 2, "ungraded": 0}
    assert found["left_out"] == {"compose": "its environment is a compose file"}
    (one, two) = found["report"]["rates"]
    assert one["pass_at_k"]["estimate"] == pytest.approx(2 / 3)
    assert one["pass_at_k"]["low"] < 2 / 3 < one["pass_at_k"]["high"]
    assert two["k"] == 2
    assert found["report"]["cost"]["policy_usd"] > 0
    assert all(row["digests"] for row in found["by_task"].values())
    table = (tmp_path / "run" / "table.md").read_text()
    for part in (
        "| Terminal-Bench 2.0 | mini 1 | m | 4 | 6 | 66.7% [",
        "| 2 from 7 |",
        "| hard | 0/2 | host | ",
        "- compose: its environment",
    ):
        assert part in table, table
    hard = [run for run in files.trajectories(tmp_path / "run") if run.task_id == "hard"]
    assert {(run.reward, run.verdict.failing if run.verdict else ()) for run in hard} == {(-1.0, ("tests/test.sh",))}


def test_a_killed_suite_goes_on(tasks: Path, tmp_path: Path, suite: Suite, stack: Stack) -> None:
    with endpoint(answering) as served:
        words = ["terminal-bench-2", "--tasks", str(tasks), "--out", str(tmp_path / "run"), "--policy", served.url, "--model", "m"]
        words += ["--rollouts", "3", "--lease", "10"]
        command = [sys.executable, "-m", "holdfast_recipes", "eval", "suite", *words, *SMALL]
        process = subprocess.Popen(command, env=stack.environment() | {"PYTHONPATH": os.pathsep.join(sys.path)})
        path = tmp_path / "run" / files.TRAJECTORIES
        until(lambda: path.exists() and path.read_bytes().count(b"\n") >= 2, deadline_s=120, what="two trials")
        process.send_signal(signal.SIGKILL)
        process.wait()
        before = [run.trajectory_id for run in files.trajectories(path)]
        found = suite(*words)
    after = [run.trajectory_id for run in files.trajectories(path)]
    assert 2 <= len(before) < 9
    assert after[: len(before)] == before
    assert sorted(after) == sorted(f"run/{task}/{index}" for task in ("easy-1", "easy-2", "hard") for index in range(3))
    assert found["this_process"]["outcomes"]["solved"] + found["this_process"]["outcomes"]["failed"] == 9 - len(before)
    assert [row["trials"] for row in found["by_task"].values()] == [3, 3, 3]
    with SandboxClient(stack.url, stack.key) as client:  # those of the killed process ended with their lease
        until(lambda: not client.list_sandboxes({"holdfast-run": "run"}), deadline_s=60, what="its sandboxes to end")


def test_time_that_is_over_is_graded_as_the_machine_stands(tmp_path: Path, suite: Suite) -> None:
    folder = tmp_path / "tasks"
    harbor_task(folder, "slow", settings=SETTINGS.replace("60.0", "1.0"))

    def slow(body: dict[str, Any]) -> dict[str, Any]:
        turn = answering(body)
        if any(message["role"] == "tool" for message in body["messages"]):
            turn["tool_calls"][0]["function"]["arguments"] = json.dumps({"command": "sleep 600"})
        return turn

    with endpoint(slow) as served:
        found = suite(
            "harbor", "--tasks", folder, "--out", tmp_path / "run", "--policy", served.url, "--model", "m", "--command-timeout", 2
        )
    assert (found["by_task"]["slow"]["solved"], found["report"]["statuses"]) == (1, {"timeout": 1})


def test_tests_without_a_reward_are_the_agents_failure(tmp_path: Path, suite: Suite) -> None:
    folder = tmp_path / "tasks"
    harbor_task(folder, "silent", test="#!/bin/sh\nexit 0\n")
    harbor_task(folder, "odd", test="#!/bin/sh\necho well > /logs/verifier/reward.txt\n")
    harbor_task(folder, "stale", test="#!/bin/sh\ntrue\n", solve="#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n")
    found = suite("harbor", "--tasks", folder, "--out", tmp_path / "run", "--agent", "gold")
    assert [row["solved"] for row in found["by_task"].values()] == [0, 0, 0]
    assert found["report"]["reasons"]["verifier: no reward"] == 2  # one that was there before the tests is removed


def test_tasks_of_our_own_through_the_same_command(tmp_path: Path, suite: Suite) -> None:
    rows = tmp_path / "tasks.jsonl"
    files.write_lines(rows, [small_task(tmp_path / "archives", task_id=name).task.to_json() for name in ("calc-1", "calc-2")])
    small = ("--cpu", 0.5, "--memory", 0.25)
    found = suite("own", "--tasks", rows, "--out", tmp_path / "run", "--agent", "gold", *small)
    assert [row["solved"] for row in found["by_task"].values()] == [1, 1]
    error = suite("own", "--tasks", rows, "--out", tmp_path / "run", "--agent", "nothing", *small, status=2)
    assert error["error"]["code"] == "run_mismatch"
    assert len(runs.attempts(tmp_path / "run") or []) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("terminal-bench-2",), "--tasks is missing"),
        (("terminal-bench-2", "--tasks", "TASKS"), "--policy is missing"),
        (("terminal-bench-2", "--tasks", "TASKS", "--policy", "http://x"), "--model is missing"),
        (("terminal-bench-2", "--tasks", "TASKS", "--agent", "gold", "--pass-env", "NO_SUCH"), "NO_SUCH"),
        (("terminal-bench-2", "--tasks", "/nowhere", "--agent", "gold"), "task.toml"),
        (("swe-bench-verified", "--tasks", "TASKS", "--agent", "gold"), "no .jsonl or .parquet"),
        (("no-suite",), "no-suite"),
    ],
)
def test_errors_name_what_to_do(tasks: Path, tmp_path: Path, suite: Suite, words: tuple[str, ...], said: str) -> None:
    given = [str(tasks) if word == "TASKS" else word for word in words]
    error = suite(*given, "--out", tmp_path / "run", status=2)["error"]
    assert said in error["message"]
    assert not (tmp_path / "run").exists()


def test_every_suite_has_a_kind() -> None:
    assert {suite.kind for suite in SUITES.values()} <= KINDS.keys()
