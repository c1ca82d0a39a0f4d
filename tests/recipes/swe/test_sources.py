"""A6: one row of each published format, and what is wrong with rows that cannot be used."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from holdfast_recipes.core import diffs
from holdfast_recipes.swe.sources import READERS, RowError, SweTask, read_row

FIX = "diff --git a/m.py b/m.py\n--- a/m.py\n+++ b/m.py\n@@ -1,2 +1,2 @@\n def f(a, b):\n-    return a - b\n+    return a + b\n"
TESTS = "diff --git a/t.py b/t.py\n--- a/t.py\n+++ b/t.py\n@@ -1 +1 @@\n-x\n+y\n"
COMMON: dict[str, Any] = {
    "instance_id": "Own__er-repo-1",
    "repo": "Own/er-repo",
    "patch": FIX,
    "problem_statement": "f is wrong",
    "FAIL_TO_PASS": json.dumps(["t.py::test_f"]),
    "PASS_TO_PASS": ["t.py::test_g", "t.py::test_h[a b]"],
}
ROWS: dict[str, dict[str, Any]] = {
    "swe_bench": {**COMMON, "base_commit": "abc", "test_patch": TESTS, "hints_text": "hint", "version": "1.2", "created_at": "2020"},
    "swe_rebench": {
        **COMMON,
        "base_commit": "abc",
        "test_patch": TESTS,
        "docker_image": "swerebench/x:1",
        "install_config": json.dumps({"test_cmd": "pytest -rA", "log_parser": "parse_log_pytest"}),
        "meta": {},
    },
    "swe_rebench_v2": {
        **COMMON,
        "image": "v2/x:1",
        "test_patch": TESTS,
        "language": "Go",
        "install_config": {"test_cmd": ["go test ./...", "go vet"], "log_parser": "go"},
    },
    "scale_swe": {
        **COMMON,
        "user": "Own",
        "repo": "er-repo",
        "language": "python",
        "workdir": "/workspace/er-repo",
        "image_url": "scale/x:1",
        "pr_commit": "p",
        "parent_commit": "abc",
        "f2p_patch": "",
        "f2p_script": "def test_f(): ...",
        "github_url": "https://example.org",
        "pre_commands": "source /env.sh",
    },
    "swe_smith": {**COMMON, "image_name": "swesmith/x:1"},
    "swe_gym": {**COMMON, "base_commit": "abc", "test_patch": TESTS, "version": "1.2"},
}


def test_every_format_is_read() -> None:
    assert ROWS.keys() == READERS.keys()
    tasks = {source: read_row(row, source) for source, row in ROWS.items()}
    for source, task in tasks.items():
        assert (task.task_id, task.repo, task.source, task.prompt) == ("Own__er-repo-1", "Own/er-repo", source, "f is wrong")
        assert task.fail_to_pass == ("t.py::test_f",)
        assert task.pass_to_pass == ("t.py::test_g", "t.py::test_h[a b]")
    assert {source: task.image for source, task in tasks.items()} == {
        "swe_bench": "docker.io/swebench/sweb.eval.x86_64.own_1776_er-repo-1:latest",
        "swe_rebench": "swerebench/x:1",
        "swe_rebench_v2": "v2/x:1",
        "scale_swe": "scale/x:1",
        "swe_smith": "swesmith/x:1",
        "swe_gym": "docker.io/xingyaoww/sweb.eval.x86_64.own_s_er-repo-1:latest",
    }
    assert {source: task.workdir for source, task in tasks.items()} == {
        "swe_bench": "/testbed",
        "swe_rebench": "/testbed",
        "swe_rebench_v2": "/er-repo",
        "scale_swe": "/workspace/er-repo",
        "swe_smith": "/testbed",
        "swe_gym": "/testbed",
    }
    assert tasks["swe_bench"].hints == "hint"
    assert (tasks["swe_rebench"].test_commands, tasks["swe_rebench"].log_parser) == (("pytest -rA",), "parse_log_pytest")
    assert (tasks["swe_rebench_v2"].test_commands, tasks["swe_rebench_v2"].language) == (("go test ./...", "go vet"), "go")
    assert (tasks["scale_swe"].start_commands, tasks["scale_swe"].test_script) == (("source /env.sh",), "def test_f(): ...")
    assert tasks["scale_swe"].base_commit == "abc"


def test_an_image_that_is_named_wins() -> None:
    assert read_row({**ROWS["swe_bench"], "image_name": "mirror/x:2"}, "swe_bench").image == "mirror/x:2"


def solved(task: SweTask, folder: Path, clean: str) -> str:
    (folder / "m.py").write_text(clean)
    for patch in filter(None, (task.start_patch, task.gold_patch)):
        subprocess.run(["git", "apply"], input=patch, cwd=folder, text=True, check=True)
    return (folder / "m.py").read_text()


def test_the_patch_of_swe_smith_is_the_bug(tmp_path: Path) -> None:
    right, wrong = "def f(a, b):\n    return a + b\n", "def f(a, b):\n    return a - b\n"
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    bug = diffs.reverse(FIX)
    smith = read_row({**ROWS["swe_smith"], "patch": bug}, "swe_smith")
    assert smith.start_patch == bug
    assert diffs.parse(smith.gold_patch)[0].lines("+") == ["    return a + b"]
    assert solved(smith, tmp_path, right) == right
    assert solved(read_row(ROWS["swe_bench"], "swe_bench"), tmp_path, wrong) == right


@pytest.mark.parametrize("source", list(READERS))
def test_tasks_fit_their_schema(source: str) -> None:
    schema = json.loads((Path(__file__).parents[3] / "schemas/recipes/task.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    record = json.loads(json.dumps(read_row(ROWS[source], source).to_json()))
    jsonschema.validate(record, schema)
    assert "patch" not in record["prompt"]


@pytest.mark.parametrize(
    ("source", "change", "words"),
    [
        ("swe_bench", {"FAIL_TO_PASS": "[]"}, "FAIL_TO_PASS"),
        ("swe_bench", {"FAIL_TO_PASS": None}, "FAIL_TO_PASS"),
        ("swe_bench", {"FAIL_TO_PASS": "[oops"}, "not a list"),
        ("swe_bench", {"FAIL_TO_PASS": [1]}, "something else"),
        ("swe_bench", {"FAIL_TO_PASS": {"a": 1}}, "not a list"),
        ("swe_bench", {"problem_statement": ""}, "problem_statement"),
        ("swe_bench", {"patch": None}, "patch"),
        ("swe_rebench", {"docker_image": ""}, "image"),
        ("swe_rebench", {"install_config": "{"}, "install_config"),
        ("swe_rebench", {"install_config": "[]"}, "install_config"),
        ("scale_swe", {"workdir": None}, "workdir"),
        ("swe_smith", {"patch": "no diff"}, "diff"),
        ("nothing", {}, "unknown format"),
    ],
)
def test_rows_that_cannot_be_used(source: str, change: dict[str, Any], words: str) -> None:
    with pytest.raises(RowError, match=words):
        read_row({**ROWS.get(source, COMMON), **change}, source)
