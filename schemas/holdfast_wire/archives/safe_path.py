"""Resolving untrusted relative paths inside a directory, without races with symbolic links that other processes create or replace.

Owns the walk: it opens one component after the other, never through a link, and resolves links itself, so that it follows those that stay
inside and refuses all others. The system call openat2 does the same, but older kernels and many seccomp filters do not have it. Called by
``extraction``, and by the agent's archives and patches.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from holdfast_wire.errors import HoldfastError
from holdfast_wire.limits import PATH_BYTES
from holdfast_wire.paths import shown

_MOST_LINKS = 40  # the kernel's own MAXSYMLINKS
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC

Made = Callable[[int], None]
"""Gets the descriptor of a directory that was created, to give it an owner."""


def split(path: str) -> tuple[str, str]:
    """``path`` as (parent, name), without ``.`` components. Raises ``invalid_path`` for ``..``."""
    name, *parents = _parts(path) or [""]
    if ".." in (name, *parents):
        raise HoldfastError("invalid_path", f"{shown(path)}: '..' would leave the directory")
    return "/".join(reversed(parents)), name


class SafeRoot:
    """The directory ``root``, held open. Every method raises ``OSError``; a path that would leave it is ``EXDEV``."""

    def __init__(self, root: str) -> None:
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._passed, self._entered = "", -1  # the directory of the last call

    def close(self) -> None:
        """Close the descriptors."""
        if self._entered >= 0:
            os.close(self._entered)
        os.close(self._root)

    def parent(self, path: str, made: Made | None = None) -> tuple[int, str]:
        """The directory that holds ``path``, and the name in it. See ``directory``."""
        parent, name = split(path)
        return self.directory(parent, made), name

    def directory(self, path: str, made: Made | None = None) -> int:
        """A descriptor of a directory, not for reading, which lives until the next call. With ``made`` missing directories are created."""
        if self._entered < 0 or path != self._passed:
            entered = self._walk(path, made)
            if self._entered >= 0:
                os.close(self._entered)
            self._passed, self._entered = path, entered
        return self._entered

    def _walk(self, path: str, made: Made | None) -> int:
        if path.startswith("/"):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
        if len(os.fsencode(path)) > PATH_BYTES:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)
        todo = _parts(path)
        passed: list[str] = []  # the directories on the way, none of them a link
        links = 0
        here = os.open(".", _DIRECTORY, dir_fd=self._root)
        try:
            while todo:
                part = todo.pop()
                if part == "..":  # walk again from the root: the kernel's ".." is another directory if this one was moved
                    if not passed:
                        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
                    todo += passed[-2::-1]
                    passed.clear()
                    entered = os.open(".", _DIRECTORY, dir_fd=self._root)
                else:
                    try:
                        entered = _enter(here, part, made)
                    except NotADirectoryError:
                        target = _link(here, part)
                        if target is None:
                            raise
                        links += 1
                        if target.startswith("/"):
                            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path) from None
                        if links > _MOST_LINKS:
                            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path) from None
                        todo += _parts(target)
                        continue
                    passed.append(part)
                os.close(here)
                here = entered
        except BaseException:
            os.close(here)
            raise
        return here


def _parts(path: str) -> list[str]:
    """The components, last one first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _link(directory: int, name: str) -> str | None:
    """The target of a symbolic link; None for anything else."""
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError:
        return None


def _enter(directory: int, name: str, made: Made | None) -> int:
    """Open a directory in another one. With ``made`` it is created if it is missing."""
    try:
        return os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
    except FileNotFoundError:
        if made is None:
            raise
    try:
        os.mkdir(name, 0o755, dir_fd=directory)
    except FileExistsError:  # another process was faster: the open checks what is there
        return os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
    entered = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        made(entered)
    except BaseException:
        os.close(entered)
        raise
    return entered
