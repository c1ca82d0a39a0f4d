"""Runs the import contracts of `.importlinter`, and one that it cannot express: which outside packages a folder may use.

Owns the allow-lists of outside packages. import-linter forbids named packages; a core that may use
nothing but the standard library and one codec needs the opposite, so this reads the imports itself. Called by
`make check`.
"""

from __future__ import annotations

import ast
import subprocess
import sys
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
    **{
        f"sdk_py/holdfast_recipes/{layer}": {"holdfast_recipes", "holdfast"}
        for layer in ("harness", "harbor", "swe", "suites", "web", "claw")
    },
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


def main() -> int:
    breaches = allow_list_breaches(_TOP)
    print("\n".join(breaches), end="\n" if breaches else "")
    linter = Path(sys.prefix) / "bin" / "lint-imports"
    result = subprocess.run([linter, "--no-cache"], cwd=_TOP, capture_output=True, text=True, check=False)
    lines = [line for line in result.stdout.splitlines() if line.strip()]
    print("\n".join(lines if result.returncode else lines[-1:]), result.stderr.strip())
    return 1 if breaches or result.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
