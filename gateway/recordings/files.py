"""Where recordings are kept: a folder of this machine, or an object store through fsspec.

Owns the layout: for each owner a folder, in it one for each recording, with ``meta.json``, its lines, and ``end.json`` once it is complete.
All methods block and are called on threads. Names come from ``name_of``, so that no id leads elsewhere. Used by ``recorder`` and
``use_cases.recordings``.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Protocol

import orjson

RECORDING_ID: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}\.[0-9a-f]{16}")
"""A sandbox's name, a dot and its incarnation."""
_TAIL_BYTES: Final = 4 * 1024 * 1024
_PIECE_BYTES: Final = 256 * 1024
_META, _END, _LINES = "meta.json", "end.json", "lines"


def recording_id(sandbox: str, incarnation: str) -> str:
    return f"{sandbox}.{incarnation}"


def name_of(owner: str, id_: str = "") -> str:
    """The folder of an owner's recording, or of all. Raises ``ValueError`` for what is no recording's id."""
    folder = hashlib.sha256(owner.encode()).hexdigest()[:32]
    if id_ and not RECORDING_ID.fullmatch(id_):
        raise ValueError("not the id of a recording")
    return f"{folder}/{id_}" if id_ else folder


class RecordingFiles(Protocol):
    """A place for recordings. Methods raise ``OSError`` when it does not answer; a missing recording has no content."""

    def append(self, name: str, data: bytes) -> None:
        """Append lines."""
        ...

    def write(self, name: str, what: str, content: bytes) -> None:
        """Write ``meta.json`` or ``end.json``."""
        ...

    def read(self, name: str, what: str) -> bytes | None:
        """The content of ``meta.json`` or ``end.json``; None if there is none."""
        ...

    def lines(self, name: str, offset: int = 0) -> Iterator[bytes]:
        """The lines from a byte on, in pieces."""
        ...

    def tail(self, name: str) -> bytes:
        """The end of the lines."""
        ...

    def size(self, name: str) -> int:
        """The bytes of the lines."""
        ...

    def names(self, folder: str) -> list[str]:
        """The names in a folder; with "" the owners' folders."""
        ...

    def remove(self, name: str) -> None:
        """Remove a recording."""
        ...


class Folder:
    """A folder of this machine."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def _path(self, name: str, what: str = "") -> Path:
        return self._root / name / what if what else self._root / name

    def append(self, name: str, data: bytes) -> None:
        os.makedirs(self._path(name), mode=0o700, exist_ok=True)
        with open(self._path(name, _LINES), "ab", buffering=0, opener=_private) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]

    def write(self, name: str, what: str, content: bytes) -> None:
        os.makedirs(self._path(name), mode=0o700, exist_ok=True)
        temporary = self._path(name, f".{what}")
        with open(temporary, "wb", opener=_private) as file:
            file.write(content)
        os.replace(temporary, self._path(name, what))

    def read(self, name: str, what: str) -> bytes | None:
        try:
            return self._path(name, what).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def lines(self, name: str, offset: int = 0) -> Iterator[bytes]:
        try:
            file = open(self._path(name, _LINES), "rb", buffering=0)  # noqa: SIM115
        except FileNotFoundError:
            return
        with file:
            file.seek(offset)
            while piece := file.read(_PIECE_BYTES):
                yield piece

    def tail(self, name: str) -> bytes:
        return b"".join(self.lines(name, max(self.size(name) - _TAIL_BYTES, 0)))

    def size(self, name: str) -> int:
        try:
            return self._path(name, _LINES).stat().st_size
        except FileNotFoundError:
            return 0

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(self._path(folder) if folder else self._root))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._path(name))


class Objects:
    """A place that fsspec knows, such as ``s3://bucket/prefix``, with a package of its own. Objects of lines are never changed."""

    def __init__(self, url: str) -> None:
        """Raises ``ValueError`` if the package for ``url`` is missing."""
        try:
            from fsspec.core import url_to_fs

            self._fs, self._root = url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise ValueError(
                f"HOLDFAST_RECORDINGS={url}: {error} (install the extra holdfast[objects] and the store's own package)"
            ) from None
        self._next: dict[str, int] = {}

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}" if name else self._root

    def append(self, name: str, data: bytes) -> None:
        number = self._next.get(name)
        if number is None:
            number = max((int(one) for one in self.names(f"{name}/{_LINES}")), default=0) + 1
        path = self._path(f"{name}/{_LINES}")
        self._fs.makedirs(path, exist_ok=True)
        self._fs.pipe_file(f"{path}/{number:010}", data)
        self._next[name] = number + 1

    def write(self, name: str, what: str, content: bytes) -> None:
        self._fs.makedirs(self._path(name), exist_ok=True)
        self._fs.pipe_file(self._path(f"{name}/{what}"), content)

    def read(self, name: str, what: str) -> bytes | None:
        try:
            content: bytes = self._fs.cat_file(self._path(f"{name}/{what}"))
        except FileNotFoundError:
            return None
        return content

    def lines(self, name: str, offset: int = 0) -> Iterator[bytes]:
        for number in self.names(f"{name}/{_LINES}"):
            piece: bytes = self._fs.cat_file(self._path(f"{name}/{_LINES}/{number}"))
            if offset >= len(piece):
                offset -= len(piece)
            else:
                yield piece[offset:]
                offset = 0

    def tail(self, name: str) -> bytes:
        found = b""
        for number in reversed(self.names(f"{name}/{_LINES}")):
            found = self._fs.cat_file(self._path(f"{name}/{_LINES}/{number}")) + found
            if len(found) >= _TAIL_BYTES:
                break
        return found

    def size(self, name: str) -> int:
        try:
            return sum(int(one["size"] or 0) for one in self._fs.ls(self._path(f"{name}/{_LINES}"), detail=True))
        except FileNotFoundError:
            return 0

    def names(self, folder: str) -> list[str]:
        self._fs.invalidate_cache()
        try:
            return sorted(str(one).rstrip("/").rpartition("/")[2] for one in self._fs.ls(self._path(folder), detail=False))
        except FileNotFoundError:
            return []

    def remove(self, name: str) -> None:
        self._next.pop(name, None)
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm(self._path(name), recursive=True)


def files_of(place: str) -> RecordingFiles | None:
    """The place that HOLDFAST_RECORDINGS names; None for "off". Raises ``ValueError``."""
    if place == "off":
        return None
    return Objects(place) if "://" in place else Folder(Path(place))


def stored(files: RecordingFiles, name: str) -> dict[str, Any] | None:
    """What is known of a recording; None if there is none, or it cannot be read."""
    meta, end = files.read(name, _META), files.read(name, _END)
    try:
        found = orjson.loads(meta or b"")
        ended = orjson.loads(end) if end else {}
    except orjson.JSONDecodeError:
        return None
    return {**found, "ended_at": None, "reason": None, "fault": None, "message": None, **ended, "bytes": files.size(name)}


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
