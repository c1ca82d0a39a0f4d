"""Tests that ``make integrations`` runs, on the stack that ``HOLDFAST_URL`` and ``HOLDFAST_API_KEY`` name; others skip them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from holdfast import SandboxClient

PAGES = Path(__file__).resolve().parents[3] / "infra" / "integrations"
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)

collect_ignore_glob = [] if os.environ.get("HOLDFAST_INTEGRATION") else ["test_*.py"]


@pytest.fixture
def client() -> Iterator[SandboxClient]:
    with SandboxClient() as made:
        yield made


@pytest.fixture
def run_page(tmp_path: Path) -> Callable[..., str]:
    """Run the Python blocks of a page as one program, as a reader would; returns what it printed."""

    def run(page: str, *arguments: str, **environment: str) -> str:
        program = tmp_path / "example.py"
        program.write_text("\n".join(_BLOCK.findall((PAGES / page).read_text())))
        result = subprocess.run(
            [sys.executable, str(program), *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, **environment},
            cwd=tmp_path,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    return run


@pytest.fixture
def interpreter() -> str:
    """The Python of this environment, at the same path in an image of ``python_image``."""
    return sys.executable


@pytest.fixture
def python_image(client: SandboxClient) -> Callable[[dict[str, Path]], str]:
    """Make an image of the machine's own system with this environment, its Python and more files, for servers of harnesses; its name."""

    def make(files: dict[str, Path]) -> str:
        with client.create_sandbox("host") as sandbox:
            for folder in (sys.base_prefix, sys.prefix):
                sandbox.files.upload(folder, folder, exclude=("test", "idlelib", "include", "*.a"))
            for target, source in files.items():
                sandbox.files.upload(source, target)
            return sandbox.snapshot("holdfast-test-server:1").name

    return make
