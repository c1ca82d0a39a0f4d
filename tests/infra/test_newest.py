"""The choice of the interpreter of `make test-newest`. The script runs in a temporary folder, on fake Pythons that only print a version."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "infra/scripts"
TOOLS = ("bash", "dirname", "rm", "sort", "tail")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose .venv has Python 3.11, and whose setup script prints how it was called and creates a virtual environment."""
    (tmp_path / "infra/scripts").mkdir(parents=True)
    shutil.copy(SCRIPTS / "newest_venv", tmp_path / "infra/scripts")
    (tmp_path / "pyproject.toml").touch()
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        assert found is not None
        (tools / name).symlink_to(found)
    mkdir, cp = shutil.which("mkdir"), shutil.which("cp")
    setup = f'[ -e "$1" ] && made=old || made=new; echo "$made $1 $PYTHON"; {mkdir} -p "$1/bin"; {cp} "$PYTHON" "$1/bin/python"'
    program(tmp_path / "infra/scripts/setup", setup)
    python(tmp_path / ".venv/bin/python", "3.11")
    return tmp_path


def program(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/bash\n{text}\n")
    file.chmod(0o755)


def python(file: Path, version: str) -> str:
    program(file, f"echo {version}")
    return str(file)


def choose(checkout: Path, named: str = "") -> tuple[int, str, str]:
    line = [str(checkout / "infra/scripts/newest_venv"), ".venv-newest", named]
    done = subprocess.run(line, env={"PATH": str(checkout / "tools")}, capture_output=True, text=True)
    return done.returncode, done.stdout.strip(), done.stderr


def test_the_highest_version_on_path_is_chosen(checkout: Path) -> None:
    for version in ("3.9", "3.12", "3.13"):
        python(checkout / f"tools/python{version}", version)
    program(checkout / "tools/python3.14", "exit 127")  # like a shim of a version manager that lacks this version
    assert choose(checkout) == (0, f"new .venv-newest {checkout}/tools/python3.13", "")


def test_without_a_newer_python_nothing_runs(checkout: Path) -> None:
    python(checkout / ".venv/bin/python", "3.13")
    for version in ("3.12", "3.13"):
        python(checkout / f"tools/python{version}", version)
    status, made, why = choose(checkout)
    assert (status, made) == (1, "")
    assert "NO TEST WAS RUN: no Python on PATH is newer than the 3.13 of .venv" in why
    assert "PYTHON=/path/to/python3" in why


@pytest.mark.parametrize(
    ("version", "why"), [("3.10", "3.10, not newer than the 3.11"), ("3.9", "3.9, not newer"), ("3.11", "3.11, not newer")]
)
def test_a_named_python_must_be_newer(checkout: Path, version: str, why: str) -> None:
    python(checkout / "tools/python3.13", "3.13")
    status, made, error = choose(checkout, python(checkout / "own", version))
    assert (status, made) == (1, "")
    assert why in error


def test_a_named_python_that_does_not_run_is_refused(checkout: Path) -> None:
    python(checkout / "tools/python3.13", "3.13")
    program(checkout / "broken", "exit 1")
    for named in ("/nowhere/python3", str(checkout / "broken"), os.devnull):
        status, made, error = choose(checkout, named)
        assert (status, made) == (1, ""), named
        assert f"NO TEST WAS RUN: {named} is not a Python that runs" in error


def test_an_environment_of_another_version_is_created_again(checkout: Path) -> None:
    older, newer = python(checkout / "a", "3.12"), python(checkout / "b", "3.13")
    assert choose(checkout, older) == (0, f"new .venv-newest {older}", "")
    assert choose(checkout, older) == (0, f"old .venv-newest {older}", "")  # without a stamp its installation was interrupted
    stamp = checkout / ".venv-newest/.stamp"
    stamp.touch()
    later = stamp.stat().st_mtime + 10
    os.utime(stamp, (later, later))
    assert choose(checkout, older) == (0, "", "")
    assert choose(checkout, newer) == (0, f"new .venv-newest {newer}", "")
