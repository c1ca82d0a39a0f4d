"""The channel kind ``fs``: list, stat, exists, mkdir, move, copy, remove, chmod and search.

Lists and searches stream msgpack maps back to back, so a directory with a million names needs no large message. Each other operation is
a single call, or a copy. Used through ``transfers``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from typing import Any

from holdfast_wire.errors import HoldfastError
from holdfast_wire.limits import PATH_BYTES
from holdfast_wire.paths import shown, wire

from session_agent.agent.context import AgentContext
from session_agent.agent.files.file_user import Owner, acting, give
from session_agent.agent.files.transfers import Outgoing, Source
from session_agent.agent.files.write import make_parents
from session_agent.agent.files.xattrs import prefix_param
from session_agent.agent.request.params import boolean, choice, integer
from session_agent.agent.request.paths import absolute, os_failure, path_param
from session_agent.agent.session.channels import Channel, Handler
from session_agent.trees import remove_tree

from .copy import copy
from .listing import MOST_ENTRIES, describe, listing
from .moves import move_across
from .search import search

_MOST_DEPTH = PATH_BYTES // 2
"""No path can be deeper."""

_OPERATIONS = ("list", "stat", "exists", "mkdir", "move", "copy", "remove", "chmod", "search")


def open_fs(context: AgentContext, channel: Channel) -> Handler:
    """``fs {op, path, …}``: Opened{}, for list and search Output(1) = entry or match maps, Closed{…}.

    list {depth?: 1, recursive?, limit?, xattrs?} → Closed{entries, truncated, errors}; stat {follow?: true, xattrs?} → Closed{entry};
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
        source = listing(path, depth, integer(params, "limit", MOST_ENTRIES, least=1, most=MOST_ENTRIES), prefix_param(params))
    elif operation == "search":
        source = search(path, params)
    elif operation == "copy":
        source = copy(path, absolute(context.workdir, path_param(params, "to")))
    else:
        source = _single(path, _call(context, operation, path, params, owner))
    return Outgoing(channel, source, path, context, actor)


def _single(path: str, call: Callable[[], dict[str, Any]]) -> Source:
    """An operation that is a single call. It is made after the opening, so that nothing happens if the client has left before."""
    yield {}
    try:
        return call()
    except OSError as error:
        where = error.filename if isinstance(error.filename, str) else path
        typed = os_failure(error, where)
        if where != path:
            typed.detail["path"] = wire(where)
        raise typed from None


def _call(context: AgentContext, operation: str, path: str, params: dict[str, Any], owner: Owner) -> Callable[[], dict[str, Any]]:
    if operation == "stat":
        follow = boolean(params, "follow", True)
        xattrs = prefix_param(params)
        return lambda: {"entry": _stat(path, follow, xattrs)}
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


def _stat(path: str, follow: bool, xattrs: str) -> dict[str, Any]:
    state = os.stat(path) if follow else os.lstat(path)
    link = stat.S_ISLNK(os.lstat(path).st_mode)
    return describe(path, os.path.basename(path.rstrip("/")) or path, state, os.readlink(path) if link else None, xattrs)


def _exists(path: str) -> bool:
    try:
        os.stat(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return False
        raise
    return True


def _mkdir(path: str, parents: bool, exist_ok: bool, mode: int | None, owner: Owner) -> bool:
    path = path.rstrip("/") or "/"
    if os.path.isdir(path):
        if exist_ok:
            return False
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    if parents:
        make_parents(os.path.dirname(path), owner)
    os.mkdir(path, 0o755)
    give(path, owner)
    if mode is not None:
        os.chmod(path, mode)
    return True


def _move(path: str, to: str, overwrite: bool, parents: bool, owner: Owner) -> dict[str, Any]:
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
        raise HoldfastError("permission_denied", f"{shown(path)} is the root of a file system and cannot be moved or removed")
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
