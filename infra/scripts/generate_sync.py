"""Write ``holdfast._sync`` from ``holdfast._async``; with ``--check`` only compare, and fail when they differ.

Works on tokens: ``async`` and ``await`` are removed, names change by two rules (``Async…`` loses its prefix, ``aio`` becomes ``threads``)
and a map of names that Python itself uses differently. If a place needs a special case, change the asynchronous code.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / "sdk_py" / "holdfast"
SOURCE = ROOT / "_async"
TARGET = ROOT / "_sync"

NAMES = {
    "_async": "_sync",
    "aio": "threads",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "AsyncIterator": "Iterator",
    "StopAsyncIteration": "StopIteration",
}
HEADER = "# Generated from ../_async by infra/scripts/generate_sync.py: edit that, then run `make generate`.\n"
_PREFIX = re.compile(r"Async(?=[A-Z])")


def rename(name: str) -> str:
    """The synchronous name of ``name``."""
    return NAMES.get(name) or _PREFIX.sub("", name, count=1)


def convert(source: str) -> str:
    """``source`` without its asynchrony."""
    lines = source.splitlines(keepends=True)
    edits: list[tuple[int, int, int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        (row, start), (end_row, end) = token.start, token.end
        if token.type != tokenize.NAME or row != end_row:
            continue
        if token.string in ("async", "await"):
            gap = len(lines[row - 1][end:]) - len(lines[row - 1][end:].lstrip(" "))
            edits.append((row - 1, start, end + gap, ""))
        elif (name := rename(token.string)) != token.string:
            edits.append((row - 1, start, end, name))
    for row, start, end, text in reversed(edits):
        lines[row] = lines[row][:start] + text + lines[row][end:]
    return HEADER + "".join(lines)


def generated() -> dict[str, str]:
    """File name → text of every generated file."""
    return {path.name: convert(path.read_text()) for path in sorted(SOURCE.glob("*.py"))}


def main(arguments: list[str] | None = None) -> int:
    """Exit status 1 when ``--check`` finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args(arguments).check
    texts = generated()
    there = {path.name: path.read_text() for path in TARGET.glob("*.py")}
    stale = sorted(name for name in texts.keys() | there.keys() if texts.get(name) != there.get(name))
    if check:
        for name in stale:
            sys.stderr.write(f"{TARGET.name}/{name} is not what {SOURCE.name}/{name} generates; run `make generate`\n")
        return 1 if stale else 0
    TARGET.mkdir(exist_ok=True)
    for name in stale:
        if name in texts:
            (TARGET / name).write_text(texts[name])
        else:
            (TARGET / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
