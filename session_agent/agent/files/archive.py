"""The channel kind ``download``: a file or a directory as a tar stream.

Owns the walk (names in byte order, links as links), and that the stream is a valid archive even if the tree changes meanwhile: a file that
shrinks is padded, one that grows is truncated to the size in its header, a missing or special file is left out, and the result counts
each of these. Used through ``transfers``.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import stat
from collections.abc import Generator, Iterator
from typing import Any

from holdfast_wire.errors import HoldfastError
from holdfast_wire.limits import DATA_BYTES

from session_agent.agent.context import AgentContext
from session_agent.agent.request.params import texts
from session_agent.agent.request.paths import absolute, os_failure, path_param, shown, wire
from session_agent.agent.session.channels import Channel, Handler

from .file_user import acting
from .safe_path import SafeRoot
from .tar_format import END, Kind, Member, header, padding
from .transfers import Outgoing

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_KINDS: dict[int, Kind] = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}
_MOST_NAMED = 20  # names of skipped and changed files that the result spells out
_JOIN_BYTES = 64 * 1024


def open_download(context: AgentContext, channel: Channel) -> Handler:
    """``download {path, exclude?: [glob], user?}``: Opened{type}, a tar stream, Closed{entries, bytes, skipped, changed, …_names}.

    A directory's members are named from inside it, its own first as ``./``; a file is one member of its own name. A glob is for
    names, or for paths below the start when it has a slash.
    """
    params = channel.params
    path = absolute(context.workdir, path_param(params))
    return Outgoing(channel, TreeSource(path, tuple(texts(params, "exclude") or ())), context.read_ahead, acting(context, params)[0])


class TreeSource:
    """The tar stream of ``path``, of which a final symbolic link is followed."""

    def __init__(self, path: str, exclude: tuple[str, ...] = ()) -> None:
        self._path = os.path.realpath(path)
        self._exclude = exclude
        self._root: SafeRoot | None = None
        self._single = ""
        self._entries = 0
        self._bytes = 0
        self._noted: dict[str, list[str]] = {"skipped": [], "changed": []}
        self._counts = {"skipped": 0, "changed": 0}

    def open(self) -> dict[str, Any]:
        try:
            state = os.lstat(self._path)
            if stat.S_ISDIR(state.st_mode):
                self._root = SafeRoot(self._path)
            elif stat.S_ISREG(state.st_mode):
                directory, self._single = os.path.split(self._path)
                self._root = SafeRoot(directory)
            else:
                raise HoldfastError("not_a_file", f"{shown(self._path)} is a special file")
        except OSError as error:
            raise os_failure(error, self._path) from None
        return {"type": "file" if self._single else "directory"}

    def chunks(self) -> Iterator[bytes]:
        held = bytearray()
        for piece in self._members():
            if len(held) + len(piece) > _JOIN_BYTES:
                if held:
                    yield bytes(held)
                    held.clear()
                if len(piece) > _JOIN_BYTES:
                    yield piece
                    continue
            held += piece
        yield bytes(held + END)

    def result(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"entries": self._entries, "bytes": self._bytes, **self._counts}
        return fields | {f"{key}_names": [wire(name) for name in names] for key, names in self._noted.items() if names}

    def close(self) -> None:
        if self._root is not None:
            self._root.close()

    def _members(self) -> Iterator[bytes]:
        if self._single:
            yield from self._member(self._single)
            return
        yield from self._member(".")
        waiting = [("", iter(self._names("")))]
        while waiting:
            directory, names = waiting[-1]
            name = next(names, None)
            if name is None:
                waiting.pop()
                continue
            path = f"{directory}/{name}" if directory else name
            if any(fnmatch.fnmatchcase(path if "/" in glob else name, glob) for glob in self._exclude):
                continue
            is_directory = yield from self._member(path)
            if is_directory:
                waiting.append((path, iter(self._names(path))))

    def _names(self, directory: str) -> list[str]:
        assert self._root is not None
        try:
            descriptor = self._root.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                return sorted(os.listdir(descriptor), key=os.fsencode)
            finally:
                os.close(descriptor)
        except OSError:
            self._note("skipped", directory or ".")
            return []

    def _member(self, path: str) -> Generator[bytes, None, bool]:
        """The pieces of one member; returns whether it is a directory."""
        assert self._root is not None
        try:
            parent, name = self._root.parent(path) if path != "." else (self._root.parent("x")[0], ".")
            state = os.stat(name, dir_fd=parent, follow_symlinks=False)
            kind = _KINDS.get(stat.S_IFMT(state.st_mode))
            if kind is None:
                raise OSError("special")
            link = os.fsencode(os.readlink(name, dir_fd=parent)) if kind == "symlink" else b""
            file = os.open(name, _FLAGS, dir_fd=parent) if kind == "file" else -1
        except OSError:
            self._note("skipped", path)
            return False
        try:
            if file >= 0:
                state = os.fstat(file)
            size = state.st_size if kind == "file" else 0
            yield header(
                Member(
                    name=os.fsencode(path),
                    kind=kind,
                    size=size,
                    mode=stat.S_IMODE(state.st_mode),
                    mtime_s=int(state.st_mtime // 1),
                    uid=state.st_uid,
                    gid=state.st_gid,
                    link=link,
                )
            )
            self._entries += 1
            if file >= 0:
                yield from self._content(path, file, size)
        finally:
            if file >= 0:
                os.close(file)
        return kind == "directory"

    def _content(self, path: str, file: int, size: int) -> Iterator[bytes]:
        left = size
        while left:
            data = b""
            with contextlib.suppress(OSError):
                data = os.read(file, min(DATA_BYTES, left))
            if not data:
                break
            left -= len(data)
            yield data
        grew = False
        with contextlib.suppress(OSError):
            grew = not left and bool(os.read(file, 1))
        if left or grew:
            self._note("changed", path)
        while left:
            fill = min(left, DATA_BYTES)
            left -= fill
            yield bytes(fill)
        self._bytes += size
        yield bytes(padding(size))

    def _note(self, what: str, path: str) -> None:
        self._counts[what] += 1
        if len(self._noted[what]) < _MOST_NAMED:
            self._noted[what].append(path)
