"""An environment of its own for each suite: ``.venv-suite-NAME`` with the harness's package, this project in place, and pytest.

Owns how they are made. Requirements of harnesses clash, and with those of the service. An environment is made again when the requirements
of its suite, ``pyproject.toml`` or the version of Python changed. pip resolves the extra together with the harness, which is the test that
they do not conflict.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from .suites import Suite

TOP = Path(__file__).resolve().parents[2]
TOOLS = ("pytest>=8.4", "pytest-asyncio>=1.1", "pytest-timeout>=2.4")


class EnvironmentMissingError(Exception):
    """It cannot be made here; the message names what is missing."""


def python_of(suite: Suite) -> str:
    """A Python of this machine that the suite supports: the one that runs this, else the oldest. Raises ``EnvironmentMissingError``."""
    own = getattr(sys, "_base_executable", sys.executable)
    if suite.python <= sys.version_info[:2] < suite.python_below:
        return str(own)
    result = subprocess.run([TOP / "infra/scripts/pythons"], capture_output=True, text=True, check=False)
    for path in reversed(result.stdout.split()):
        asked = [path, "-c", "import sys; print(*sys.version_info[:2])"]
        version = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.split()
        if suite.python <= tuple(map(int, version)) < suite.python_below:
            return path
    least = ".".join(map(str, suite.python))
    below = "" if suite.python_below == (3, 99) else f" and below {'.'.join(map(str, suite.python_below))}"
    raise EnvironmentMissingError(f"needs Python {least} or newer{below}, which this machine does not have")


def made(suite: Suite) -> Path:
    """The Python of the suite's environment, which is made if necessary. Raises ``EnvironmentMissingError``, ``CalledProcessError``."""
    folder, base = TOP / f".venv-suite-{suite.name}", python_of(suite)
    python, stamp = folder / "bin" / "python", folder / ".stamp"
    key = hashlib.sha256(repr((suite, TOOLS, base, (TOP / "pyproject.toml").read_text())).encode()).hexdigest()
    if python.exists() and stamp.exists() and stamp.read_text() == key:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    project = f".[{suite.name}]" if suite.extra else "."
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "--no-input"]
    settings = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    for command in (
        [base, "-m", "venv", str(folder)],
        [*pip, "install", "--editable", project, *suite.requirements, *TOOLS],
        [*pip, "install", "--no-deps", *suite.bare] if suite.bare else [*pip, "check"],
    ):
        subprocess.run(command, cwd=TOP, check=True, capture_output=True, text=True, env=settings)
    stamp.write_text(key)
    return python


def version_of(python: Path, package: str) -> str:
    """The version of a package in an environment."""
    code = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
    return subprocess.run([python, "-c", code, package], capture_output=True, text=True, check=False).stdout.strip() or "?"
