"""The wheels that a user installs, away from this checkout: the server starts from them, and the first example runs against it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import holdfast
import holdfast_recipes
import pytest
from holdfast_server.datadir import read_env
from holdfast_server.embed import free_port
from holdfast_server.layout import TOP

from tests.support.requires import requires
from tests.support.until import until

_EXAMPLE = """
from holdfast import SandboxClient

with SandboxClient() as client, client.create_sandbox("host") as sandbox:
    shell = sandbox.shell()
    shell.run("cd /tmp && export NAME=Ada")
    print(shell.run("echo $NAME in $PWD").stdout, end="")
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheels of ``make wheels``."""
    folder = tmp_path_factory.mktemp("wheels")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, TOP, TOP / "sdk_py/holdfast_recipes"],
        check=True,
        capture_output=True,
        timeout=150,
    )
    return folder


@pytest.fixture(scope="module")
def installed(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pip would unpack of ``holdfast`` into site-packages."""
    return _unpacked(wheels, "holdfast", tmp_path_factory.mktemp("site"))


def _unpacked(wheels: Path, name: str, folder: Path) -> Path:
    (wheel,) = wheels.glob(f"{name}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def environment(installed: Path, **more: str) -> dict[str, str]:
    """The wheel and its dependencies, without this checkout: Python reads no .pth file of a folder in PYTHONPATH."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PYTHON"))}
    return kept | {"PYTHONPATH": os.pathsep.join([str(installed), sysconfig.get_path("purelib")])} | more


def _packages(site: Path) -> set[str]:
    return {path.name for path in site.iterdir() if not path.name.endswith(".dist-info")}


def test_nothing_else_becomes_importable(installed: Path, wheels: Path, tmp_path: Path) -> None:
    assert _packages(installed) == {"holdfast", "holdfast_server", "holdfast_wire"}
    assert (installed / "holdfast_server/Procfile").read_text() == (TOP / "Procfile").read_text()
    recipes = _unpacked(wheels, "holdfast_recipes", tmp_path)
    assert _packages(recipes) == {"holdfast_recipes"}
    source = TOP / "sdk_py/holdfast_recipes"
    inside = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {str(path.relative_to(recipes / "holdfast_recipes")) for path in recipes.rglob("holdfast_recipes/**/*") if path.is_file()} == (
        inside - {"pyproject.toml"}
    )


def test_both_wheels_have_one_version() -> None:
    assert holdfast_recipes.__version__ == holdfast.__version__


def test_the_recipes_install_beside_the_client_alone(wheels: Path, tmp_path: Path) -> None:
    """The client's wheel names the other one, and pip finds it in the same folder."""
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv/bin/python"
    environ = os.environ | {"PIP_FIND_LINKS": str(wheels)}

    def pip(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pip", "--python", str(python), "--quiet", "install", "--no-index", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environ)

    assert pip("--no-deps", "holdfast").returncode == 0
    command = [str(tmp_path / "venv/bin/holdfast"), "recipes", "--help"]
    path = {"PYTHONPATH": sysconfig.get_path("purelib")}  # msgpack and what else the recipes import, without this checkout
    alone = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, env=path)
    assert (alone.returncode, "pip install 'holdfast[recipes]'" in alone.stderr) == (125, True)
    environ |= path  # where pip finds the packages of others, which no index offers it here
    assert pip("holdfast[recipes]").returncode == 0
    both = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, env=path)
    assert (both.returncode, both.stderr) == (0, "")


@requires("namespaces", "redis")
def test_the_server_starts_and_the_first_example_runs(installed: Path, tmp_path: Path) -> None:
    python = getattr(sys, "_base_executable", sys.executable)
    data = tmp_path / "data"
    log = tmp_path / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [python, "-m", "holdfast.cli", "up", "--port", str(free_port()), "--data", data, "--with-parent"],
            cwd=tmp_path,
            env=environment(installed),
            stdout=output,
            stderr=output,
        )
    try:
        until(lambda: b"up: ready" in log.read_bytes() or server.poll() is not None, deadline_s=60, what="the server")
        assert server.poll() is None, log.read_text()
        known = read_env(data / "env")
        done = subprocess.run(
            [python, "-c", _EXAMPLE],
            cwd=tmp_path,
            env=environment(installed, **known),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.stdout, done.stderr) == ("Ada in /tmp\n", "")
    finally:
        server.terminate()
        assert server.wait(timeout=60) == 0


def test_the_server_without_its_packages_names_the_extra(installed: Path, tmp_path: Path) -> None:
    python = getattr(sys, "_base_executable", sys.executable)
    done = subprocess.run(
        [python, "-S", "-m", "holdfast.cli", "up"],
        cwd=tmp_path,
        env=environment(installed) | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "pip install 'holdfast[server]'" in done.stderr
