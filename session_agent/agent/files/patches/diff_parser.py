"""Parsing unified diffs, plain ones and git's, with mail headers or other text around them.

Owns the grammar. The counts in hunk headers must be exact, and diff lines outside a hunk are an error instead of surrounding text, so that
a truncated or damaged diff is refused. The only exception is ``PatchError``. Called by ``patch``.
"""

from __future__ import annotations

import re

from .unified_diff import FilePatch, Hunk, PatchError

_HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_MODE = re.compile(rb"(?:old mode|new mode|new file mode|deleted file mode) (100644|100755|120000|160000|100[0-7]{3})$")
_MAIL = re.compile(rb"From [0-9a-f]{40,64} ")
_STAMP = re.compile(rb"\s+\d{4}-\d\d-\d\d[ T]\d\d:\d\d.*$")
_ESCAPES = {b"a": b"\a", b"b": b"\b", b"t": b"\t", b"n": b"\n", b"v": b"\v", b"f": b"\f", b"r": b"\r"}


def parse(diff: bytes) -> list[FilePatch]:
    """The files of a diff, in order. Text around them (mail headers, prose) is skipped."""
    return _Parser(diff).files()


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
                    raise self._bad("the previous hunk has more lines than its header states")
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
            raise self._bad("this section of the diff changes nothing, or its file names cannot be separated")
        self._files.append(patch)

    def _plain(self, patch: FilePatch | None) -> None:
        old = self._name((self._peek() or b"")[4:])
        self._at += 1
        new = self._name((self._peek() or b"")[4:])
        self._at += 1
        if patch is None:
            patch = FilePatch(old, new, part=self._part)
        if not patch.bare:
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
                raise self._bad(f"{title} holds more lines than its header states")
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
            raise self._bad("unexpected text after a quoted file name")
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
    """Both names of a ``diff --git`` line; unquoted ones with spaces are separated by being the same name twice."""
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
