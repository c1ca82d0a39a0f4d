"""The operation ``search`` of ``fs``: finding files by name and lines by text.

Owns which entries of a walk (``listing``) match, skipping binary files, and the limits. The pattern is plain text: a Python regular
expression can take exponential time and would block the interpreter meanwhile; clients can run ``grep -E`` instead. Called by
``operations``.
"""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from collections.abc import Iterator
from typing import Any

from holdfast_wire.limits import PATH_BYTES

from session_agent.agent.files.transfers import Source
from session_agent.agent.request.params import boolean, integer, text, texts
from session_agent.agent.request.paths import path_fields, start_of

from .listing import Walk, packed

_LINE_BYTES = 2000
_FILE_BYTES = 16 * 1024 * 1024
_MOST_VISITED = 1_000_000
_SKIP = (".git", "node_modules", "__pycache__", ".venv")


def search(path: str, params: dict[str, Any]) -> Source:
    """Matches as maps: ``{path}`` for names, ``{path, line, text}`` for lines."""
    found = _Search(start_of(path), params)
    os.stat(path)
    yield {}
    yield from packed(found.matches())
    return found.counts


class _Search:
    """The options of a search, ``{glob?, pattern?, ignore_case?: false, limit?: 1000, exclude?: [...]}``, and what was counted.

    ``glob`` is for names (or for paths below the start, when it has a slash); ``pattern``, plain text, for lines.
    """

    def __init__(self, top: str, params: dict[str, Any]) -> None:
        pattern, exclude = text(params, "pattern", None), texts(params, "exclude")
        case = re.IGNORECASE if boolean(params, "ignore_case", False) else 0
        self._top = top
        self._glob = text(params, "glob", None)
        self._pattern = None if pattern is None else re.compile(re.escape(os.fsencode(pattern)), case)
        self._limit = integer(params, "limit", 1000, least=1, most=100_000)
        self._exclude = _SKIP if exclude is None else tuple(exclude)
        self.counts = {"matches": 0, "files": 0, "truncated": False}

    def matches(self) -> Iterator[dict[str, Any]]:
        """The matches, until a limit is reached."""
        for path in self._paths():
            self.counts["files"] += 1
            for match in _lines(path, self._pattern) if self._pattern is not None else (path_fields("path", path),):
                if self.counts["matches"] >= self._limit:
                    self.counts["truncated"] = True
                    return
                self.counts["matches"] += 1
                yield match

    def _paths(self) -> Iterator[str]:
        """The paths whose names match; with a pattern only those of files."""
        if not os.path.isdir(self._top):
            yield self._top
            return
        glob = self._glob
        for visited, (path, name, state) in enumerate(Walk(self._top, PATH_BYTES, self._is_excluded)):
            if visited >= _MOST_VISITED:
                self.counts["truncated"] = True
                return
            if self._pattern is not None and _leads_to_directory(path, state):
                continue
            if glob is None or _fits(os.path.relpath(path, self._top) if "/" in glob else name, glob):
                yield path

    def _is_excluded(self, path: str, name: str, state: os.stat_result) -> bool:
        return any(fnmatch.fnmatchcase(name, glob) for glob in self._exclude) and _leads_to_directory(path, state)


def _lines(path: str, pattern: re.Pattern[bytes]) -> Iterator[dict[str, Any]]:
    try:
        state = os.lstat(path)
        if not stat.S_ISREG(state.st_mode) or state.st_size > _FILE_BYTES:
            return
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            data = file.read(_FILE_BYTES)
    except OSError:
        return
    if b"\0" in data[:8192]:
        return
    for number, line in enumerate(data.split(b"\n"), 1):
        if pattern.search(line, 0, _LINE_BYTES):
            yield {**path_fields("path", path), "line": number, "text": line[:_LINE_BYTES].decode("utf-8", "replace")}


def _leads_to_directory(path: str, state: os.stat_result) -> bool:
    return not stat.S_ISREG(state.st_mode) and os.path.isdir(path)


def _fits(subject: str, glob: str) -> bool:
    """Whether a name or path matches; ``**/`` at the start may also stand for no directory at all."""
    return fnmatch.fnmatchcase(subject, glob) or (glob.startswith("**/") and fnmatch.fnmatchcase(subject, glob[3:]))
