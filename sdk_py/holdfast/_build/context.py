"""The build context: a local directory, what .dockerignore leaves of it, and the files that a source of COPY means.

Sources cannot leave the directory, also not by links. Owners are not part of it: what is copied belongs to root, as with docker.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from holdfast._build.patterns import Ignored, has_wildcard, part_pattern

MOST_ENTRIES = 1_000_000
_PIECE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Entry:
    """One file, directory or link, with what the image shall have of it. ``path`` is relative to the source; empty: the source itself."""

    path: str
    mode: int
    """Kind and permissions, as ``st_mode``."""
    size: int = 0
    mtime: float = 0.0
    link: str = ""
    hard_link: str = ""
    uid: int = 0
    gid: int = 0
    open: Callable[[], IO[bytes]] | None = None

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return stat.S_ISDIR(self.mode)


@dataclass(frozen=True, slots=True)
class Source:
    """One thing to copy: a file, or a directory whose content is copied. ``name`` is its own name."""

    name: str
    is_dir: bool
    entries: list[Entry]


class Context:
    """The files below ``root``. Raises ``FileNotFoundError`` and ``NotADirectoryError`` for a directory that is none."""

    def __init__(self, root: Path, ignored: Ignored | None = None) -> None:
        self.root = Path(os.path.realpath(root, strict=True))
        if not self.root.is_dir():
            raise NotADirectoryError(20, "the build context is not a directory", str(root))
        self.ignored = ignored or Ignored()

    def sources(self, text: str) -> list[Source]:
        """What a source of COPY means, in order of names. Raises ``FileNotFoundError``, and ``ValueError`` for a wrong pattern."""
        path = posixpath.normpath("/" + text).lstrip("/")
        found = self._matching(path) if has_wildcard(path) else [path]
        if not found:
            raise FileNotFoundError(2, "no such file in the context", text)
        return [self._source(one) for one in found]

    def _matching(self, pattern: str) -> list[str]:
        found = [""]
        for part in pattern.split("/"):
            match, below = part_pattern(part), list[str]()
            for folder in found:
                place = self._inside(folder)
                if place is None or not place.is_dir():
                    continue
                below += [posixpath.join(folder, name) for name in sorted(os.listdir(place)) if match.fullmatch(name)]
            found = below
        return [one for one in found if not self._left_out(one)]

    def _left_out(self, path: str) -> bool:
        return self.ignored(path) and not (self.ignored.has_exceptions and (self.root / path).is_dir())

    def _inside(self, path: str) -> Path | None:
        """The place of a path with links followed, None if there is nothing. Absolute links begin at the context, as with docker."""
        place, parts, links = self.root, [part for part in path.split("/") if part], 0
        while parts:
            part = parts.pop(0)
            if part in (".", ""):
                continue
            if part == "..":
                place = place.parent if place != self.root else place
                continue
            place = place / part
            try:
                state = place.lstat()
            except (OSError, ValueError):
                return None
            if stat.S_ISLNK(state.st_mode):
                links += 1
                if links > 40:
                    return None
                target = os.readlink(place)
                place = self.root if target.startswith("/") else place.parent
                parts = [*target.split("/"), *parts]
        return place

    def _source(self, path: str) -> Source:
        place = self._inside(path)
        missing = FileNotFoundError(2, "no such file in the context", path)
        if place is None or (path and self._left_out(path)):
            raise missing
        here = "" if place == self.root else place.relative_to(self.root).as_posix()
        name = posixpath.basename(path)
        if not place.is_dir():
            if here and self.ignored(here):
                raise missing
            if not place.is_file():
                raise OSError(22, "neither a file nor a directory", path)
            return Source(name, False, [_entry(place, "")])
        entries: list[Entry] = []
        self._walk(place, here, "", entries)
        if path and not entries:
            raise missing
        return Source(name, True, entries)

    def _walk(self, place: Path, here: str, path: str, entries: list[Entry]) -> None:
        waiting = [(place, here, path)]
        while waiting:
            place, here, path = waiting.pop()
            entry = _entry(place, path)
            if here and self.ignored(here):
                if not (entry.is_dir and self.ignored.has_exceptions):
                    continue
                below = [self._below(place, here, path, name) for name in sorted(os.listdir(place), reverse=True)]
                waiting += below
                continue  # the directory itself is left out; what is in it again brings it along, with the usual permissions
            if stat.S_IFMT(entry.mode) not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
                continue
            entries.append(entry)
            if len(entries) > MOST_ENTRIES:
                raise ValueError(f"more than {MOST_ENTRIES} files; list what is not needed in .dockerignore")
            if entry.is_dir:
                waiting += [self._below(place, here, path, name) for name in sorted(os.listdir(place), reverse=True)]

    @staticmethod
    def _below(place: Path, here: str, path: str, name: str) -> tuple[Path, str, str]:
        return place / name, f"{here}/{name}" if here else name, f"{path}/{name}" if path else name


def _entry(place: Path, path: str) -> Entry:
    state = place.lstat()
    link = os.readlink(place) if stat.S_ISLNK(state.st_mode) else ""
    size = state.st_size if stat.S_ISREG(state.st_mode) else 0
    return Entry(path, state.st_mode, size, state.st_mtime, link, open=lambda: open(place, "rb"))


def digest(sources: list[Source]) -> str:
    """A digest of names, kinds, permissions and contents, not of times: the same files are the same step."""
    total = hashlib.sha256()
    for source in sources:
        total.update(f"\0{source.name}\0{source.is_dir}".encode("utf-8", "surrogateescape"))
        for one in source.entries:
            row = f"\0{one.path}\0{one.mode}\0{one.size}\0{one.link}\0{one.hard_link}\0{one.uid}:{one.gid}\0"
            total.update(row.encode("utf-8", "surrogateescape"))
            if one.open is not None and stat.S_ISREG(one.mode):
                for piece in _content(one.open):
                    total.update(piece)
    return total.hexdigest()


def _content(opened: Callable[[], IO[bytes]]) -> Iterator[bytes]:
    with opened() as file:
        while data := file.read(_PIECE):
            yield data
