"""What a short command imports: the libraries that would take most of its start are not among it (decision 0042)."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {
    "argparse", "asyncio", "dataclasses", "email", "h11", "http.client", "httpx", "importlib.metadata", "inspect", "json", "logging",
    "ssl", "subprocess", "tarfile", "tempfile", "websockets",
}  # fmt: skip


@pytest.mark.parametrize("module", ["execute", "sandboxes", "running", "logs", "interactive", "images", "copying"])
def test_little_is_imported(module: str) -> None:
    code = f"import sys, holdfast.cli.app, holdfast.cli.{module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    allowed = {"copying": {"tarfile"}, "images": {"dataclasses", "inspect"}}.get(module, set())
    assert HEAVY & set(done.stdout.split()) <= allowed


@pytest.mark.parametrize("module", ["sandboxes", "images"])
def test_a_command_that_only_asks_the_service_imports_no_session(module: str) -> None:
    code = f"import sys, holdfast.cli.app, holdfast.cli.{module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = done.stdout.split()
    assert "holdfast._sync.client" in loaded
    assert not {"holdfast._sync.sandbox", "holdfast._transport.session.engine", "holdfast_wire.session"} & set(loaded)
