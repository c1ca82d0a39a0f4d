"""Third-party harnesses from npm and PyPI, of pinned versions, in folders of their own under build/recipes: fetched once, then kept.

Owns their paths. Without npm or the registries, tests that need them are skipped; with CI=true they fail.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CACHE = Path(os.environ.get("HOLDFAST_RECIPES_PACKAGES") or Path(__file__).parents[2] / "build" / "recipes")
NPM = {
    "codex": ("@openai/codex", "node_modules/@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex"),
    "opencode": ("opencode-ai", "node_modules/opencode-linux-x64/bin/opencode"),
    "claude-code": ("@anthropic-ai/claude-code", "node_modules/@anthropic-ai/claude-code-linux-x64/claude"),
}
"""Package, and where it has its binary for x86-64 with glibc. The platform's package is an optional dependency of each."""
MINI = ("mini-swe-agent==2.4.6", "mcp>=2")
"""litellm imports mcp for a call with tools and does not declare it."""


@functools.cache
def npm_program(name: str, version: str) -> Path:
    """The binary of a command-line agent."""
    package, binary = NPM[name]
    folder = CACHE / f"{name}-{version}"
    if not (folder / binary).exists():
        if shutil.which("npm") is None:
            _lacking("npm is not installed")
        folder.mkdir(parents=True, exist_ok=True)
        _run("npm", "install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(folder), f"{package}@{version}")
    if not (folder / binary).exists():
        _lacking(f"{package}@{version} brings no binary for this machine")
    return folder / binary


@functools.cache
def mini_python() -> Path:
    """The Python of an environment that has mini-swe-agent."""
    folder = CACHE / "mini-swe-agent-2.4.6"
    python = folder / "bin" / "python"
    done = folder / "installed"
    if not done.exists():
        _run(sys.executable, "-m", "venv", "--clear", str(folder))
        _run(str(python), "-m", "pip", "install", "--quiet", *MINI)
        done.touch()
    return python


def _run(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if result.returncode:
        _lacking(f"{' '.join(command[:3])} failed: {result.stderr.strip()[-400:]}")


def _lacking(why: str) -> None:
    if os.environ.get("CI", "").lower() in {"1", "true", "yes"}:
        pytest.fail(f"the real harnesses are not there: {why}", pytrace=False)
    pytest.skip(f"the real harnesses are not there: {why}")
