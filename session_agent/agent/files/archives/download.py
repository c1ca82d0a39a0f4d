"""The channel kind ``download``: a file or a directory as a tar stream.

Owns the walk (names in byte order, links as links), and that the stream is a valid archive even if the tree changes meanwhile: a file that
shrinks is padded, one that grows is truncated to the size in its header, a missing or special file is left out, and the result counts
each of these. Used through ``transfers``.
"""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import os
import stat
from collections.abc import Generator, Iterator

from holdfast_wire.archives.safe_path import SafeRoot
from holdfast_wire.archives.tar import END, Kind, Member, Names, header, padding
from holdfast_wire.errors import HoldfastError
from holdfast_wire.limits import DATA_BYTES
from holdfast_wire.paths import shown

from session_agent.agent.context import AgentContext
from session_agent.agent.files.descriptors import opened
from session_agent.agent.files.file_user import acting
from session_agent.agent.files.transfers import Outgoing, Source, joined
from session_agent.agent.request.params import texts
from session_agent.agent.request.paths import absolute, path_param
from session_agent.agent.session.channels import Channel, Handler

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_KINDS: dict[int, Kind] = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}


def open_download(context: AgentContext, channel: Channel) -> Handler:
    """``download {path, exclude?: [glob], user?}``: Opened{type}, a tar stream, Closed{entries, bytes, skipped, changed, …_names}.

    A directory's members are named from inside it, its own first as ``./``; a file is one member of its own name. A glob is for
    names, or for paths below the start when it has a slash.
    """
    params = channel.params
    path = absolute(context.workdir, path_param(params))
    return Outgoing(channel, archive(path, tuple(texts(params, "exclude") or ())), path, context, acting(context, params)[0])


def archive(path: str, exclude: tuple[str, ...]) -> Source:
    """The tar stream of ``path``, of which a final symbolic link is followed."""
    path = os.path.realpath(path)
    mode = os.lstat(path).st_mode
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise HoldfastError("not_a_file", f"{shown(path)} is a special file")
    directory, name = (path, ".") if stat.S_ISDIR(mode) else os.path.split(path)
    with contextlib.closing(SafeRoot(directory)) as root:
        yield {"type": "directory" if name == "." else "file"}
        tree = _Archive(root, exclude)
        yield from joined(itertools.chain(tree.members(name), (END,)))
        return {"entries": tree.entries, "bytes": tree.size_bytes, **tree.skipped.fields("skipped"), **tree.changed.fields("changed")}


class _Archive:
    """The walk, and what was counted on it."""

    def __init__(self, root: SafeRoot, exclude: tuple[str, ...]) -> None:
        self._root = root
        self._exclude = exclude
        self.entries = 0
        self.size_bytes = 0
        self.skipped = Names()
        self.changed = Names()

    def members(self, top: str) -> Iterator[bytes]:
        """The archive of one file, or of the root and everything below it."""
        is_directory = yield from self._member(top)
        if top != "." or not is_directory:  # what was a file may be a directory by now: its content was not asked for
            return
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
        try:
            parent, name = self._root.parent(directory) if directory else (self._root.directory(""), ".")
            with opened(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, directory=parent) as descriptor:
                return sorted(os.listdir(descriptor), key=os.fsencode)
        except OSError:
            self.skipped.add(directory or ".")
            return []

    def _member(self, path: str) -> Generator[bytes, None, bool]:
        """The pieces of one member; returns whether it is a directory."""
        try:
            parent, name = self._root.parent(path) if path != "." else (self._root.directory(""), ".")
            state = os.stat(name, dir_fd=parent, follow_symlinks=False)
            kind = _KINDS.get(stat.S_IFMT(state.st_mode))
            if kind is None:
                raise OSError("special")
            link = os.fsencode(os.readlink(name, dir_fd=parent)) if kind == "symlink" else b""
            file = os.open(name, _FLAGS, dir_fd=parent) if kind == "file" else -1
        except OSError:
            self.skipped.add(path)
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
            self.entries += 1
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
            self.changed.add(path)
        while left:
            fill = min(left, DATA_BYTES)
            left -= fill
            yield bytes(fill)
        self.size_bytes += size
        yield bytes(padding(size))
