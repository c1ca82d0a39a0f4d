"""Removing directory trees of any depth, and moving files and trees to another file system.

Other processes may change the tree at the same time; links that they create in it are not followed. Paths are absolute. Failures are an
``OSError`` with the full path, or a ``HoldfastError``. Called by ``operations``.
"""

from __future__ import annotations

import errno
import os
import stat

from holdfast_wire.errors import HoldfastError

from .copying import copy
from .cursor import DIRECTORY, Cursor
from .descriptors import temporary_name


def remove_tree(path: str) -> None:
    """``rm -r`` of a directory, with one open descriptor and without recursion, so that the depth is not limited by either."""
    top, name = os.path.split(path.rstrip("/"))
    names: list[str] = []
    cursor = Cursor(os.open(top or "/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    try:
        waiting = [[name]]
        while True:
            if waiting[-1]:
                name = waiting[-1].pop()
                try:
                    inner = os.open(name, DIRECTORY, dir_fd=cursor.here)
                except FileNotFoundError:
                    continue
                except NotADirectoryError:  # a file or a link has taken its place
                    os.unlink(name, dir_fd=cursor.here)
                    continue
                cursor.enter(inner)
                names.append(name)
                waiting.append(_clear(inner))
                continue
            if not names:
                return
            cursor.leave()
            waiting.pop()
            os.rmdir(names.pop(), dir_fd=cursor.here)
    except OSError as error:
        within = [part for part in (top, *names, error.filename) if isinstance(part, str)]
        raise OSError(error.errno, error.strerror, "/".join(within)) from None
    finally:
        cursor.close()


def _clear(directory: int) -> list[str]:
    """Remove everything but directories; returns their names."""
    with os.scandir(directory) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_directory in found:
        if not is_directory:
            os.unlink(name, dir_fd=directory)
    return [name for name, is_directory in found if is_directory]


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
            _remove(beside)
        number = problem.detail.get("errno", 0) if isinstance(problem, HoldfastError) else 0
        if number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise OSError(number, os.strerror(number), to) from None  # the error is about the target, not the source
        raise
    _remove(path)


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


def _remove(path: str) -> None:
    if stat.S_ISDIR(os.lstat(path).st_mode):
        remove_tree(path)
    else:
        os.unlink(path)
