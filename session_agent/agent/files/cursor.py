"""The position of a walk in a directory tree, held by one open descriptor at any depth.

Owns the return to the parent: after another process moved a directory, its ``..`` is another directory, where the walk must not
continue. Called by ``copying`` and ``tree_operations``.
"""

from __future__ import annotations

import errno
import os

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Identity = tuple[int, int]


def identity(descriptor: int) -> Identity:
    """The device and inode of what is open."""
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
        """Close the descriptor. For the last time that the cursor is used."""
        os.close(self.here)
