"""The file editor of the harness with a living shell, on text: view, create, replace, insert, undo (A2.1).

Owns what each command does to a text and when it refuses; a refusal is a message for the policy, never an exception. Reading and writing
files in the sandbox is the harness's. Lines are numbered from 1 and end at newlines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CONTEXT_LINES = 4
"""Lines shown before and after a change."""


@dataclass(frozen=True, slots=True)
class Edit:
    """The text after a command and the message for the policy. ``text`` None: nothing was changed (a view or a refusal)."""

    message: str
    text: str | None = None
    ok: bool = True


def view(text: str, view_range: Sequence[int] | None = None) -> Edit:
    """All lines with their numbers, or those from the first to the last of a range; −1 as the last means the end."""
    lines = _lines(text)
    if view_range is None:
        return Edit(numbered(lines, 1))
    if len(view_range) != 2:
        return _refused("view_range needs two numbers, the first and the last line")
    first, last = view_range
    last = len(lines) if last == -1 else last
    if not 1 <= first <= last <= len(lines):
        return _refused(f"the range {list(view_range)} does not lie within the {len(lines)} lines of the file")
    return Edit(numbered(lines[first - 1 : last], first))


def create(existing: str | None, file_text: str | None) -> Edit:
    """A new file; one that exists is not overwritten."""
    if file_text is None:
        return _refused("create needs file_text")
    if existing is not None:
        return _refused("the file exists already; edit it with str_replace or insert")
    return Edit("The file was created.", file_text)


def str_replace(text: str, old_str: str | None, new_str: str | None = None) -> Edit:
    """Put ``new_str`` (nothing unless given) in the place of ``old_str``, which must occur exactly once, to the last blank."""
    if not old_str:
        return _refused("str_replace needs old_str, which cannot be empty")
    if old_str == (new_str or ""):
        return _refused("old_str and new_str are the same")
    places = _places(text, old_str)
    if not places:
        return _refused("old_str does not occur in the file")
    if len(places) > 1:
        lines = ", ".join(str(text.count("\n", 0, place) + 1) for place in places)
        return _refused(f"old_str occurs {len(places)} times, beginning in lines {lines}: give more of its surroundings")
    changed = text[: places[0]] + (new_str or "") + text[places[0] + len(old_str) :]
    return _shown(changed, text.count("\n", 0, places[0]) + 1, (new_str or "").count("\n"))


def insert(text: str, insert_line: int | None, new_str: str | None) -> Edit:
    """Put ``new_str`` after line ``insert_line``, 0 for the beginning, as lines of its own."""
    if insert_line is None or new_str is None:
        return _refused("insert needs insert_line and new_str")
    lines = _lines(text)
    if not 0 <= insert_line <= len(lines):
        return _refused(f"insert_line must lie in 0 … {len(lines)}, the lines of the file")
    before, after = lines[:insert_line], lines[insert_line:]
    if before and not before[-1].endswith("\n"):
        before = [*before[:-1], before[-1] + "\n"]
    added = new_str if new_str.endswith("\n") or not after else new_str + "\n"
    return _shown("".join([*before, added, *after]), insert_line + 1, added.rstrip("\n").count("\n"))


class History:
    """Earlier texts of files by path, for ``undo_edit``; at most ``most`` of each file, the oldest go first."""

    def __init__(self, most: int = 10) -> None:
        self._most = most
        self._texts: dict[str, list[str]] = {}

    def keep(self, path: str, before: str) -> None:
        self._texts[path] = [*self._texts.get(path, []), before][-self._most :]

    def undo(self, path: str) -> Edit:
        earlier = self._texts.get(path)
        return Edit("The last edit was undone.", earlier.pop()) if earlier else _refused("there is no edit of this file to undo")


def numbered(lines: Sequence[str], first: int) -> str:
    """Lines as ``cat -n`` shows them."""
    return "".join(f"{number:6}\t{line if line.endswith(chr(10)) else line + chr(10)}" for number, line in enumerate(lines, first))


def _shown(text: str, line: int, more: int) -> Edit:
    lines = _lines(text)
    first = max(1, line - CONTEXT_LINES)
    return Edit(f"The file was edited. It now reads:\n{numbered(lines[first - 1 : line + more + CONTEXT_LINES], first)}", text)


def _places(text: str, part: str) -> list[int]:
    """Positions of a part, overlapping ones included: ``aa`` is twice in ``aaa``."""
    places, start = [], text.find(part)
    while start >= 0:
        places.append(start)
        start = text.find(part, start + 1)
    return places


def _refused(message: str) -> Edit:
    return Edit(f"Error: {message}.", ok=False)


def _lines(text: str) -> list[str]:
    """At newlines alone: form feeds and their like are characters of a line."""
    parts = text.split("\n")
    return [f"{part}\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
