"""Paths of an image with the links on their way resolved, as in a chroot: no path leaves the image.

Owns the walk over a path's components and the lookup of a link, in one directory and in stacked layers. Called by layers.py for members of
an archive, by formats.py for files of a layout and by store.py for volumes.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
from collections.abc import Callable, Sequence

from holdfast_wire.errors import HoldfastError

MAX_PARTS = 512
OPAQUE_XATTR = "user.overlay.opaque"
_MAX_LINKS = 40


def without_links(parts: Sequence[str], link_of: Callable[[list[str]], str | None]) -> list[str]:
    """The path of *parts* with its links resolved; *link_of* returns a link's target, None for other entries.

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


def link_at(root: int, parts: Sequence[str]) -> str | None:
    """The target of the link at *parts* below *root*, whose parents are not links; None for another kind of entry."""
    try:
        return os.readlink("/".join(parts), dir_fd=root)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT, errno.ENOTDIR):
            return None
        raise


def link_in_layers(layers: Sequence[str]) -> Callable[[Sequence[str]], str | None]:
    """As `link_at`, in stacked layers, as overlay shows them.

    *layers* are their directories, topmost first. The returned function reads each directory once. It raises HoldfastError(image_invalid)
    for a name that no file can have.
    """

    @functools.cache
    def look(path: tuple[str, ...]) -> tuple[list[str], str | None]:
        """The directories that overlay merges at *path*, or the target of the link that is there."""
        found: list[str] = []
        for folder in look(path[:-1])[0] if len(path) > 1 else layers:
            place = f"{folder}/{path[-1]}"
            try:
                mode = os.lstat(place).st_mode
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:
                    raise
                raise HoldfastError("image_invalid", f"this image cannot be imported: a path that is too long: {place[-200:]!r}") from error
            if not stat.S_ISDIR(mode):  # a parent directory hides it
                return found, os.readlink(place) if stat.S_ISLNK(mode) and not found else None
            found.append(place)
            if _is_opaque(place):
                break
        return found, None

    return lambda parts: look(tuple(parts))[1]


def _is_opaque(directory: str) -> bool:
    """Whether a directory of a layer hides the same directory of lower layers."""
    try:
        return os.getxattr(directory, OPAQUE_XATTR) == b"y"
    except OSError:
        return False
