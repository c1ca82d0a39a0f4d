"""Moving files and trees to another file system.

Other processes may change the tree at the same time; links that they create in it are not followed. Paths are absolute. Failures are an
``OSError`` with the full path, or a ``HoldfastError``. Called by ``operations``.
"""

from __future__ import annotations

import errno
import os
import stat

from holdfast_wire.errors import HoldfastError

from session_agent.agent.files.descriptors import temporary_name
from session_agent.trees import remove

from .copy import copy


def move_across(path: str, to: str) -> None:
    """Copy ``path`` to a temporary name beside ``to``, rename that to ``to``, and remove ``path``."""
    _check(path, to)
    path, to = path.rstrip("/"), to.rstrip("/")
    beside = f"{os.path.dirname(to)}/{temporary_name()}"
    try:
        for _ in copy(path, beside):
            pass
        os.rename(beside, to)
    except BaseException as problem:
        if os.path.lexists(beside):
            remove(beside)
        number = problem.detail.get("errno", 0) if isinstance(problem, HoldfastError) else 0
        if number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise OSError(number, os.strerror(number), to) from None  # the error is about the target, not the source
        raise
    remove(path)


def _check(path: str, to: str) -> None:
    """Raise before the copy what a rename inside one file system raises."""
    source = path.rstrip("/") or "/"
    is_tree = stat.S_ISDIR(os.lstat(source).st_mode)
    if os.path.basename(source) in ("", ".", "..") or (is_tree and os.path.ismount(source)):
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
    if not is_tree and (path.endswith("/") or to.endswith("/")):
        raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), to)
    to = to.rstrip("/") or "/"
    try:
        there = os.lstat(to)
    except FileNotFoundError:
        return
    wrong = 0
    if not stat.S_ISDIR(there.st_mode):
        wrong = errno.ENOTDIR if is_tree else 0
    elif not is_tree:
        wrong = errno.EISDIR
    elif os.listdir(to):
        wrong = errno.ENOTEMPTY
    if wrong:
        raise OSError(wrong, os.strerror(wrong), to)
