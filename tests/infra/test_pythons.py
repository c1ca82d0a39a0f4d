"""The choice of the interpreter of `make setup`, on fake Pythons that only report a version."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "infra/scripts/pythons"


class Machine:
    """A folder of programs that is the whole PATH, and a home with a folder of pyenv."""

    def __init__(self, folder: Path) -> None:
        self.tools, self.home = folder / "tools", folder / "home"
        self.tools.mkdir()
        bash = shutil.which("bash")
        assert bash is not None
        (self.tools / "bash").symlink_to(bash)

    def python(self, path: Path, minor: int) -> str:
        """A Python 3.`minor` that evaluates the one question of the script: whether its version lies between two others."""
        path.parent.mkdir(parents=True, exist_ok=True)
        answers = f"below=${{2##*, }}\nbelow=${{below%%[)]*}}\n(( 11 <= {minor} && {minor} < below ))"
        path.write_text(f"#!{self.tools}/bash\n{answers}\n")
        path.chmod(0o755)
        return str(path)

    def found(self, **environment: str) -> list[str]:
        """What the script prints, without the machine's own /usr/bin/python3."""
        line = [str(self.tools / "bash"), str(SCRIPT)]
        done = subprocess.run(line, env={"PATH": str(self.tools), "HOME": str(self.home), **environment}, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        return [path for path in done.stdout.splitlines() if path != "/usr/bin/python3"]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_newest_version_comes_first_wherever_it_lies(machine: Machine) -> None:
    on_path = [machine.python(machine.tools / f"python3{suffix}", minor) for suffix, minor in ((".11", 11), (".13", 13), ("", 11))]
    of_pyenv = [machine.python(machine.home / f".pyenv/versions/3.{name}/bin/python3", int(name[:2])) for name in ("12.1", "14.0")]
    assert machine.found() == [of_pyenv[1], on_path[1], of_pyenv[0], on_path[0], on_path[2]]


def test_a_python_that_does_not_run_or_is_too_old_is_left_out(machine: Machine) -> None:
    machine.python(machine.tools / "python3", 10)
    broken = machine.tools / "python3.14"  # like a shim of a version manager that lacks this version
    broken.write_text(f"#!{machine.tools}/bash\nexit 127\n")
    broken.chmod(0o755)
    kept = machine.python(machine.tools / "python3.12", 12)
    assert machine.found() == [kept]


def test_a_named_python_is_the_only_one(machine: Machine) -> None:
    machine.python(machine.tools / "python3.14", 14)
    named = machine.python(machine.home / "own/python", 11)
    assert machine.found(PYTHON=named) == [named]
    assert machine.found(PYTHON="no-such-python") == []


def test_versions_that_a_caller_cannot_use_are_left_out(machine: Machine) -> None:
    kept = [machine.python(machine.tools / f"python3.{minor}", minor) for minor in (14, 13, 12, 11)][2:]
    assert machine.found(PYTHON_BELOW="13") == kept


def test_pyenv_may_lie_elsewhere(machine: Machine) -> None:
    kept = machine.python(machine.home / "elsewhere/versions/3.13.2/bin/python3", 13)
    assert machine.found(PYENV_ROOT=str(machine.home / "elsewhere")) == [kept]


def test_the_oldest_is_the_lowest_patch_release(tmp_path: Path) -> None:
    """On this machine: the suite of the lowest versions runs on it."""
    found = subprocess.run([SCRIPT], capture_output=True, text=True, check=True).stdout.split()
    oldest = subprocess.run([SCRIPT, "--oldest"], capture_output=True, text=True, check=True).stdout.split()
    show = "import sys; print(*sys.version_info[:3])"
    versions = {path: tuple(map(int, subprocess.run([path, "-c", show], capture_output=True, text=True).stdout.split())) for path in found}
    assert len(oldest) == 1
    assert versions[oldest[0]] == min(versions.values())
