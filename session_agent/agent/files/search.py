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
from holdfast_wire.records import dataclass

from session_agent.agent.request.params import boolean, integer, text, texts
from session_agent.agent.request.paths import path_fields, start_of

from .listing import Walk, packed
from .transfers import Source

_LINE_BYTES = 2000
_FILE_BYTES = 16 * 1024 * 1024
_MOST_VISITED = 1_000_000
_SKIP = (".git", "node_modules", "__pycache__", ".venv")


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """``glob`` is for names (or for paths below the start, when it has a slash); ``pattern``, plain text, for lines."""

    glob: str | None
    pattern: re.Pattern[bytes] | None
    limit: int
    exclude: tuple[str, ...]


def search_params(params: dict[str, Any]) -> SearchOptions:
    """``{glob?, pattern?, ignore_case?: false, limit?: 1000, exclude?: [...]}``."""
    pattern = text(params, "pattern", None)
    compiled = None
    if pattern is not None:
        compiled = re.compile(re.escape(os.fsencode(pattern)), re.IGNORECASE if boolean(params, "ignore_case", False) else 0)
    exclude = texts(params, "exclude")
    return SearchOptions(
        glob=text(params, "glob", None),
        pattern=compiled,
        limit=integer(params, "limit", 1000, least=1, most=100_000),
        exclude=_SKIP if exclude is None else tuple(exclude),
    )


def search(path: str, options: SearchOptions) -> Source:
    """Matches as maps: ``{path}`` for names, ``{path, line, text}`` for lines."""
    top = start_of(path)
    os.stat(top)
    yield {}
    counts = {"matches": 0, "files": 0, "truncated": False}

    def found() -> Iterator[dict[str, Any]]:
        for path in _paths(top, options, counts):
            counts["files"] += 1
            for match in _lines(path, options.pattern) if options.pattern is not None else (path_fields("path", path),):
                if counts["matches"] >= options.limit:
                    counts["truncated"] = True
                    return
                counts["matches"] += 1
                yield match

    yield from packed(found())
    return counts


def _paths(top: str, options: SearchOptions, counts: dict[str, Any]) -> Iterator[str]:
    """The paths whose names match; with a pattern only those of files."""
    if not os.path.isdir(top):
        yield top
        return

    def is_excluded(path: str, name: str, state: os.stat_result) -> bool:
        return any(fnmatch.fnmatchcase(name, glob) for glob in options.exclude) and _leads_to_directory(path, state)

    glob = options.glob
    for visited, (path, name, state) in enumerate(Walk(top, PATH_BYTES, is_excluded)):
        if visited >= _MOST_VISITED:
            counts["truncated"] = True
            return
        if options.pattern is not None and _leads_to_directory(path, state):
            continue
        if glob is None or _fits(os.path.relpath(path, top) if "/" in glob else name, glob):
            yield path


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
