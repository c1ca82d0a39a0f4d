"""Every command ends with the same exit status when no service is configured, its address is invalid, or it does not answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from holdfast import InvalidArgumentError
from holdfast._errors import error
from holdfast.cli import app
from holdfast.cli.app import run
from holdfast_recipes.pipeline import files
from holdfast_wire.errors import TABLE

from tests.recipes.swe.conftest import small_task

COMMANDS = [
    "list", "ps -q", "exec sb true", "exec -d sb true", "run host true", "create host", "shell sb", "cp sb:/x -", "logs sb",
    "rm sb", "rm --all", "stop sb", "inspect sb", "stats", "top sb", "port sb 80", "image list", "image pull x", "image rm x",
]  # fmt: skip
RECIPES = [
    "recipes collect TASKS --out OUT --policy gold --rollouts 1 --no-pull",
    "recipes annotate TASKS --out OUT --estimator monte-carlo --tasks TASKS --policy http://127.0.0.1:1 --model m",
    "recipes equivalence TASKS --most 1",
]


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.jsonl"
    files.write_lines(path, [small_task(tmp_path / "archives").task.to_json()])
    return path


@pytest.mark.parametrize(
    ("url", "status", "typed"),
    [
        *((url, 2, typed) for url in (None, "nonsense") for typed in COMMANDS + RECIPES),
        *(("http://127.0.0.1:1", 125, typed) for typed in ("exec sb true", "ps -q", "create host", "rm sb", "image list", *RECIPES)),
    ],
)
def test_without_a_service(
    url: str | None, status: int, typed: str, tasks: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tasks.parent)
    monkeypatch.delenv("HOLDFAST_API_KEY", raising=False)
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    if url is not None:
        monkeypatch.setenv("HOLDFAST_URL", url)
        monkeypatch.setenv("HOLDFAST_API_KEY", "key")
    words = [str(tasks) if word == "TASKS" else word for word in typed.split()]
    assert run(words) == status, capsys.readouterr().err


@pytest.mark.parametrize("code", TABLE)
def test_every_invalid_argument_error_is_wrong_usage(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(_arguments: object) -> None:
        raise error(code, "it failed")

    monkeypatch.setattr("holdfast.cli.subcommands.version.version", version)
    assert app.run(["version"]) == (2 if isinstance(error(code, ""), InvalidArgumentError) else 125)


def test_up_without_the_server(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("holdfast.cli.subcommands.up.find_spec", lambda _: None)
    assert run(["up", "--json"]) == 2
    error = json.loads(capsys.readouterr().err)["error"]
    assert (error["code"], error["hint"]) == ("unsupported", "pip install 'holdfast[server]'")
