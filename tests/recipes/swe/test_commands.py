"""`holdfast recipes mutate` and `equivalence` as a user runs them, on a stack of this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from holdfast_recipes.cli import main
from holdfast_recipes.swe.equivalence import WAYS, Pair, script, table

from tests.recipes.swe.conftest import small_task
from tests.recipes.swe.test_factory import SUITE, own_sdist
from tests.support.requires import requires
from tests.support.stack import Stack

pytestmark = requires("namespaces", "redis", "git")


@pytest.fixture
def service(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Stack:
    monkeypatch.setenv("HOLDFAST_URL", stack.url)
    monkeypatch.setenv("HOLDFAST_API_KEY", stack.key)
    return stack


def test_tasks_from_a_file_and_the_same_agent_on_both_sides(service: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own_sdist(tmp_path, SUITE.partition("def test_flaky")[0])  # on the bare machine what it leaves in /tmp stays
    words = ["mutate", tmp_path / "library-1.0.tar.gz", "--module", "library.py", "--tests", "test_library.py", "--out", tmp_path / "out"]
    assert main([*map(str, words), "--most", "3", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["tasks"] == 3
    assert record["by_project"] == {"library": 3}
    assert record["mutants"]["made"] >= 3
    rows = [json.loads(line) for line in (tmp_path / "out/tasks.jsonl").read_text().splitlines()]
    assert [row["repo"] for row in rows] == ["library"] * 3
    assert {path.stem for path in (tmp_path / "out/archives").iterdir()} == set(rows[0]["archives"])
    assert main(["equivalence", str(tmp_path / "out/tasks.jsonl"), "--test-timeout", "20", "--json"]) == 0
    pairs = json.loads(capsys.readouterr().out)
    assert [pair["same"] for pair in pairs] == [True] * 3
    assert [pair["different"] for pair in pairs] == [0] * 3
    assert all(pair["observations"] >= 4 for pair in pairs)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["nothing"], "no project"),
        (["inflection==9.9"], "pinned at 0.5.1"),
        (["x.tar.gz"], "--module"),
        (["x.tar.gz", "--module", "a.py", "--tests", "b.py"], "x.tar.gz"),
        (["--most", "0"], "at least 1"),
        (["--memory", "0"], "above 0"),
    ],
)
def test_arguments_that_make_no_tasks_are_refused(words: list[str], error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mutate", *words, "--out", str(tmp_path)]) == 2
    assert error in capsys.readouterr().err


def test_every_way_of_the_agent_makes_commands(tmp_path: Path) -> None:
    task = small_task(tmp_path).task
    scripts = {way: [turn["tool_calls"][0]["function"]["arguments"] for turn in script(task, way)] for way in WAYS}
    assert len({tuple(turns) for turns in scripts.values()}) == len(set(WAYS))


def test_a_difference_is_named() -> None:
    same = Pair("a", "repair", 1.0, 1.0, "completed", "completed", 6, 0)
    other = Pair("b", "repair", 1.0, None, "completed", "aborted", 6, 2)
    assert (same.same, other.same) == (True, False)
    lines = table([same, other]).splitlines()
    assert lines[1].split() == ["repair", "2", "2", "1", "1", "12", "2"]
    assert "b (repair): bare 1.0 completed, sandbox None aborted" in lines
