"""Walking and removing directory trees of any depth, which other processes may change at the same time.

Owns the position of a walk, held by one open descriptor, and its return to the parent: after another process moved a directory, its ``..``
is another directory, where the walk must not continue. Links are not followed. Called by the agent's ``files`` for clients, and by the node
for the files of ended sandboxes.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator
from typing import NamedTuple

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_LISTINGS = 3
"""How often a directory is listed at most. Entries that are removed during a listing may hide others from it; a process that creates files
without end must not keep the removal busy."""

Identity = tuple[int, int]


def identity(descriptor: int) -> Identity:
    """The device and inode of an open file."""
    state = os.fstat(descriptor)
    return state.st_dev, state.st_ino


class Cursor:
    """The directory ``here``, and the directories that were entered on the way to it."""

    def __init__(self, here: int) -> None:
        """The descriptor ``here`` is closed by the cursor."""
        self.here = here
        self._way = [identity(here)]

    def enter(self, inner: int) -> None:
        """Go into a directory in this one, which was opened by its name."""
        os.close(self.here)
        self.here = inner
        self._way.append(identity(inner))

    def leave(self) -> None:
        """Go back. Raises ``OSError`` where the directory was moved."""
        outer = os.open("..", DIRECTORY, dir_fd=self.here)
        os.close(self.here)
        self.here = outer
        self._way.pop()
        if identity(outer) != self._way[-1]:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    def close(self) -> None:
        """Close the descriptor. The cursor cannot be used afterwards."""
        os.close(self.here)


class Entry(NamedTuple):
    """An entry on a walk."""

    path: list[str]
    """The names on the way to it, its own last; empty for the directory that the walk began with. Changes with the walk."""
    parent: int
    """The open directory that holds it; of a directory, itself."""
    state: os.stat_result

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.state.st_mode)


def walk(top: int) -> Generator[Entry]:
    """The open directory *top* and everything below it, directories before what is in them, in the order of their names.

    *top* is closed at the end. Raises ``OSError``.
    """
    cursor, path = Cursor(top), list[str]()
    try:
        yield Entry(path, cursor.here, os.fstat(cursor.here))
        waiting = [sorted(os.listdir(cursor.here), reverse=True)]
        while True:
            if not waiting[-1]:
                waiting.pop()
                if not waiting:
                    return
                cursor.leave()
                path.pop()
                continue
            name = waiting[-1].pop()
            state = os.lstat(name, dir_fd=cursor.here)
            path.append(name)
            if not stat.S_ISDIR(state.st_mode):
                yield Entry(path, cursor.here, state)
                path.pop()
                continue
            cursor.enter(os.open(name, DIRECTORY, dir_fd=cursor.here))
            yield Entry(path, cursor.here, state)
            waiting.append(sorted(os.listdir(cursor.here), reverse=True))
    finally:
        cursor.close()


def remove(path: str, *, unlock: bool = False) -> None:
    """Remove a file, or a directory with all that is in it."""
    if stat.S_ISDIR(os.lstat(path).st_mode):
        remove_tree(path, unlock=unlock)
    else:
        os.unlink(path)


def remove_tree(path: str, *, unlock: bool = False) -> None:
    """``rm -r`` of a directory, with one open descriptor and without recursion, so that the depth is not limited by either.

    ``unlock``: remove directories even if their modes forbid that to their owner; only for a tree that no other process uses. Raises
    ``OSError`` with the full path.
    """
    top, name = os.path.split(path.rstrip("/"))
    names: list[str] = []
    cursor = Cursor(os.open(top or "/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    try:
        waiting = [[name]]
        while True:
            if waiting[-1]:
                name = waiting[-1].pop()
                try:
                    if unlock:
                        os.chmod(name, 0o700, dir_fd=cursor.here)
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
    """Remove everything but directories that are not empty; returns their names. There may be millions of files.

    Raises ``OSError`` (EBUSY) for a mount point: what is mounted is not emptied.
    """
    found: list[str] = []
    for _ in range(_LISTINGS):
        is_changed = False
        found.clear()
        with os.scandir(directory) as entries:
            for entry in entries:
                try:
                    if entry.is_dir(follow_symlinks=False):
                        os.rmdir(entry.name, dir_fd=directory)
                    else:
                        os.unlink(entry.name, dir_fd=directory)
                    is_changed = True
                except OSError as error:
                    if error.errno == errno.EBUSY or not entry.is_dir(follow_symlinks=False):
                        raise
                    found.append(entry.name)
        if not is_changed:
            break
    return found
