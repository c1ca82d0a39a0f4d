"""A service for programs that use E2B's unmodified SDKs, and the environments that have these.

Owns the template ``base``: the machine's own toolchain with the account ``user`` that E2B's templates have. The
programs run in processes of their own, because these SDKs are in an environment of their own (``infra/scripts/e2b_venv``).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from holdfast import SandboxClient

from tests.support.requires import unmet
from tests.support.stack import Stack, running_stack

TOP = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).parent / "programs"
PYTHON = TOP / ".venv-e2b" / "bin" / "python"
TEMPLATE = "base"
DOMAIN = "box.test"
"""Of previews; no name server knows it."""
NPM = "2.51.0"
"""The version of the npm package."""
_ACCOUNT = """
set -e
userdel user 2>/dev/null || true  # of the machine
groupdel user 2>/dev/null || true
useradd --create-home --user-group --shell /bin/bash user
"""
PROGRAM_S = 150.0


@dataclass(frozen=True)
class Facade:
    """A stack with the template, and how a program reaches it."""

    stack: Stack

    @property
    def environment(self) -> dict[str, str]:
        url = f"{self.stack.url}/e2b"
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith(("E2B_", "HOLDFAST_", "PYTEST_"))},
            "E2B_API_URL": url,
            "E2B_SANDBOX_URL": url,
            "E2B_API_KEY": self.stack.key,
            "HOLDFAST_URL": self.stack.url,
        }

    def run(self, program: str, *words: str) -> str:
        """Run a program of ``programs`` to its end with the Python that has E2B's SDK; its output. It asserts by itself."""
        return self.execute(str(python()), str(PROGRAMS / f"{program}.py"), *words)

    def execute(self, *argv: str, cwd: Path | None = None) -> str:
        done = subprocess.run(argv, env=self.environment, cwd=cwd, capture_output=True, text=True, timeout=PROGRAM_S, check=False)
        assert done.returncode == 0, f"{argv}:\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}\n{self.stack.logs()}"
        return done.stdout


def python() -> Path:
    """The Python that has E2B's SDK, made now if it is missing."""
    if not (PYTHON.parents[1] / ".stamp").exists():
        made = subprocess.run([TOP / "infra/scripts/e2b_venv"], capture_output=True, text=True, check=False)
        if made.returncode != 0:
            unmet("E2B's SDK", made.stderr.strip()[-500:])
    return PYTHON


def npm_folder() -> Path:
    """A folder that has the npm package, fetched now if it is missing."""
    folder = TOP / "build" / "e2b-npm" / NPM
    if not (folder / "node_modules" / "e2b").exists():
        if shutil.which("npm") is None or shutil.which("node") is None:
            unmet("the npm package e2b", "node or npm is not installed")
        folder.mkdir(parents=True, exist_ok=True)
        install = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(folder), f"e2b@{NPM}"]
        made = subprocess.run(install, capture_output=True, text=True, check=False)
        if made.returncode != 0:
            unmet("the npm package e2b", made.stderr.strip()[-500:])
    return folder


def make_template(stack: Stack) -> None:
    """The image ``base``: the machine's toolchain with the account that E2B's templates have."""
    with SandboxClient(stack.url, stack.key) as client, client.create_sandbox("host") as sandbox:
        made = sandbox.exec(_ACCOUNT, timeout=60)
        assert made.exit_code == 0, made.stderr
        sandbox.snapshot(TEMPLATE)


@pytest.fixture(scope="session")
def facade() -> Iterator[Facade]:
    python()
    with running_stack({"HOLDFAST_PREVIEW_DOMAIN": DOMAIN}) as stack:
        make_template(stack)
        yield Facade(stack)
