"""Unified diffs in git's form: the files they change, the lines they add, their reverse, and a diff without some files.

Owns parsing of diff text only; git applies patches in a sandbox. Paths are those of the new side, or of the old
side for files that a diff deletes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(.*)", re.DOTALL)
_SWAPPED = {
    "new file mode ": "deleted file mode ",
    "deleted file mode ": "new file mode ",
    "old mode ": "new mode ",
    "new mode ": "old mode ",
    "rename from ": "rename to ",
    "rename to ": "rename from ",
}


class DiffError(ValueError):
    """The text is no diff that git would take, or one that cannot be reversed."""


@dataclass(slots=True)
class FileDiff:
    """The lines (with their ends) of one file's part: ``header`` before the first hunk, then hunks, each with its ``@@`` line."""

    header: list[str] = field(default_factory=list)
    hunks: list[list[str]] = field(default_factory=list)

    @property
    def path(self) -> str:
        return self.new_path or self.old_path

    @property
    def old_path(self) -> str:
        return self._path("--- ", "rename from ", 0)

    @property
    def new_path(self) -> str:
        return self._path("+++ ", "rename to ", 1)

    @property
    def text(self) -> str:
        return "".join(self.header) + "".join(line for hunk in self.hunks for line in hunk)

    def lines(self, sign: str) -> list[str]:
        """Lines added ("+") or removed ("-"), without sign and end."""
        return [line[1:].rstrip("\r\n") for hunk in self.hunks for line in hunk[1:] if line.startswith(sign)]

    def _path(self, mark: str, rename: str, side: int) -> str:
        for line in self.header:
            text = line.rstrip("\r\n")
            if text.startswith(mark):
                return _stripped(text[len(mark) :])
            if text.startswith(rename):
                return _unquoted(text[len(rename) :])
        names = _git_names(self.header[0].rstrip("\r\n")) if self.header else ("", "")
        return names[side]


def parse(diff: str) -> list[FileDiff]:
    """The files of a diff, in order. Text before the first file (a mail's header) is dropped. Raises DiffError for a hunk whose
    counts do not fit its lines."""
    files: list[FileDiff] = []
    lines = re.findall(r"[^\n]*\n|[^\n]+", diff)  # str.splitlines would also split at form feeds and the like
    index = 0
    while index < len(lines):
        line = lines[index]
        fresh = line.startswith("--- ") and index + 1 < len(lines) and lines[index + 1].startswith("+++ ")
        if line.startswith("diff --git ") or (fresh and (not files or files[-1].hunks or not files[-1].header)):
            files.append(FileDiff())
        if line.startswith("@@ ") and files:
            end = _hunk_end(lines, index)
            files[-1].hunks.append(lines[index:end])
            index = end
            continue
        if files and not files[-1].hunks:
            files[-1].header.append(line)
        index += 1
    if diff.strip() and not files:
        raise DiffError("no file in this diff")
    return files


def touched(diff: str) -> list[str]:
    """Paths that a diff changes, without repetition, in order."""
    return list(dict.fromkeys(each.path for each in parse(diff)))


def names(diff: str) -> set[str]:
    """Every path that a diff names: of a rename both."""
    return {name for each in parse(diff) for name in (each.old_path, each.new_path) if name}


def size(diff: str) -> int:
    """Lines added plus lines removed."""
    return sum(len(each.lines("+")) + len(each.lines("-")) for each in parse(diff))


def without(diff: str, drop: Callable[[str], bool]) -> tuple[str, list[str]]:
    """The diff without the files for whose old or new path ``drop`` is true, and those paths. A rename counts by both of its names."""
    kept: list[str] = []
    dropped: list[str] = []
    for each in parse(diff):
        names = {name for name in (each.old_path, each.new_path) if name}
        if any(drop(name) for name in names):
            dropped.append(each.path)
        else:
            kept.append(each.text)
    return "".join(kept), dropped


def reverse(diff: str) -> str:
    """The diff that undoes this one. Raises DiffError for binary patches and copies."""
    return "".join(_reversed(each) for each in reversed(parse(diff)))


def _reversed(file: FileDiff) -> str:
    if any(line.startswith(("GIT binary patch", "Binary files ")) for line in file.header):
        raise DiffError(f"{file.path}: a binary patch cannot be reversed")
    if any(line.startswith("copy from ") for line in file.header):
        raise DiffError(f"{file.path}: a copy has no reverse")
    old, new = (next((line for line in file.header if line.startswith(mark)), "") for mark in ("--- ", "+++ "))
    header = []
    for line in file.header:
        if line.startswith("diff --git "):
            header.append(_swap_git_line(line))
        elif line.startswith("index ") and (ids := re.fullmatch(r"index (\S+)\.\.(\S+?)((?: \d+)?\r?\n?)", line)):
            header.append(f"index {ids[2]}..{ids[1]}{ids[3]}")
        elif line.startswith("--- "):
            header.append("--- " + _side(new[4:], "b/", "a/"))
        elif line.startswith("+++ "):
            header.append("+++ " + _side(old[4:], "a/", "b/"))
        else:
            mark = next((mark for mark in _SWAPPED if line.startswith(mark)), "")
            header.append(_SWAPPED[mark] + line[len(mark) :] if mark else line)
    order = {"old mode ": 0, "new mode ": 1, "rename from ": 0, "rename to ": 1}
    for first, second in (("old mode ", "new mode "), ("rename from ", "rename to ")):
        places = [index for index, line in enumerate(header) if line.startswith((first, second))]
        pair = sorted((header[index] for index in places), key=lambda line: order[first if line.startswith(first) else second])
        for index, line in zip(places, pair, strict=True):
            header[index] = line
    return "".join(header) + "".join(_reversed_hunk(hunk) for hunk in file.hunks)


def _reversed_hunk(hunk: list[str]) -> str:
    start_old, count_old, start_new, count_new, tail = _hunk_header(hunk[0])
    lines = [f"@@ -{_extent(start_new, count_new)} +{_extent(start_old, count_old)} @@{tail}"]
    removed: list[str] = []
    added: list[str] = []
    last = lines
    for line in hunk[1:]:
        if line.startswith("+"):
            removed.append("-" + line[1:])
            last = removed
        elif line.startswith("-"):
            added.append("+" + line[1:])
            last = added
        elif line.startswith("\\") and last is not lines:
            last.append(line)
        else:
            lines += [*removed, *added, line]
            removed, added, last = [], [], lines
    return "".join([*lines, *removed, *added])


def _hunk_end(lines: list[str], start: int) -> int:
    _, count_old, _, count_new, _ = _hunk_header(lines[start])
    old, new = int(count_old or 1), int(count_new or 1)
    index = start + 1
    while (old > 0 or new > 0) and index < len(lines):
        sign = lines[index][:1]
        if sign not in " +-\\\n\r":
            break
        old -= sign in " -\n\r"
        new -= sign in " +\n\r"
        index += 1
    if old or new:
        raise DiffError(f"the counts of {lines[start].strip()!r} do not fit its lines")
    if index < len(lines) and lines[index].startswith("\\"):
        index += 1
    return index


def _hunk_header(line: str) -> tuple[str, str | None, str, str | None, str]:
    match = _HUNK.fullmatch(line)
    if not match:
        raise DiffError(f"not the header of a hunk: {line.strip()!r}")
    return match[1], match[2], match[3], match[4], match[5]


def _extent(start: str, count: str | None) -> str:
    return start if count is None else f"{start},{count}"


def _swap_git_line(line: str) -> str:
    """The names change sides unchanged: git's quoting stays. Where the two cannot be separated the line stays;
    git then takes them from the lines of the rename."""
    old, new = _git_names(line.rstrip("\r\n"))
    names = list(_words(line[len("diff --git ") :]))
    if old == new or len(names) != 2:
        return line
    end = line[len(line.rstrip("\r\n")) :]
    return f"diff --git {_side(names[1], 'b/', 'a/')} {_side(names[0], 'a/', 'b/')}{end}"


def _git_names(line: str) -> tuple[str, str]:
    """Both names of a ``diff --git`` line. Unquoted names may hold blanks: without a rename both are the same, which finds the middle."""
    if not line.startswith("diff --git "):
        return "", ""
    rest = line[len("diff --git ") :]
    half = len(rest) // 2
    if len(rest) % 2 and rest[half] == " " and rest[2:half] == rest[half + 3 :]:
        return _stripped(rest[:half]), _stripped(rest[half + 1 :])
    names = list(_words(rest))
    return (_stripped(names[0]), _stripped(names[1])) if len(names) == 2 else ("", "")


def _words(text: str) -> Iterator[str]:
    yield from re.findall(r'"(?:[^"\\]|\\.)*"|\S+', text)


def _side(name: str, prefix: str, wanted: str) -> str:
    """``/dev/null`` stays; a name, quoted or not, changes its side's letter."""
    quote = name[:1] if name.startswith('"') else ""
    bare = name[len(quote) :]
    return quote + wanted + bare[len(prefix) :] if bare.startswith(prefix) else name


def _stripped(name: str) -> str:
    name = _unquoted(name.partition("\t")[0])
    if name == "/dev/null":
        return ""
    return name[2:] if name.startswith(("a/", "b/")) else name


def _unquoted(name: str) -> str:
    """Git quotes names with special bytes as C strings with octal escapes of UTF-8."""
    if not (len(name) > 1 and name.startswith('"') and name.endswith('"')):
        return name
    escapes = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}

    def plain(match: re.Match[str]) -> str:
        return chr(int(match[1], 8)) if match[1] else escapes.get(match[2], match[2])

    raw = re.sub(r"\\(?:([0-7]{1,3})|(.))", plain, name[1:-1])
    try:
        return raw.encode("latin-1").decode("utf-8", "replace")
    except UnicodeEncodeError:
        return raw
