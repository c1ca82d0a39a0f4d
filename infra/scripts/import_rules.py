"""Runs the import contracts of `.importlinter`, and one that it cannot express: which outside packages a folder may use.

Owns the allow-lists of outside packages. import-linter forbids named packages; a core that may use
nothing but the standard library and one codec needs the opposite, so this reads the imports itself. Called by
`make check`.
"""

from __future__ import annotations

import ast
import configparser
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

_TOP = Path(__file__).resolve().parents[2]

# Folder → the packages beside the standard library and itself that it may import anywhere.
_MAY_IMPORT = {
    "schemas/holdfast_wire": {"msgpack"},
    "sdk_py/holdfast_recipes/core": {"holdfast_recipes"},
    "sdk_py/holdfast_recipes/prompts": {"holdfast_recipes"},
    "sdk_py/holdfast_recipes/miniature": {"holdfast_recipes"},
    "sdk_py/holdfast_recipes/training": {"holdfast_recipes", "torch"},
    **{f"sdk_py/holdfast_recipes/{layer}": {"holdfast_recipes", "holdfast"} for layer in ("harness", "swe", "web", "claw")},
    "sdk_py/holdfast_recipes/proxy": {"holdfast_recipes", "holdfast", "h11"},
    "sdk_py/holdfast_recipes/pipeline": {"holdfast_recipes", "holdfast", "pyarrow", "tokenizers"},
    "session_agent": {"holdfast_wire", "msgpack", "websockets"},
}
_NEWER = {"_sha2"}
"""Modules of the standard library of later Pythons than the checked one may be."""
_RUNS_ELSEWHERE = {"sdk_py/holdfast_recipes/harness/mini_inside.py"}
"""Scripts for the Python of another environment, which imports what is installed there."""


def outside_imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, top-level package) of each absolute import in a file, wherever it stands."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module.partition(".")[0]


def allow_list_breaches(top: Path) -> list[str]:
    """One line for each import that its folder does not allow."""
    found = []
    for folder, allowed in _MAY_IMPORT.items():
        own = Path(folder).name
        for path in sorted((top / folder).rglob("*.py")):
            if str(path.relative_to(top)) in _RUNS_ELSEWHERE:
                continue
            found += [
                f"{path.relative_to(top)}:{line}: {folder} may not import {name}"
                for line, name in outside_imports(path)
                if name not in allowed | {own} and name not in sys.stdlib_module_names | _NEWER
            ]
    return found


def contracts_for_what_exists(text: str) -> tuple[str, list[str]]:
    """The configuration without modules that cannot be found, and the names left out."""
    config = configparser.ConfigParser()
    config.read_string(text)
    absent: set[str] = set()
    for section in config.sections():
        for key in ("root_packages", "modules", "source_modules", "forbidden_modules"):
            names = config.get(section, key, fallback="").split()
            if not names:
                continue
            there = [name for name in names if _exists(name)]
            absent.update(set(names) - set(there))
            config.set(section, key, "\n" + "\n".join(there))
    for section in config.sections():
        empty = any(config.get(section, key, fallback="x").strip() == "" for key in ("source_modules", "forbidden_modules"))
        if empty or len(config.get(section, "modules", fallback="a b").split()) < 2:
            config.remove_section(section)
    with tempfile.TemporaryFile("w+") as file:
        config.write(file)
        file.seek(0)
        return file.read(), sorted(absent)


def _exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def main() -> int:
    breaches = allow_list_breaches(_TOP)
    print("\n".join(breaches), end="\n" if breaches else "")
    text, absent = contracts_for_what_exists((_TOP / ".importlinter").read_text())
    for name in absent:
        print(f".importlinter: {name} does not exist: rename or remove it there as well")
    with tempfile.NamedTemporaryFile("w", suffix=".importlinter") as file:
        file.write(text)
        file.flush()
        linter = Path(sys.prefix) / "bin" / "lint-imports"
        result = subprocess.run([linter, "--config", file.name, "--no-cache"], cwd=_TOP, capture_output=True, text=True, check=False)
    lines = [line for line in result.stdout.splitlines() if line.strip()]
    print("\n".join(lines if result.returncode else lines[-1:]), result.stderr.strip())
    return 1 if breaches or result.returncode or absent else 0


if __name__ == "__main__":
    sys.exit(main())
