"""The operation ``list`` of ``fs``, and the walk that it shares with ``search``.

Owns the order of the walk (by names, each directory followed by its own entries), which does not follow links, and the map that
describes an entry. Called by ``operations`` and ``search``.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgpack

from session_agent.agent.files.transfers import Source, joined
from session_agent.agent.files.xattrs import read
from session_agent.agent.request.paths import path_fields, start_of

MOST_ENTRIES = 1_000_000
"""Most entries in one list; if there are more, the result has ``truncated``."""
_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}


class Walk:
    """The entries below a directory. ``is_skipped`` is called with path, name and state: such an entry, and all below it, is left out."""

    def __init__(self, top: str, depth: int, is_skipped: Callable[[str, str, os.stat_result], bool] = lambda *_: False) -> None:
        self._top = top
        self._depth = depth
        self._is_skipped = is_skipped
        self.errors = 0
        self.truncated = False
        """Whether a path was too long to go on."""

    def __iter__(self) -> Iterator[tuple[str, str, os.stat_result]]:
        """Path, name and state of each entry."""
        open_directories = [(self._top, iter(self._names(self._top)))]  # no recursion, whose depth is limited
        while open_directories:
            directory, names = open_directories[-1]
            name = next(names, None)
            if name is None:
                open_directories.pop()
                continue
            path = f"{directory}/{name}" if directory != "/" else f"/{name}"
            try:
                state = os.lstat(path)
            except OSError as error:
                self.failed(error)
                continue
            if self._is_skipped(path, name, state):
                continue
            yield path, name, state
            if stat.S_ISDIR(state.st_mode) and len(open_directories) < self._depth:
                open_directories.append((path, iter(self._names(path))))

    def failed(self, error: OSError) -> None:
        """An entry was removed, or there is no permission, or its path is too long."""
        self.errors += 1
        self.truncated |= error.errno == errno.ENAMETOOLONG

    def _names(self, directory: str) -> list[str]:
        try:
            return sorted(os.listdir(directory), key=os.fsencode)
        except OSError as error:
            self.failed(error)
            return []


def describe(path: str, name: str, state: os.stat_result, target: str | None, xattrs: str = "") -> dict[str, Any]:
    """The map that list and stat return for one path; ``xattrs`` is the beginning of the names of attributes that it has, "" for none."""
    entry = path_fields("name", name) | path_fields("path", path)
    facts: dict[str, Any] = {
        "type": _KINDS.get(stat.S_IFMT(state.st_mode), "other"),
        "size": state.st_size,
        "mode": stat.S_IMODE(state.st_mode),
        "mtime": state.st_mtime,
        "uid": state.st_uid,
        "gid": state.st_gid,
    }
    if xattrs and (found := read(path, xattrs)):
        facts["xattrs"] = found
    return entry | facts | (path_fields("target", target) if target is not None else {})


def listing(path: str, depth: int, limit: int, xattrs: str = "") -> Source:
    """The entries of the directory ``path``."""
    top = start_of(path)
    if not stat.S_ISDIR(os.stat(top).st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    os.listdir(top)  # raises if the user may not read it
    yield {}
    walk, count, truncated = Walk(top, depth), 0, False

    def entries() -> Iterator[dict[str, Any]]:
        nonlocal count, truncated
        for path, name, state in walk:
            if count >= limit:
                truncated = True
                return
            try:
                target = os.readlink(path) if stat.S_ISLNK(state.st_mode) else None
            except OSError as error:
                walk.failed(error)
                continue
            count += 1
            yield describe(path, name, state, target, xattrs)

    yield from packed(entries())
    return {"entries": count, "truncated": truncated or walk.truncated, "errors": walk.errors}


def packed(maps: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    """The maps as msgpack back to back."""
    return joined(map(msgpack.Packer(use_bin_type=True).pack, maps))
