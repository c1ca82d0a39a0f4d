"""The channel kind ``fs``: list, stat, exists, mkdir, move, copy, remove, chmod and search.

Each operation is a ``Source`` whose result is the channel's ``Closed``. Lists and searches stream msgpack maps back to back, so a
directory with a million names needs no large message.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
from holdfast_wire.errors import HoldfastError
from holdfast_wire.limits import PATH_BYTES

from session_agent.agent.context import AgentContext
from session_agent.agent.request.params import boolean, choice, integer
from session_agent.agent.request.paths import absolute, os_failure, path_fields, path_param, shown, start_of, wire
from session_agent.agent.session.channels import Channel, Handler

from .copying import Copying
from .file_user import acting
from .ownership import Ownership
from .search import Search, search_params
from .transfers import Outgoing
from .tree_operations import move_across, remove_tree
from .write import make_parents

MOST_ENTRIES = 1_000_000
"""Most entries in one list; if there are more, the result has ``truncated``."""
_MOST_DEPTH = PATH_BYTES // 2
"""No path can be deeper."""
_PIECE_BYTES = 32 * 1024

_OPERATIONS = ("list", "stat", "exists", "mkdir", "move", "copy", "remove", "chmod", "search")


def open_fs(context: AgentContext, channel: Channel) -> Handler:
    """``fs {op, path, …}``: Opened{}, for list and search Output(1) = entry or match maps, Closed{…}.

    list {depth?: 1, recursive?, limit?} → Closed{entries, truncated, errors}; stat {follow?: true} → Closed{entry};
    exists {} → Closed{exists}; mkdir {parents?: true, exist_ok?: true, mode?} → Closed{created};
    move {to, overwrite?: false, parents?: false} → Closed{}; copy {to} → Closed{entries, bytes};
    remove {recursive?: false, missing_ok?: false} → Closed{existed};
    chmod {mode} → Closed{}; search {glob?, pattern?, …} → Closed{matches, files, truncated}. All take user?.
    """
    params = channel.params
    operation = choice(params, "op", "", _OPERATIONS)
    path = absolute(context.workdir, path_param(params))
    actor, owner = acting(context, params)
    if operation == "list":
        depth = _MOST_DEPTH if boolean(params, "recursive", False) else 1
        depth = integer(params, "depth", depth, least=1, most=_MOST_DEPTH)
        return Outgoing(
            channel, Listing(path, depth, integer(params, "limit", MOST_ENTRIES, least=1, most=MOST_ENTRIES)), context.read_ahead, actor
        )
    if operation == "search":
        return Outgoing(channel, Search(path, search_params(params)), context.read_ahead, actor)
    if operation == "copy":
        return Outgoing(channel, Copying(path, absolute(context.workdir, path_param(params, "to"))), context.read_ahead, actor)
    return Outgoing(channel, _Answer(path, _action(context, operation, path, params, owner)), context.read_ahead, actor)


def describe(path: str, name: str, state: os.stat_result, target: str | None) -> dict[str, Any]:
    """The map that list and stat return for one path."""
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}
    entry = path_fields("name", name) | path_fields("path", path)
    facts: dict[str, Any] = {
        "type": kinds.get(stat.S_IFMT(state.st_mode), "other"),
        "size": state.st_size,
        "mode": stat.S_IMODE(state.st_mode),
        "mtime": state.st_mtime,
        "uid": state.st_uid,
        "gid": state.st_gid,
    }
    return entry | facts | (path_fields("target", target) if target is not None else {})


class Listing:
    """The entries of a directory in the order of their names, each directory followed by its own entries."""

    def __init__(self, path: str, depth: int, limit: int) -> None:
        self._path = start_of(path)
        self._depth = depth
        self._limit = limit
        self._entries = 0
        self._truncated = False
        self._errors = 0

    def open(self) -> dict[str, Any]:
        try:
            os.listdir(self._path) if os.path.isdir(self._path) else os.stat(self._path)
        except OSError as error:
            raise os_failure(error, self._path) from None
        if not os.path.isdir(self._path):
            raise HoldfastError("not_a_directory", f"{shown(self._path)}: Not a directory")
        return {}

    def chunks(self) -> Iterator[bytes]:
        pack = msgpack.Packer(use_bin_type=True).pack
        pieces: list[bytes] = []
        size = 0
        for entry in self._walk():
            if self._entries >= self._limit:
                self._truncated = True
                break
            self._entries += 1
            piece = pack(entry)
            pieces.append(piece)
            size += len(piece)
            if size >= _PIECE_BYTES:
                yield b"".join(pieces)
                pieces, size = [], 0
        yield b"".join(pieces)

    def result(self) -> dict[str, Any]:
        return {"entries": self._entries, "truncated": self._truncated, "errors": self._errors}

    def close(self) -> None:
        """Nothing is held open between two entries."""

    def _walk(self) -> Iterator[dict[str, Any]]:
        open_directories = [(self._path, iter(self._names(self._path)))]
        while open_directories:
            directory, names = open_directories[-1]
            name = next(names, None)
            if name is None:
                open_directories.pop()
                continue
            path = f"{directory}/{name}" if directory != "/" else f"/{name}"
            try:
                state = os.lstat(path)
                target = os.readlink(path) if stat.S_ISLNK(state.st_mode) else None
            except OSError as error:  # it was removed, or there is no permission, or its path is too long
                self._errors += 1
                self._truncated |= error.errno == errno.ENAMETOOLONG
                continue
            yield describe(path, name, state, target)
            if stat.S_ISDIR(state.st_mode) and len(open_directories) < self._depth:
                open_directories.append((path, iter(self._names(path))))

    def _names(self, directory: str) -> list[str]:
        try:
            return sorted(os.listdir(directory), key=os.fsencode)
        except OSError as error:
            self._errors += 1
            self._truncated |= error.errno == errno.ENAMETOOLONG
            return []


class _Answer:
    """An operation that is a single call. It runs in ``result``, so that nothing happens if the client has left before."""

    def __init__(self, path: str, action: Callable[[], dict[str, Any]]) -> None:
        self._path = path
        self._action = action

    def open(self) -> dict[str, Any]:
        return {}

    def chunks(self) -> Iterator[bytes]:
        return iter(())

    def result(self) -> dict[str, Any]:
        try:
            return self._action()
        except OSError as error:
            where = error.filename if isinstance(error.filename, str) else self._path
            typed = os_failure(error, where)
            if where != self._path:
                typed.detail["path"] = wire(where)
            raise typed from None

    def close(self) -> None:
        """Nothing is held."""


def _action(context: AgentContext, operation: str, path: str, params: dict[str, Any], owner: Ownership) -> Callable[[], dict[str, Any]]:
    if operation == "stat":
        follow = boolean(params, "follow", True)
        return lambda: {"entry": _stat(path, follow)}
    if operation == "exists":
        return lambda: {"exists": _exists(path)}
    if operation == "mkdir":
        parents, exist_ok = boolean(params, "parents", True), boolean(params, "exist_ok", True)
        mode = integer(params, "mode", None, most=0o7777)
        return lambda: {"created": _mkdir(path, parents, exist_ok, mode, owner)}
    if operation == "move":
        to = absolute(context.workdir, path_param(params, "to"))
        overwrite, make = boolean(params, "overwrite", False), boolean(params, "parents", False)
        return lambda: _move(path, to, overwrite, make, owner)
    if operation == "remove":
        recursive, missing_ok = boolean(params, "recursive", False), boolean(params, "missing_ok", False)
        return lambda: {"existed": _remove(path, recursive, missing_ok)}
    mode = integer(params, "mode", None, most=0o7777)
    if mode is None:
        raise HoldfastError("invalid_argument", "chmod needs a mode, such as 0o755")
    return lambda: _chmod(path, mode)


def _stat(path: str, follow: bool) -> dict[str, Any]:
    state = os.stat(path) if follow else os.lstat(path)
    link = stat.S_ISLNK(os.lstat(path).st_mode)
    return describe(path, os.path.basename(path.rstrip("/")) or path, state, os.readlink(path) if link else None)


def _exists(path: str) -> bool:
    try:
        os.stat(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return False
        raise
    return True


def _mkdir(path: str, parents: bool, exist_ok: bool, mode: int | None, owner: Ownership) -> bool:
    path = path.rstrip("/") or "/"
    if os.path.isdir(path):
        if exist_ok:
            return False
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    if parents:
        make_parents(os.path.dirname(path), owner)
    os.mkdir(path, 0o755)
    owner.give_new(path)
    if mode is not None:
        os.chmod(path, mode)
    return True


def _move(path: str, to: str, overwrite: bool, parents: bool, owner: Ownership) -> dict[str, Any]:
    """Rename to exactly ``to``, not into it. Between file systems it is a copy and a removal, and not atomic."""
    os.lstat(path)
    if parents:
        make_parents(os.path.dirname(to.rstrip("/")), owner)
    if not overwrite and os.path.lexists(to):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), to)
    try:
        os.rename(path, to)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise HoldfastError("invalid_path", f"{shown(path)} cannot move into itself: {shown(to)}", hint="") from None
        if error.errno != errno.EXDEV:
            raise OSError(error.errno, error.strerror, path if error.errno == errno.EBUSY else to) from None  # ``path`` is there
        move_across(path, to)
    return {}


def _remove(path: str, recursive: bool, missing_ok: bool) -> bool:
    try:
        state = os.lstat(path.rstrip("/") or "/")
    except FileNotFoundError:
        if missing_ok:
            return False
        raise
    # only for directories: on an overlay a file can have another device number than its directory
    if stat.S_ISDIR(state.st_mode) and (os.path.realpath(path) == "/" or os.path.ismount(path)):
        raise HoldfastError("permission_denied", f"{shown(path)} is the root of a file system and stays")
    if os.path.basename(path.rstrip("/")) in (".", ".."):
        raise HoldfastError("invalid_path", f"{shown(path)} ends in a dot: name the directory itself", hint="")
    with contextlib.suppress(FileNotFoundError) if missing_ok else contextlib.nullcontext():
        if not stat.S_ISDIR(state.st_mode):
            os.unlink(path)
        elif recursive:
            remove_tree(path)
        else:
            os.rmdir(path)
    return True


def _chmod(path: str, mode: int) -> dict[str, Any]:
    os.chmod(path, mode)
    return {}
