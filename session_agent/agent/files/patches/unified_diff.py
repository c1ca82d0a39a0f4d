"""The parts of a unified diff, and applying them strictly to bytes.

Owns finding the place of each hunk; ``diff_parser`` parses diffs, ``patch`` reads and writes files. Strict means: every context and removed
line must match byte for byte, and a hunk with wrong line numbers is applied only if it matches at exactly one place. The only exception
is ``PatchError``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from holdfast_wire.fast_dataclass import dataclass, field, replace

Change = Literal["modify", "create", "delete", "rename", "copy"]

_PREFIXES = ((b"a/", b"b/"), (b"i/", b"w/"), (b"c/", b"i/"), (b"c/", b"w/"), (b"o/", b"w/"))
_SHOWN = 160


class PatchError(Exception):
    """The diff is malformed (``malformed``), or does not fit the files it is for."""

    def __init__(self, message: str, *, malformed: bool = False) -> None:
        super().__init__(message)
        self.malformed = malformed


@dataclass(frozen=True, slots=True)
class Hunk:
    """One ``@@`` section: ``old`` lines are replaced by ``new``, each with its newline. Line numbers start at 1."""

    number: int
    header: str
    old_start: int
    old: tuple[bytes, ...]
    new: tuple[bytes, ...]


@dataclass(slots=True)
class FilePatch:
    """What the diff changes in one file. Names are raw bytes with their prefix; None is /dev/null."""

    old: bytes | None
    new: bytes | None
    change: Change = "modify"
    mode: int | None = None
    git: bool = False
    bare: bool = False  # rename and copy headers name paths without the a/ b/ prefix
    part: int = 0  # which commit of a series: within one, renames and copies speak of the files before it
    hunks: list[Hunk] = field(default_factory=list)


def prefix_depth(files: list[FilePatch]) -> int:
    """How many leading components the names carry (0 or 1), judged by the prefixes that diff programs write."""
    named = [f for f in files if not f.bare and (f.old or f.new)]
    pairs = [(f.old or b"", f.new or b"") for f in named]
    for old, new in _PREFIXES:
        if named and all((not a or a.startswith(old)) and (not b or b.startswith(new)) for a, b in pairs):
            return 1
    return 1 if files and not named else 0


def apply(patch: FilePatch, original: bytes) -> tuple[bytes, list[str]]:
    """``original`` with all hunks applied, and a note for each that was not at its line numbers."""
    lines = _lines(original)
    out: list[bytes] = []
    notes: list[str] = []
    done = 0  # lines of the original already copied
    drift = 0
    for hunk, note in _with_line_ends(patch.hunks, lines):
        expected = (hunk.old_start if not hunk.old else hunk.old_start - 1) + drift
        at = _place(hunk, lines, expected, done)
        if at != expected:
            notes.append(f"hunk #{hunk.number} applied at line {at + 1} (offset {at - expected} lines)")
        if note:
            notes.append(f"hunk #{hunk.number} {note}")
        drift += at - expected
        out += lines[done:at]
        out += hunk.new
        done = at + len(hunk.old)
    out += lines[done:]
    for line in out[:-1]:
        if not line.endswith(b"\n"):
            raise PatchError("a line without newline would end up in the middle of the file")
    return b"".join(out), notes


def _lines(data: bytes) -> list[bytes]:
    parts = data.split(b"\n")
    last = parts.pop()
    lines = [part + b"\n" for part in parts]
    return [*lines, last] if last else lines


def _with_line_ends(hunks: list[Hunk], lines: list[bytes]) -> list[tuple[Hunk, str]]:
    """The hunks with the line ends of the file, each with a note if it was changed: mail programs and editors may have changed the diff.

    Whether they have shows only in old lines, which match none of the file then. A hunk that has none follows the others.
    """
    in_file = _crlf(lines)
    unchanged = [(hunk, "") for hunk in hunks]
    if not lines or len(in_file) > 1:
        return unchanged
    crlf = in_file == {True}
    differs = [_crlf((*hunk.old, *hunk.new)) <= {not crlf} for hunk in hunks]
    if not any(differ and _crlf(hunk.old) for hunk, differ in zip(hunks, differs, strict=True)):
        return unchanged
    note = f"was given the file's {'CRLF' if crlf else 'LF'} line ends"

    def convert(line: bytes) -> bytes:
        if crlf:
            return line[:-1] + b"\r\n" if line.endswith(b"\n") else line
        return line.removesuffix(b"\n").removesuffix(b"\r") + (b"\n" if line.endswith(b"\n") else b"")

    result = []
    for hunk, differ in zip(hunks, differs, strict=True):
        converted = replace(hunk, old=tuple(map(convert, hunk.old)), new=tuple(map(convert, hunk.new))) if differ else hunk
        result.append((converted, note if converted != hunk else ""))
    return result


def _crlf(lines: Iterable[bytes]) -> set[bool]:
    """Whether lines end with CRLF; a line without newline does not count."""
    return {line.endswith(b"\r\n") for line in lines if line.endswith(b"\n")}


def _place(hunk: Hunk, lines: list[bytes], expected: int, least: int) -> int:
    if not hunk.old:
        if not least <= expected <= len(lines):
            raise PatchError(f"{hunk.header} adds after line {expected}, and the file has {len(lines)} lines")
        return expected
    old = list(hunk.old)
    if expected >= least and lines[expected : expected + len(old)] == old:
        return expected
    found = _find(old, lines, least)
    if len(found) == 1:
        return found[0]
    if found:
        places = ", ".join(str(at + 1) for at in found[:5])
        raise PatchError(f"{hunk.header} does not match at its line {expected + 1}, and matches at several: {places}")
    raise PatchError(_mismatch(hunk, lines, expected, least))


def _find(old: list[bytes], lines: list[bytes], least: int) -> list[int]:
    """The first places of ``old`` in ``lines`` from ``least`` on, at most six."""
    if not all(line.endswith(b"\n") for line in old):  # only the last line of a file has no newline
        end = len(lines) - len(old)
        return [end] if end >= least and lines[end:] == old else []
    # Lines begin after a newline. The search for bytes takes linear time, also in hostile repetition.
    text, wanted = b"\n" + b"".join(lines[least:]), b"\n" + b"".join(old)
    found: list[int] = []
    begin, line = 0, least
    while len(found) < 6 and (at := text.find(wanted, begin)) >= 0:
        line += text.count(b"\n", begin, at)
        found.append(line)
        begin, line = at + 1, line + 1
    return found


def _mismatch(hunk: Hunk, lines: list[bytes], expected: int, least: int) -> str:
    new = list(hunk.new)
    start = max(expected, 0)
    if new and new != list(hunk.old) and (lines[start : start + len(new)] == new or _find(new, lines, least)):
        return f"{hunk.header} does not apply: its result is there already"
    if start < least:
        return f"{hunk.header} overlaps the hunk before it, or is out of order"
    for index, wanted in enumerate(hunk.old):
        at = start + index
        if at >= len(lines):
            return f"{hunk.header} expects {_show(wanted)} at line {at + 1}, and the file has only {len(lines)} lines"
        if lines[at] != wanted:
            message = f"{hunk.header} expects {_show(wanted)} at line {at + 1}, found {_show(lines[at])}"
            if lines[at].rstrip(b"\r\n") == wanted.rstrip(b"\r\n"):
                return message + " (only the line ends differ)"
            if lines[at].split() == wanted.split():
                return message + " (only white space differs)"
            return message
    return f"{hunk.header} does not match"


def _show(line: bytes) -> str:
    text = ascii(line.decode("utf-8", "replace")[:_SHOWN])
    return text if len(line) <= _SHOWN else text + "…"
