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
PI = "@mariozechner/pi-coding-agent"
PYPI = {
    "hermes": ("hermes-agent", "-m hermes_cli.main"),
    "kimi-cli": ("kimi-cli", "-m kimi_cli"),
    "openhands": ("openhands-agent-server", ""),
}
"""Package, and the words after its Python that run the program."""
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
def layer(name: str, version: str) -> tuple[Path, str]:
    """A tar of everything that a program needs besides libc, and the path at which it is then found: what a layer of an image holds."""
    folder, layers = CACHE / f"{name}-{version}", CACHE / "layers"
    archive = layers / f"{name}-{version}.tar"
    entry = f"/opt/{name}/bin/{name}"
    if not archive.exists():
        layers.mkdir(parents=True, exist_ok=True)
        root = layers / f"{name}-{version}.root"
        shutil.rmtree(root, ignore_errors=True)
        words = _npm_root(folder, version, root) if name == "pi" else _python_root(name, folder, version, root)
        place = root / entry[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        place.chmod(0o755)
        part = archive.with_suffix(".part")
        _run("tar", "-c", "-f", str(part), "-C", str(root), "opt")
        part.replace(archive)
        shutil.rmtree(root)
    return archive, entry


def _npm_root(folder: Path, version: str, root: Path) -> str:
    """Node of this machine with pi and what it needs."""
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        _lacking("npm or node is not installed")
    if not (folder / "node_modules" / PI).exists():
        folder.mkdir(parents=True, exist_ok=True)
        _run("npm", "install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(folder), f"{PI}@{version}")
    shutil.copytree(folder / "node_modules", root / "opt/pi/node_modules", symlinks=True)
    (root / "opt/pi/bin").mkdir()
    shutil.copy2(Path(str(node)).resolve(), root / "opt/pi/bin/node")
    return f"/opt/pi/bin/node /opt/pi/node_modules/{PI}/dist/cli.js"


def _python_root(name: str, folder: Path, version: str, root: Path) -> str:
    """The Python of this environment, without its tests, and an environment beside it that has the package."""
    package, words = PYPI[name]
    python, done = folder / "bin" / "python", folder / "installed"
    if not done.exists():
        _run(sys.executable, "-m", "venv", "--clear", str(folder))
        _run(str(python), "-m", "pip", "install", "--quiet", f"{package}=={version}")
        done.touch()
    minor = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    left_out = shutil.ignore_patterns("__pycache__", "test", "tests", "site-packages", "*.a", "config-*")
    base = Path(sys.base_prefix)
    (root / "opt/python/bin").mkdir(parents=True)
    shutil.copy2(base / "bin" / minor, root / "opt/python/bin" / minor)
    shutil.copytree(base / "lib" / minor, root / "opt/python/lib" / minor, symlinks=True, ignore=left_out)
    for library in (base / "lib").glob("libpython*.so*"):
        shutil.copy2(library, root / "opt/python/lib", follow_symlinks=False)
    own = root / "opt" / name
    cached = shutil.ignore_patterns("__pycache__")
    shutil.copytree(folder / "lib" / minor / "site-packages", own / "lib" / minor / "site-packages", symlinks=True, ignore=cached)
    (own / "bin").mkdir()
    (own / "bin" / "python").symlink_to(f"/opt/python/bin/{minor}")
    (own / "pyvenv.cfg").write_text(f"home = /opt/python/bin\ninclude-system-site-packages = false\nversion = {sys.version.split()[0]}\n")
    return f"env LD_LIBRARY_PATH=/opt/python/lib /opt/{name}/bin/python {words}".strip()  # of a Python that is built with a shared library


@functools.cache
def swebench_python(version: str) -> Path:
    """The Python of an environment that has the package swebench."""
    folder = CACHE / f"swebench-{version}"
    python, done = folder / "bin" / "python", folder / "installed"
    if not done.exists():
        _run(sys.executable, "-m", "venv", "--clear", str(folder))
        _run(str(python), "-m", "pip", "install", "--quiet", f"swebench=={version}")
        done.touch()
    return python


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
