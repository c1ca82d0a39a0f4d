"""The commands on real sandboxes and scripted endpoints: from tasks to runs, values, a data set, rates and a page."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from holdfast import SandboxClient, commands_of
from holdfast_recipes.cli import main
from holdfast_recipes.core.diffs import reverse
from holdfast_recipes.core.trajectory import Trajectory
from holdfast_recipes.pipeline import files, runs

from tests.recipes.pipeline.endpoint import endpoint
from tests.recipes.pipeline.made import annotation
from tests.recipes.swe.conftest import BUG, small_task
from tests.support.requires import requires
from tests.support.stack import Stack
from tests.support.until import until

pytestmark = requires("namespaces", "redis", "git")

SCHEMAS = Path(__file__).parents[3] / "schemas" / "recipes"
RunJson = Callable[..., Any]


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """Two tasks and their archives."""
    path = tmp_path / "tasks.jsonl"
    small = [small_task(tmp_path / "archives", task_id=name).task for name in ("calc-1", "calc-2")]
    files.write_lines(path, [task.to_json() for task in small])
    return path


@pytest.fixture
def run_json(stack: Stack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunJson:
    """Runs a command with --json and returns the JSON that it printed."""
    monkeypatch.setenv("HOLDFAST_URL", stack.url)
    monkeypatch.setenv("HOLDFAST_API_KEY", stack.key)

    def run(*words: object, status: int = 0) -> Any:
        found = main([*map(str, words), "--json"])
        printed = capsys.readouterr()
        assert found == status, printed.err
        return json.loads(printed.out if status in (0, 1, 125) and printed.out else printed.err)

    return run


SMALL = ("--cpu", "0.5", "--memory", "0.25", "--concurrency", "4", "--no-pull")


def test_from_tasks_to_a_page_without_a_model(tasks: Path, tmp_path: Path, run_json: RunJson) -> None:
    gold = run_json("collect", tasks, "--out", tmp_path / "gold", "--policy", "gold", "--rollouts", 2, *SMALL)
    assert gold["outcomes"] == {"solved": 4, "failed": 0, "infrastructure": 0, "environment": 0, "ungraded": 0}
    assert {"creation", "loop", "reward", "shutdown"} <= gold["seconds"].keys()
    none = run_json("collect", tasks, "--out", tmp_path / "none", "--policy", "nothing", "--rollouts", 1, *SMALL)
    assert none["outcomes"]["failed"] == 2
    report = run_json("eval", tmp_path / "gold", "--k", 1, 2, "--against", tmp_path / "none", "--sandbox-hour", "0.1")
    assert [rate["pass_at_k"]["estimate"] for rate in report["rates"]] == [1.0, 1.0]
    assert report["comparison"]["difference"]["estimate"] == 1.0
    assert report["cost"]["per_solved_usd"] > 0
    for name in ("gold", "none"):
        for _, record in files.lines(tmp_path / name / files.TRAJECTORIES):
            jsonschema.validate(record, json.loads((SCHEMAS / "trajectory.schema.json").read_text()))
    jsonschema.validate(next(record for _, record in files.lines(tasks)), json.loads((SCHEMAS / "task.schema.json").read_text()))

    values = tmp_path / "values.jsonl"
    counts = run_json("annotate", tmp_path / "none", "--out", values, "--estimator", "milestones", "--tasks", tasks)
    assert counts == {"file": str(values), "counts": {"annotated": 2}, "left": 0}
    assert run_json("annotate", tmp_path / "none", "--out", values, "--estimator", "milestones", "--tasks", tasks)["counts"] == {
        "done_before": 2
    }
    manifest = run_json("curate", tmp_path / "gold", values, "--out", tmp_path / "set", "--tokenizer", "bytes", "--licence", "mit")
    assert (manifest["rows"], manifest["resolved"], manifest["collected"]) == (6, 4, 6)
    assert (manifest["credited_turns"], manifest["turns_of_unresolved"]) == (2, 4)  # the first turn saw the file of the bug
    assert run_json("validate", tmp_path / "set") == {"path": str(tmp_path / "set"), "ok": True, "problems": []}
    chosen = run_json(
        *("curate", tmp_path / "gold", "--out", tmp_path / "two", "--tokenizer", "bytes", "--form", "jsonl"),
        *("--select", "random", "--count", 2, "--tasks", tasks),
    )
    assert chosen["rows"] == 2
    page = tmp_path / "report.html"
    run_json("report", "--out", page, "--runs", values, "--eval", tmp_path / "gold", "--title", "A & B")
    assert "A &amp; B" in page.read_text()
    assert "100.0%" in page.read_text()


def failing(body: dict[str, Any]) -> dict[str, Any] | str:
    """Annotates if the request is for annotation; else it runs one command, changes nothing and submits."""
    if "p_resolve" in body["messages"][0]["content"]:
        return annotation([0.4, 0.5, 0.1])
    turn = sum(message["role"] == "assistant" for message in body["messages"])
    command = ["cat calc.py", "true", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"][min(turn, 2)]
    function = {"name": "bash", "arguments": json.dumps({"command": command})}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": f"c{turn}", "type": "function", "function": function}]}


def _is_complete(client: SandboxClient, recording_id: str) -> bool:
    return client.recordings.get(recording_id).ended_at is not None


def test_the_commands_of_a_trajectory_are_those_of_its_recording(tasks: Path, tmp_path: Path, run_json: RunJson, stack: Stack) -> None:
    with endpoint(failing) as served:
        policy = ("--policy", served.url, "--model", "m", "--record")
        run_json("collect", tasks, "--out", tmp_path / "run", "--rollouts", 1, *policy, *SMALL)
    with SandboxClient(stack.url, stack.key) as client:
        for _, record in files.lines(tmp_path / "run" / files.TRAJECTORIES):
            calls = [call for message in record["messages"] for call in message.get("tool_calls") or ()]
            played = [json.loads(call["function"]["arguments"])["command"] for call in calls]
            (listed,) = client.recordings.list(record["sandbox"]["id"])
            until(partial(_is_complete, client, listed.recording_id), deadline_s=60.0, what="the end of the recording")
            recorded = [one.command.decode() for one in commands_of(client.recordings.read(listed.recording_id))]
            assert [command for command in recorded if command in played] == played
            assert len(played) == 3


def test_annotated_by_the_model_that_made_the_runs(tasks: Path, tmp_path: Path, run_json: RunJson) -> None:
    with endpoint(failing) as served:
        policy = ("--policy", served.url)
        prices = ("--prices", "1000", "0")
        done = run_json("collect", tasks, "--out", tmp_path / "run", *policy, "--model", "m", "--rollouts", 1, *prices, *SMALL)
        assert done["outcomes"]["failed"] == 2
        assert done["cost_usd"] == pytest.approx(0.6)
        run = next(files.trajectories(tmp_path / "run"))
        assert run.verdict is not None
        assert run.verdict.failing == ("tests/test_calc.py::test_add",)
        counts = run_json("annotate", tmp_path / "run", "--out", tmp_path / "v.jsonl", *policy)
        assert counts["counts"] == {"annotated": 2}
        assert [body["model"] for body in served.requests][-1] == "m"
        prompt = served.requests[-1]["messages"][1]["content"]
        assert "tests/test_calc.py::test_add" in prompt
        manifest = run_json("curate", tmp_path / "v.jsonl", "--out", tmp_path / "set", "--tokenizer", "bytes")
        assert (manifest["unresolved"], manifest["credited_turns"], manifest["turns_of_unresolved"]) == (2, 2, 6)
        served.statuses += [503] * 100
        left = run_json("annotate", tmp_path / "run", "--out", tmp_path / "w.jsonl", *policy, "--tries", 1, status=125)
        assert (left["left"], left["counts"]) == (2, {"endpoint_unavailable": 2})
        served.statuses.clear()
        assert run_json("annotate", tmp_path / "run", "--out", tmp_path / "w.jsonl", *policy)["counts"] == {"annotated": 2}


def in_trees(body: dict[str, Any]) -> dict[str, Any] | str:
    """Looks, with an answer that no two runs of it have in common; thinks; submits nothing."""
    turn = sum(message["role"] == "assistant" for message in body["messages"])
    command = ["date +%s%N; cat /proc/sys/kernel/random/uuid", "true", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"][min(turn, 2)]
    function = {"name": "bash", "arguments": json.dumps({"command": command})}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": f"c{turn}", "type": "function", "function": function}]}


@requires("root")
@pytest.mark.parametrize(("words", "sizes"), [(("--branches", 2), [1, 2, 2]), ((), [5])])
def test_collected_from_trees_each_turn_gets_loss_once(
    tasks: Path, tmp_path: Path, run_json: RunJson, words: tuple[object, ...], sizes: list[int]
) -> None:
    """Without --branches all rollouts of a task share their first turns."""
    with endpoint(in_trees) as served:
        given = ("--policy", served.url, "--model", "m", "--rollouts", 5, "--branch-turn", 1, *words)
        done = run_json("collect", tasks, "--out", tmp_path / "run", *given, *SMALL)
        asked = len(served.requests)
    assert (done["finished"], done["outcomes"]["failed"]) == (10, 10)
    runs = list(files.trajectories(tmp_path / "run"))
    trees: dict[str, list[Trajectory]] = {}
    for run in runs:
        assert run.branch is not None
        assert run.branch.turn == 1
        trees.setdefault(run.branch.tree, []).append(run)
    for task in {run.task_id for run in runs}:
        assert sorted(len(leaves) for leaves in trees.values() if leaves[0].task_id == task) == sizes
    for leaves in trees.values():
        assert len({leaf.turns[0].observations for leaf in leaves}) == 1, "the first turn ran once"
    assert len({run.turns[0].observations for run in runs}) == len(trees)
    assert asked == len(trees) + 2 * len(runs), "the policy was asked once for each shared turn"
    for _, record in files.lines(tmp_path / "run" / files.TRAJECTORIES):
        jsonschema.validate(record, json.loads((SCHEMAS / "trajectory.schema.json").read_text()))
    chosen = ("--tokenizer", "bytes", "--unresolved", "all", "--form", "jsonl")
    manifest = run_json("curate", tmp_path / "run", "--out", tmp_path / "set", *chosen)
    assert (manifest["rows"], manifest["credited_turns"]) == (10, len(trees) + 2 * len(runs))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--branches", 2), "--branches needs --branch-turn"),
        (("--branch-turn", 0), "must be at least 1"),
        (("--branch-turn", 1, "--branches", 1), "at least 2"),
        (("--branch-turn", 1, "--rollouts", 1), "at least 2"),
        (("--branch-turn", 1, "--harness", "editor"), "cannot use --harness editor"),
    ],
)
def test_trees_that_cannot_be_are_refused_before_anything_starts(
    tasks: Path, tmp_path: Path, run_json: RunJson, words: tuple[object, ...], expected: str
) -> None:
    error = run_json("collect", tasks, "--out", tmp_path / "run", "--policy", "http://x", "--model", "m", *words, status=2)["error"]
    assert (error["code"], expected in error["message"]) == ("invalid_setting", True), error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("estimator", ["monte-carlo", "branched-monte-carlo"])
def test_monte_carlo_in_sandboxes(tasks: Path, tmp_path: Path, run_json: RunJson, estimator: str) -> None:
    """The policy repairs the bug in its second turn, unless the run it continues has passed that turn already."""

    def late(body: dict[str, Any]) -> dict[str, Any] | str:
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        commands = [
            "cat calc.py",
            "sed -i 's/a - b/a + b/' calc.py",
            "git diff > /tmp/p; echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat /tmp/p",
        ]
        function = {"name": "bash", "arguments": json.dumps({"command": commands[turn]})}
        return {"role": "assistant", "content": "", "tool_calls": [{"id": f"c{turn}", "type": "function", "function": function}]}

    with endpoint(failing) as served:
        run_json("collect", tasks, "--out", tmp_path / "run", "--policy", served.url, "--model", "m", "--rollouts", 1, "--most", 1, *SMALL)
    with endpoint(late) as served:
        how = ("--estimator", estimator, "--k", 2, "--tasks", tasks, *SMALL[:-1])
        counts = run_json("annotate", tmp_path / "run", "--out", tmp_path / "v.jsonl", "--policy", served.url, "--model", "m", *how)
    assert counts["counts"] == {"annotated": 1}
    run = next(files.trajectories(tmp_path / "v.jsonl"))
    assert (run.values, run.value_of) == ((1.0, 1.0, 0.0, 0.0), "before")


def test_a_killed_collection_continues_with_real_sandboxes(tasks: Path, tmp_path: Path, run_json: RunJson, stack: Stack) -> None:
    words = [
        "collect",
        str(tasks),
        "--out",
        str(tmp_path / "run"),
        "--policy",
        "gold",
        "--rollouts",
        "3",
        "--quiet",
        "--lease",
        "10",
        *SMALL,
    ]
    words[words.index("4")] = "2"
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast_recipes", *words], env=stack.environment() | {"PYTHONPATH": os.pathsep.join(sys.path)}
    )
    path = tmp_path / "run" / files.TRAJECTORIES
    until(lambda: path.exists() and path.read_bytes().count(b"\n") >= 2, deadline_s=120, what="two rollouts")
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = [run.trajectory_id for run in files.trajectories(path)]
    done = run_json(*words)
    assert done["finished"] == 6
    assert done["outcomes"]["solved"] == 6 - len(before)
    after = [run.trajectory_id for run in files.trajectories(path)]
    with SandboxClient(stack.url, stack.key) as client:  # the killed process's sandboxes were deleted when its lease expired
        until(lambda: not client.list_sandboxes({"holdfast-run": "run"}), deadline_s=60, what="its sandboxes to end")
    assert after[: len(before)] == before
    assert sorted(after) == sorted(f"run/calc-{task}/{index}" for task in (1, 2) for index in range(3))
    assert len(runs.attempts(tmp_path / "run") or []) in (6, 7)


def test_a_killed_gateway_fails_no_rollout(tasks: Path, tmp_path: Path, stack: Stack) -> None:
    """Killed in the middle of a collection, it is restarted; every rollout is solved, and those that failed were retried."""
    words = ["collect", str(tasks), "--out", str(tmp_path / "run"), "--policy", "gold", "--rollouts", "4", "--json", *SMALL]
    environment = stack.environment() | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-m", "holdfast_recipes", *words], env=environment, stdout=subprocess.PIPE, text=True)
    path = tmp_path / "run" / files.TRAJECTORIES
    until(lambda: path.exists() and path.read_bytes().count(b"\n") >= 1, deadline_s=120, what="a rollout")
    stack.wait_restarted("gateway", stack.kill_process("gateway"))
    stack.wait_ready()
    done = json.loads(process.communicate(timeout=150)[0])
    assert (done["finished"], done["given_up"], done["outcomes"]["solved"], done["outcomes"]["failed"]) == (8, 0, 8, 0)
    assert {run.resolved for run in files.trajectories(path)} == {True}


def test_a_task_that_cannot_start_is_not_blamed_on_the_policy(tmp_path: Path, run_json: RunJson) -> None:
    path = tmp_path / "tasks.jsonl"
    files.write_lines(path, [small_task(tmp_path / "archives", start_commands=("exit 3",)).task.to_json()])
    done = run_json("collect", path, "--out", tmp_path / "run", "--policy", "gold", "--rollouts", 1, *SMALL)
    assert done["outcomes"]["environment"] == 1


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (("collect", "TASKS", "--out", "RUN"), "invalid_setting", "--policy is missing"),
        (("collect", "TASKS", "--out", "RUN", "--policy", "gpt"), "invalid_setting", "http://"),
        (("collect", "TASKS", "--out", "RUN", "--policy", "http://x"), "invalid_setting", "--model is missing"),
        (("collect", "TASKS", "--out", "RUN", "--policy", "gold", "--rollouts", "0"), "invalid_setting", "at least one rollout"),
        (("collect", "/nope", "--out", "RUN", "--policy", "gold"), "data_error", "/nope"),
        (("collect", "TASKS", "--policy", "gold"), "invalid_argument", "--out"),
        (("annotate", "TASKS", "--out", "TASKS", "--policy", "http://x"), "invalid_setting", "--out is the file"),
        (("annotate", "TASKS", "--out", "RUN"), "invalid_setting", "needs --policy"),
        (("annotate", "TASKS", "--out", "RUN", "--estimator", "milestones"), "invalid_setting", "needs --tasks"),
        (
            (
                *("annotate", "TASKS", "--out", "RUN", "--estimator", "branched-monte-carlo", "--tasks", "TASKS"),
                *("--policy", "http://x", "--harness", "editor"),
            ),
            "invalid_setting",
            "cannot use --harness editor",
        ),
        (("curate", "TASKS", "--out", "RUN", "--select", "random"), "invalid_setting", "belong together"),
        (("curate", "TASKS", "--out", "RUN", "--tokenizer", "/nope"), "invalid_setting", "no tokenizer"),
        (("curate", "TASKS", "--out", "RUN", "--eps", "-1"), "invalid_setting", "cannot be below 0"),
        (("eval", "TASKS", "--confidence", "2"), "invalid_setting", "between 0 and 1"),
        (("report", "--out", "RUN", "--steps", "x"), "invalid_setting", "NAME=FILE"),
        (("sft",), "missing_extra", "needs PyTorch"),
        (("cost", "--sandboxes", "0"), "invalid_setting", "above zero"),
        (("nope",), "invalid_argument", "nope"),
    ],
)
def test_errors_have_a_code_and_a_status(
    words: tuple[str, ...], code: str, expected: str, tasks: Path, tmp_path: Path, run_json: RunJson
) -> None:
    given = [str(tasks) if word == "TASKS" else str(tmp_path / "out") if word == "RUN" else word for word in words]
    error = run_json(*given, status=2)["error"]
    assert (error["code"], expected in error["message"]) == (code, True), error


def test_an_endpoint_that_refuses_is_named(tasks: Path, tmp_path: Path, run_json: RunJson) -> None:
    with endpoint(failing) as served:
        run_json("collect", tasks, "--out", tmp_path / "run", "--policy", served.url, "--model", "m", "--rollouts", 1, *SMALL)
        served.statuses += [401] * 100
        error = run_json("annotate", tmp_path / "run", "--out", tmp_path / "v.jsonl", "--policy", served.url, status=125)["error"]
    assert error["code"] == "endpoint_error"


def test_wrong_settings_are_not_kept_in_the_run(tasks: Path, tmp_path: Path, run_json: RunJson) -> None:
    run_json("collect", tasks, "--out", tmp_path / "run", "--policy", "http://x", status=2)
    assert not (tmp_path / "run").exists()


def test_a_run_without_a_finished_rollout_has_failed(tasks: Path, tmp_path: Path, run_json: RunJson) -> None:
    policy = ("--policy", "http://127.0.0.1:1/v1", "--model", "m", "--rollouts", 1, "--tries", 1)
    done = run_json("collect", tasks, "--out", tmp_path / "run", *policy, *SMALL, status=125)
    assert (done["finished"], done["given_up"]) == (0, 2)


def test_the_error_for_a_file_of_other_records_names_the_missing_field(tasks: Path, tmp_path: Path, run_json: RunJson) -> None:
    others = tmp_path / "others.jsonl"
    others.write_text('{"a": 1}\n')
    assert "there is no field 'messages'" in run_json("eval", others, status=2)["error"]["message"]
    assert "there is no field 'harness'" in run_json("eval", tasks, status=2)["error"]["message"]


def test_training_commands_receive_their_arguments(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """``holdfast_recipes.training.commands`` needs PyTorch, so a stub module replaces it here."""
    given: list[list[str]] = []
    monkeypatch.setattr("holdfast_recipes.cli.training.find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "holdfast_recipes.training.commands", None)
    assert main(["rl", "--help"]) == 2
    assert "holdfast[train]" in capsys.readouterr().err

    def commanded(status: int) -> Callable[[list[str]], int]:
        return lambda words: (given.append(words), status)[1]  # type: ignore[func-returns-value]

    stand_in = SimpleNamespace(sft=commanded(3), rl=commanded(0))
    monkeypatch.setitem(sys.modules, "holdfast_recipes.training.commands", stand_in)
    assert main(["sft", "set", "--out", "model", "--json"]) == 3
    assert main(["--json", "rl", "--help"]) == 0
    assert given == [["set", "--out", "model", "--json"], ["--json", "--help"]]


def test_the_gold_patch_is_the_reverse_of_the_bug(tmp_path: Path) -> None:
    assert small_task(tmp_path).task.gold_patch == reverse(BUG)
