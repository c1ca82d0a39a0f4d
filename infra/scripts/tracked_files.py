"""Checks every tracked file for content that must not be published, and reports long modules.

Owns the rules of this repository that no linter checks: no package-index settings, no machine paths, the size of a module
(questioned at 400 lines, refused at 600; generated code aside). Called by `make check`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

_TOP = Path(__file__).resolve().parents[2]
_QUESTIONED_LINES = 400
_MOST_LINES = 600
_GENERATED = ("sdk_py/holdfast/_sync/",)
_INDEX = re.compile(r"(--|\b)(extra-)?index[-_]url|find[-_]links|trusted[-_]host|\"resolved\"\s*:|/simple/")


def tracked(top: Path) -> list[Path]:
    names = subprocess.run(["git", "ls-files", "-z"], cwd=top, capture_output=True, text=True, check=True).stdout
    return [top / name for name in names.split("\0") if name and (top / name).is_file()]


def problems(top: Path, paths: list[Path]) -> list[str]:
    """What is wrong, one line each."""
    places = {f"{top.parent}/"} | ({f"{Path.home()}/"} if os.fspath(Path.home()) not in {"/", "/root"} else set())
    places -= {"/", "/tmp/", "/home/", "/src/"}
    found = []
    for path in paths:
        name = path.relative_to(top).as_posix()
        if path == Path(__file__).resolve():
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if _INDEX.search(line):
                found.append(f"{name}:{number}: a package-index setting or address")
            found += [f"{name}:{number}: a path of this machine" for place in places if place in line]
        length = text.count("\n")
        if path.suffix == ".py" and length > _MOST_LINES and not name.startswith(_GENERATED):
            found.append(f"{name}: {length} lines; split it before {_MOST_LINES}")
    return found


def long_modules(top: Path, paths: list[Path]) -> list[str]:
    lengths = ((path.read_text().count("\n"), path.relative_to(top).as_posix()) for path in paths if path.suffix == ".py")
    return [
        f"  {length:5} lines  {name}"
        for length, name in sorted(lengths, reverse=True)
        if length > _QUESTIONED_LINES and not name.startswith(_GENERATED)
    ]


def main() -> int:
    paths = tracked(_TOP)
    if report := long_modules(_TOP, paths):
        print("modules to question (over 400 lines):", *report, sep="\n")
    if found := problems(_TOP, paths):
        print(*found, sep="\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
