"""The operation ``search`` of ``fs``: finding files by name and lines by text.

Owns a walk in a fixed order that does not follow links, skips binary files and stops at limits. The pattern is plain text: a Python regular
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

import msgpack
from holdfast_wire.records import dataclass

from session_agent.agent.request.params import boolean, integer, text, texts
from session_agent.agent.request.paths import os_failure, path_fields, start_of

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


class Search:
    """Matches as maps: ``{path}`` for names, ``{path, line, text}`` for lines."""

    def __init__(self, path: str, options: SearchOptions) -> None:
        self._path = start_of(path)
        self._options = options
        self._matches = 0
        self._files = 0
        self._visited = 0
        self._truncated = False

    def open(self) -> dict[str, Any]:
        try:
            os.stat(self._path)
        except OSError as error:
            raise os_failure(error, self._path) from None
        return {}

    def chunks(self) -> Iterator[bytes]:
        pack = msgpack.Packer(use_bin_type=True).pack
        for path in self._paths():
            self._files += 1
            for found in self._within(path) if self._options.pattern is not None else (path_fields("path", path),):
                if self._matches >= self._options.limit:
                    self._truncated = True
                    return
                self._matches += 1
                yield pack(found)

    def result(self) -> dict[str, Any]:
        return {"matches": self._matches, "files": self._files, "truncated": self._truncated}

    def close(self) -> None:
        """Nothing is held open between two matches."""

    def _paths(self) -> Iterator[str]:
        if not os.path.isdir(self._path):
            yield self._path
            return
        glob, exclude = self._options.glob, self._options.exclude
        waiting = [self._path]  # no recursion, whose depth is limited
        while waiting:
            directory = waiting.pop()
            directories, links, files = _names(directory)
            directories, links = _without(exclude, directories), _without(exclude, links)
            names = files if self._options.pattern is not None else files + links + directories
            for name in sorted(names):
                self._visited += 1
                if self._visited > _MOST_VISITED:
                    self._truncated = True
                    return
                path = os.path.join(directory, name)
                subject = name if glob is None or "/" not in glob else os.path.relpath(path, self._path)
                if glob is None or _fits(subject, glob):
                    yield path
            waiting += [os.path.join(directory, name) for name in sorted(directories, reverse=True)]

    def _within(self, path: str) -> Iterator[dict[str, Any]]:
        pattern = self._options.pattern
        assert pattern is not None
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


def _fits(subject: str, glob: str) -> bool:
    """Whether a name or path matches; ``**/`` at the start may also stand for no directory at all."""
    return fnmatch.fnmatchcase(subject, glob) or (glob.startswith("**/") and fnmatch.fnmatchcase(subject, glob[3:]))


def _without(exclude: tuple[str, ...], names: list[str]) -> list[str]:
    return [name for name in names if not any(fnmatch.fnmatchcase(name, glob) for glob in exclude)]


def _names(directory: str) -> tuple[list[str], list[str], list[str]]:
    """The directories in it, the links to directories, and all other names; empty if it cannot be read."""
    directories: list[str] = []
    links: list[str] = []
    files: list[str] = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                kind = files if not _leads_to_directory(entry) else links if entry.is_symlink() else directories
                kind.append(entry.name)
    except OSError:
        pass
    return directories, links, files


def _leads_to_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False
