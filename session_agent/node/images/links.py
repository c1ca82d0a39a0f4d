"""Paths of an image with the links on their way resolved, as in a chroot: no path leaves the image.

Owns the walk over a path's parts and the lookup of a link: in a directory that is being unpacked, which nothing else changes, and in
layers laid over each other. Called by layers.py for members of an archive and by store.py for volumes.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Sequence

from holdfast_wire.errors import HoldfastError

MAX_PARTS = 512
OPAQUE_XATTR = "user.overlay.opaque"
_MAX_LINKS = 40
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def without_links(parts: Sequence[str], link_of: Callable[[list[str]], str | None]) -> list[str]:
    """The path of *parts* without links; *link_of* gives a link's target, and None for anything else.

    Raises HoldfastError(image_invalid).
    """
    real: list[str] = []
    left = [*reversed(parts)]
    links = 0
    while left:
        part = left.pop()
        if part == "..":
            del real[-1:]
        if part in ("", ".", ".."):
            continue
        link = link_of([*real, part])
        if link is None:
            real.append(part)
            continue
        links += 1
        if link.startswith("/"):
            real.clear()
        left += reversed(link.split("/"))
        if links > _MAX_LINKS or len(real) + len(left) > MAX_PARTS:
            raise HoldfastError("image_invalid", f"this image cannot be imported: a path with too many links: {'/'.join(parts)[:200]!r}")
    return real


class LinkReader:
    """Reads the links on a path. Keeps the last directory open: each step of a path is then one call, however deep the path is."""

    def __init__(self, root: int) -> None:
        self._here = os.dup(root)
        self._path: list[str] = []
        """Of that directory below the root, without links."""

    def read(self, parts: list[str]) -> str | None:
        """The target of a link; None for anything else, and where there is nothing."""
        try:
            self._enter(parts[:-1])
            return os.readlink(parts[-1], dir_fd=self._here)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT, errno.ELOOP, errno.ENOTDIR):
                return None
            raise

    def close(self) -> None:
        os.close(self._here)

    def _enter(self, path: list[str]) -> None:
        while path[: len(self._path)] != self._path:
            self._step("..")
            self._path.pop()
        for part in path[len(self._path) :]:
            self._step(part)
            self._path.append(part)

    def _step(self, name: str) -> None:
        there = os.open(name, _DIRECTORY, dir_fd=self._here)
        os.close(self._here)
        self._here = there


class LayerLinkReader:
    """Reads links in layers laid over each other, as overlay shows them. Keeps where the last directory is in each layer."""

    def __init__(self, layers: Sequence[str]) -> None:
        """*layers*: their directories, topmost first."""
        self._path: list[str] = []
        self._merged = [[*layers]]
        """For each beginning of that path, the directories of the layers that overlay merges there."""

    def read(self, parts: list[str]) -> str | None:
        """The target of the link at *parts*, a path without links on its way; None for anything else, and where there is nothing.

        Raises HoldfastError(image_invalid) for a name that no file can have.
        """
        folder = parts[:-1]
        while folder[: len(self._path)] != self._path:
            self._path.pop()
            self._merged.pop()
        for part in folder[len(self._path) :]:
            self._merged.append(self._look(part)[0])
            self._path.append(part)
        return self._look(parts[-1])[1]

    def _look(self, name: str) -> tuple[list[str], str | None]:
        """The directories of this name that overlay merges, or the target of the link that it shows."""
        found: list[str] = []
        for folder in self._merged[-1]:
            path = f"{folder}/{name}"
            try:
                mode = os.lstat(path).st_mode
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:
                    raise
                raise HoldfastError("image_invalid", f"this image cannot be imported: a path that is too long: {name[:200]!r}") from error
            if not stat.S_ISDIR(mode):  # a directory above hides it
                return found, os.readlink(path) if stat.S_ISLNK(mode) and not found else None
            found.append(path)
            if is_opaque(path):
                break
        return found, None


def is_opaque(directory: str) -> bool:
    """Whether a directory of a layer shows nothing of the layers below."""
    try:
        return os.getxattr(directory, OPAQUE_XATTR) == b"y"
    except OSError:
        return False
