"""Every example of infra/recipes/README.md, run in its order as a researcher would, with a stub endpoint for the model."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from holdfast_recipes.cli import COMMANDS
from holdfast_recipes.pipeline import files
from holdfast_recipes.pipeline.validate import validate

from tests.recipes.pipeline.endpoint import endpoint
from tests.recipes.pipeline.made import annotation
from tests.support.requires import requires
from tests.support.stack import Stack

pytestmark = requires("namespaces", "redis", "git", "bash")

GUIDE = Path(__file__).parents[3] / "infra" / "recipes" / "README.md"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall(GUIDE.read_text())
SUBMIT = "git diff > /tmp/p; echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat /tmp/p"


def policy(folder: Path) -> Any:
    """A model that knows the answers, and gives them in every other rollout."""

    def answer(body: dict[str, Any]) -> dict[str, Any] | str:
        text_sent = "\n".join(str(message["content"]) for message in body["messages"])
        if "p_resolve" in text_sent:
            return annotation([0.4, 0.5, 0.1])
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        task = next(each for each in files.tasks(folder / "tasks" / "tasks.jsonl") if each.prompt in text_sent)
        fix = f"git apply - <<'END'\n{task.gold_patch}END" if body["seed"] % 2 else "git status --short"
        function = {"name": "bash", "arguments": json.dumps({"command": ["ls", fix, SUBMIT][turn]})}
        return {"role": "assistant", "content": "", "tool_calls": [{"id": f"c{turn}", "type": "function", "function": function}]}

    return answer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the examples run in order."""
    return tmp_path_factory.mktemp("guide")


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with endpoint(policy(folder)) as served:
        yield served.url


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_every_example_works(number: int, folder: Path, address: str, stack: Stack) -> None:
    kind, text = BLOCKS[number]
    text = text.replace("http://127.0.0.1:8000/v1", address)
    command = ["bash", "-euo", "pipefail", "-c", text] if kind == "sh" else [sys.executable, "-W", "error", "-c", text]
    environment = stack.environment() | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"


def test_files_that_the_examples_create(folder: Path) -> None:
    assert {run.resolved for run in files.trajectories(folder / "gold")} == {True}
    assert {run.resolved for run in files.trajectories(folder / "nothing")} == {False}
    assert {run.resolved for run in files.trajectories(folder / "run")} == {True, False}
    assert validate(folder / "set") == []
    steps = [record for _, record in files.lines(folder / "steps.jsonl")]
    assert [record["step"] for record in steps] == [1, 2, 3]
    assert all(record["samples"] >= 4 for record in steps)
    page = (folder / "report.html").read_text()
    assert "Groups of RL" in page
    assert "Values and rise segments" in page


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_has_examples_that_name_the_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    from holdfast_recipes.cli import main

    assert main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"holdfast recipes {name}" in shown
    assert "examples:" in shown


def test_the_guide_names_every_command() -> None:
    guide = GUIDE.read_text()
    assert [name for name in COMMANDS if f"holdfast recipes {name}" not in guide and f"`{name}`" not in guide] == []
