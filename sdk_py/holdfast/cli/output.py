"""Printing: tables, JSON, errors, and text from sandboxes that must not drive the user's terminal.

Owns escaping. Output of a sandbox goes to a terminal or a pipe as it is (that is what ``exec`` is for) only where the user asked for
it; names, messages and labels are always escaped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from holdfast._errors import HoldfastError

_ALLOWED = frozenset("\n\t")


def escape(text: str) -> str:
    """``text`` without what a terminal would obey: control characters become ``\\x1b`` and the like."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _ALLOWED else c.encode("unicode_escape").decode() for c in text)


def escape_bytes(data: bytes) -> bytes:
    """Bytes of a command for a file or pipe: escapes are spelled out, all else is kept."""
    if b"\x1b" not in data and b"\x9b" not in data:
        return data
    return data.replace(b"\x1b", b"\\x1b")


def say(text: str) -> None:
    """One line on standard output."""
    sys.stdout.write(escape(text) + "\n")


def note(text: str) -> None:
    """One line on standard error."""
    sys.stderr.write(escape(text) + "\n")


def say_json(value: Any) -> None:
    """One JSON document on standard output."""
    json.dump(value, sys.stdout, indent=2, default=str)
    sys.stdout.write("\n")


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns, padded."""
    lines = [list(head), *[[escape(str(cell)) for cell in row] for row in rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for line in lines:
        sys.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n")


def report(why: HoldfastError, *, as_json: bool) -> None:
    """An error on standard error: its message, then what to do about it; with ``--json`` its map."""
    if as_json:
        json.dump({"error": why.to_map()}, sys.stderr, default=str)
        sys.stderr.write("\n")
        return
    note(f"holdfast: {why.message}")
    if why.hint:
        note(f"  {why.hint}")


def pairs(words: Sequence[str], what: str) -> dict[str, str]:
    """``NAME=VALUE`` words as a map. Raises ``InvalidArgumentError``."""
    found = {}
    for word in words:
        name, separator, value = word.partition("=")
        if not separator or not name:
            from holdfast._arguments import bad

            raise bad(f"{what} is written NAME=VALUE, not {word!r}", hint=f"as in {what} RUN=7")
        found[name] = value
    return found


def age(since_s: float, now_s: float) -> str:
    """A time span in its largest unit."""
    span = max(now_s - since_s, 0)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if span >= size:
            return f"{int(span // size)}{unit}"
    return f"{int(span)}s"
