"""Short commands do not import the libraries that would take most of their start time (decision 0042)."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

HEAVY = {
    "argparse", "asyncio", "dataclasses", "email", "h11", "http.client", "httpx", "importlib.metadata", "inspect", "json", "logging",
    "ssl", "subprocess", "tarfile", "tempfile", "websockets",
}  # fmt: skip


@pytest.mark.parametrize("module", ["execute", "sandboxes", "run", "logs", "images", "cp"])
def test_commands_do_not_import_heavy_libraries(module: str) -> None:
    code = f"import sys, holdfast.cli.app, holdfast.cli.subcommands.{module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    allowed = {"cp": {"tarfile"}, "images": {"dataclasses", "inspect"}}.get(module, set())
    assert HEAVY & set(done.stdout.split()) <= allowed


@pytest.mark.parametrize("module", ["sandboxes", "images"])
def test_a_command_that_only_asks_the_service_imports_no_session(module: str) -> None:
    code = f"import sys, holdfast.cli.app, holdfast.cli.subcommands.{module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = done.stdout.split()
    assert "holdfast._sync.client" in loaded
    session = {
        "holdfast._sync.sandbox",
        "holdfast._transport.session.engine",
        "holdfast_wire.session.base",
        "holdfast._requests",
        "msgpack",
    }
    assert not session & set(loaded)


def test_the_version_is_printed_without_the_metadata_of_packages() -> None:
    code = "import sys; from holdfast.cli.app import run; run(['--version']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    shown, _, loaded = done.stdout.partition("\n")
    assert shown == f"holdfast {version('holdfast')}"
    assert not HEAVY & set(loaded.split())
