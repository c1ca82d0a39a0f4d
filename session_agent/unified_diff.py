"""Unified diffs: reading them and applying them to bytes, strictly.

Owns the grammar (plain and git's extended headers) and the placing of hunks; it opens no file (``patching`` does). Strict
means: every context and removed line must match byte for byte. A hunk whose line numbers are off is placed where it matches
if that is exactly one place; nothing is guessed. The only exception is ``PatchError``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Literal

Change = Literal["modify", "create", "delete", "rename", "copy"]

_HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_MODE = re.compile(rb"(?:old mode|new mode|new file mode|deleted file mode) (100644|100755|120000|160000|100[0-7]{3})$")
_MAIL = re.compile(rb"From [0-9a-f]{40,64} ")
_STAMP = re.compile(rb"\s+\d{4}-\d\d-\d\d[ T]\d\d:\d\d.*$")
_ESCAPES = {b"a": b"\a", b"b": b"\b", b"t": b"\t", b"n": b"\n", b"v": b"\v", b"f": b"\f", b"r": b"\r"}
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
    """What the diff says of one file. Names are raw bytes with their prefix; None is /dev/null."""

    old: bytes | None
    new: bytes | None
    change: Change = "modify"
    mode: int | None = None
    git: bool = False
    bare: bool = False  # rename and copy headers name paths without the a/ b/ prefix
    part: int = 0  # which commit of a series: within one, renames and copies speak of the files before it
    hunks: list[Hunk] = field(default_factory=list)


def parse(diff: bytes) -> list[FilePatch]:
    """The files of a diff, in order. Text around them (mail headers, prose) is skipped."""
    return _Parser(diff).files()


def prefix_depth(files: list[FilePatch]) -> int:
    """How many leading components the names carry (0 or 1), judged by the prefixes that diff programs write."""
    named = [f for f in files if not f.bare and (f.old or f.new)]
    pairs = [(f.old or b"", f.new or b"") for f in named]
    for old, new in _PREFIXES:
        if named and all((not a or a.startswith(old)) and (not b or b.startswith(new)) for a, b in pairs):
            return 1
    return 1 if files and not named else 0


def apply(patch: FilePatch, original: bytes) -> tuple[bytes, list[str]]:
    """``original`` with all hunks applied, and a note for each that was not where its numbers said."""
    lines = _lines(original)
    out: list[bytes] = []
    notes: list[str] = []
    done = 0  # lines of the original already copied
    drift = 0
    for hunk in patch.hunks:
        note = ""
        expected = (hunk.old_start if not hunk.old else hunk.old_start - 1) + drift
        try:
            at = _place(hunk, lines, expected, done)
        except PatchError:
            hunk, note = _line_ends(hunk, lines)
            if not note:
                raise
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


def _line_ends(hunk: Hunk, lines: list[bytes]) -> tuple[Hunk, str]:
    """A diff that went through a mail or an editor may have other line ends than the file; the file's are kept."""
    if not lines or not hunk.old:
        return hunk, ""
    crlf = [line.endswith(b"\r\n") for line in hunk.old + hunk.new if line.endswith(b"\n")]
    if not crlf:
        return hunk, ""
    in_file = [line.endswith(b"\r\n") for line in lines if line.endswith(b"\n")]
    if not any(crlf) and in_file and all(in_file):

        def convert(line: bytes) -> bytes:
            return line[:-1] + b"\r\n" if line.endswith(b"\n") else line

        note = "was given the file's CRLF line ends"
    elif all(crlf) and not any(in_file):

        def convert(line: bytes) -> bytes:
            return line[:-2] + b"\n" if line.endswith(b"\r\n") else line

        note = "was given the file's LF line ends"
    else:
        return hunk, ""
    return replace(hunk, old=tuple(map(convert, hunk.old)), new=tuple(map(convert, hunk.new))), note


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
    """All places of ``old`` in ``lines`` (Knuth, Morris, Pratt: linear also for hostile repetition), at most six."""
    fail = [0] * len(old)
    k = 0
    for i in range(1, len(old)):
        while k and old[i] != old[k]:
            k = fail[k - 1]
        k += old[i] == old[k]
        fail[i] = k
    found: list[int] = []
    k = 0
    for i in range(least, len(lines)):
        while k and lines[i] != old[k]:
            k = fail[k - 1]
        k += lines[i] == old[k]
        if k == len(old):
            found.append(i - k + 1)
            if len(found) > 5:
                break
            k = fail[k - 1]
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


class _Parser:
    """Walks the lines of a diff once. Numbers in its messages are lines of the diff, from 1."""

    def __init__(self, diff: bytes) -> None:
        self._lines = diff.split(b"\n")
        self._at = 0
        self._files: list[FilePatch] = []
        self._part = 0

    def files(self) -> list[FilePatch]:
        after_hunk = False
        while (line := self._peek()) is not None:
            if line.startswith(b"diff --git "):
                self._git()
                after_hunk = True
            elif self._is_plain():
                self._plain(None)
                after_hunk = True
            elif line.startswith(b"@@ -"):
                raise self._bad("a hunk without a file header before it")
            elif line.startswith((b"GIT binary patch", b"Binary files ")):
                raise self._bad("binary patches are not supported: upload the file instead")
            else:
                if after_hunk and line[:1] in (b"+", b"-", b" ") and not self._is_signature():
                    raise self._bad("the hunk before it holds more lines than its header says")
                self._part += bool(_MAIL.match(line))
                after_hunk = after_hunk and (not line.strip() or line.startswith(b"\\"))
                self._at += 1
        if not self._files:
            raise PatchError("there is no file in this diff: it needs '--- old', '+++ new' and '@@' lines", malformed=True)
        return self._files

    def _peek(self, ahead: int = 0) -> bytes | None:
        at = self._at + ahead
        return self._lines[at].rstrip(b"\r") if at < len(self._lines) else None

    def _bad(self, why: str) -> PatchError:
        return PatchError(f"line {self._at + 1} of the diff: {why}", malformed=True)

    def _is_plain(self) -> bool:
        first, second = self._peek(), self._peek(1)
        return first is not None and first.startswith(b"--- ") and second is not None and second.startswith(b"+++ ")

    def _is_signature(self) -> bool:
        """The ``-- `` that ends a patch sent by mail."""
        return self._lines[self._at].rstrip() == b"--"

    def _git(self) -> None:
        first = self._peek() or b""
        names = _git_names(first[len(b"diff --git ") :])
        patch = FilePatch(*(names or (b"", b"")), git=True, part=self._part)
        self._at += 1
        while (line := self._peek()) is not None:
            if mode := _MODE.match(line):
                if not line.startswith(b"old mode"):
                    patch.mode = int(mode[1], 8)
                if line.startswith(b"new file"):
                    patch.change, patch.old = "create", None
                elif line.startswith(b"deleted"):
                    patch.change, patch.new = "delete", None
            elif line.startswith((b"rename from ", b"copy from ")):
                patch.change, patch.bare = ("rename" if line.startswith(b"rename") else "copy"), True
                patch.old = self._name(line.split(b" from ", 1)[1])
            elif line.startswith((b"rename to ", b"copy to ")):
                patch.new = self._name(line.split(b" to ", 1)[1])
            elif line.startswith(b"index ") and line.endswith(b" 120000"):
                patch.mode = 0o120000
            elif not line.startswith((b"index ", b"similarity index ", b"dissimilarity index ")):
                break
            self._at += 1
        line = self._peek() or b""
        if line.startswith((b"GIT binary patch", b"Binary files ")):
            raise self._bad("binary patches are not supported: upload the file instead")
        if self._is_plain():
            self._plain(patch)
            return
        if line.startswith(b"@@ -"):
            raise self._bad("a hunk without '---' and '+++' lines before it")
        if patch.old == b"" or patch.new == b"" or (patch.change == "modify" and patch.mode is None):
            raise self._bad("this section of the diff changes nothing, or its file names cannot be told apart")
        self._files.append(patch)

    def _plain(self, patch: FilePatch | None) -> None:
        old = self._name((self._peek() or b"")[4:])
        self._at += 1
        new = self._name((self._peek() or b"")[4:])
        self._at += 1
        if patch is None:
            patch = FilePatch(old, new, part=self._part)
            if old is None:
                patch.change = "create"
            elif new is None:
                patch.change = "delete"
        elif not patch.bare:
            patch.old, patch.new = old, new
            if old is None:
                patch.change = "create"
            elif new is None:
                patch.change = "delete"
        if patch.old is None and patch.new is None:
            raise self._bad("both names are /dev/null")
        while (line := self._peek()) is not None and line.startswith(b"@@ "):
            patch.hunks.append(self._hunk(len(patch.hunks) + 1, patch))
        if not patch.hunks and not patch.git:
            raise self._bad("no '@@' hunk follows the file header")
        self._files.append(patch)

    def _hunk(self, number: int, patch: FilePatch) -> Hunk:
        match = _HUNK.match(self._peek() or b"")
        if match is None:
            raise self._bad("a malformed hunk header: it must read '@@ -start,count +start,count @@'")
        name = (patch.new or patch.old or b"").decode("utf-8", "backslashreplace")
        title = f"hunk #{number} of {name} ({match[0].decode()})"
        old_start = int(match[1])
        old_left = int(match[2]) if match[2] is not None else 1
        new_left = int(match[4]) if match[4] is not None else 1
        self._at += 1
        old: list[bytes] = []
        new: list[bytes] = []
        while old_left or new_left:
            if self._at >= len(self._lines) or (self._at == len(self._lines) - 1 and not self._lines[self._at]):
                raise self._bad(f"{title} ends early: {old_left} old and {new_left} new lines are missing")
            line = self._lines[self._at]
            sign, content = line[:1], line[1:] + b"\n"
            if sign in (b"", b"\r"):  # a context line that is empty, whose leading space an editor has stripped
                sign, content = b" ", line + b"\n"
            if sign not in (b" ", b"-", b"+"):
                raise self._bad(f"{title} ends early: {old_left} old and {new_left} new lines are missing")
            if sign != b"+":
                old.append(content)
                old_left -= 1
            if sign != b"-":
                new.append(content)
                new_left -= 1
            if old_left < 0 or new_left < 0:
                raise self._bad(f"{title} holds more lines than its header says")
            self._at += 1
            if (self._peek() or b"").startswith(b"\\"):
                _chomp(old, sign != b"+")
                _chomp(new, sign != b"-")
                self._at += 1
        if not old and not new:
            raise self._bad(f"{title} is empty")
        return Hunk(number, title, old_start, tuple(old), tuple(new))

    def _name(self, text: bytes) -> bytes | None:
        name, rest = _unquote(text) if text.startswith(b'"') else (None, b"")
        if name is None:
            name = text.split(b"\t", 1)[0] if b"\t" in text else _STAMP.sub(b"", text).rstrip(b" ")
        elif rest.strip(b" \t") and not _STAMP.match(b" " + rest):
            raise self._bad("something follows a quoted file name")
        if name == b"/dev/null":
            return None
        if not name or b"\0" in name:
            raise self._bad("a file name is empty or holds a NUL byte")
        return name


def _chomp(lines: list[bytes], concerned: bool) -> None:
    if concerned and lines:
        lines[-1] = lines[-1].removesuffix(b"\n")


def _unquote(text: bytes) -> tuple[bytes | None, bytes]:
    """A C-quoted name at the start of ``text``, and what follows it."""
    out = bytearray()
    at = 1
    while at < len(text):
        char = text[at : at + 1]
        if char == b'"':
            return bytes(out), text[at + 1 :]
        if char != b"\\":
            out += char
            at += 1
        elif octal := re.compile(rb"[0-3][0-7]{2}").match(text, at + 1):
            out.append(int(octal[0], 8))
            at += 4
        else:
            out += _ESCAPES.get(text[at + 1 : at + 2], text[at + 1 : at + 2])
            at += 2
    return None, b""


def _git_names(text: bytes) -> tuple[bytes, bytes] | None:
    """Both names of a ``diff --git`` line; unquoted ones with spaces are told apart by being the same name twice."""
    if text.startswith(b'"'):
        old, rest = _unquote(text)
        if old is None or not rest.startswith(b" "):
            return None
        new = _unquote(rest[1:])[0] if rest.startswith(b' "') else rest[1:]
        return (old, new) if new else None
    if text.endswith(b'"') and b' "' in text:
        cut = text.index(b' "')
        new = _unquote(text[cut + 1 :])[0]
        return (text[:cut], new) if new else None
    if text.count(b" ") == 1:
        old, new = text.split(b" ")
        return (old, new) if old and new else None
    half = len(text) // 2
    if len(text) % 2 and text[half : half + 1] == b" ":
        old, new = text[:half], text[half + 1 :]
        if old == new or (b"/" in old and old.partition(b"/")[2] == new.partition(b"/")[2]):
            return old, new
    return None
