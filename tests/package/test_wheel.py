"""The wheel that a user installs, away from this checkout: the server starts from it, and the first example runs against it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

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
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pip would unpack into site-packages."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, TOP],
        check=True,
        capture_output=True,
        timeout=150,
    )
    (wheel,) = folder.glob("holdfast-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def environment(installed: Path, **more: str) -> dict[str, str]:
    """The wheel and its dependencies, without this checkout: Python reads no .pth file of a folder in PYTHONPATH."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PYTHON"))}
    return kept | {"PYTHONPATH": os.pathsep.join([str(installed), sysconfig.get_path("purelib")])} | more


def test_nothing_else_becomes_importable(installed: Path) -> None:
    names = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert names == {"holdfast", "holdfast_recipes", "holdfast_server", "holdfast_wire"}
    assert (installed / "holdfast_server/Procfile").read_text() == (TOP / "Procfile").read_text()


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
