"""Copying the content of a file with its holes, and its extended attributes.

Owns the choice between ``copy_file_range`` and reading and writing. Called by ``copy``.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

_PIECE_BYTES = 1024 * 1024
_NO_RANGES = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF, errno.EIO)
"""Errors of ``copy_file_range`` on file systems that do not support it: then the bytes are read and written."""
_NO_ATTRIBUTES = (errno.ENOTSUP, errno.EPERM, errno.EACCES, errno.ENODATA, errno.EINVAL, errno.ERANGE, errno.E2BIG, errno.ENOSPC)


def copy_contents(source: int, target: int, size_bytes: int) -> Iterator[int]:
    """Copy the content of a file with its holes; yields the sizes of the copied pieces."""
    at = 0
    while at < size_bytes:
        start, end = _data(source, at, size_bytes)
        at = start
        while at < end:
            copied = _copy_piece(source, target, min(_PIECE_BYTES, end - at), at)
            if not copied:
                size_bytes = end = at  # it is shorter by now
                break
            at += copied
            yield copied
        at = max(at, end)
    if size_bytes:
        with contextlib.suppress(OSError):  # a device has no size
            os.ftruncate(target, size_bytes)
        return
    os.lseek(source, 0, os.SEEK_SET)
    while data := os.read(source, _PIECE_BYTES):  # files of /proc report size 0
        at += _put(target, data, at)
        yield len(data)


def _data(source: int, at: int, size_bytes: int) -> tuple[int, int]:
    """Start and end of the next data of a file from ``at`` on."""
    try:
        start = os.lseek(source, at, os.SEEK_DATA)
        return start, min(os.lseek(source, start, os.SEEK_HOLE), size_bytes)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a hole to the end
            return size_bytes, size_bytes
        return at, size_bytes


def _copy_piece(source: int, target: int, size_bytes: int, at: int) -> int:
    try:
        return os.copy_file_range(source, target, size_bytes, at, at)
    except OSError as error:
        if error.errno not in _NO_RANGES:
            raise
    return _put(target, os.pread(source, size_bytes, at), at)


def _put(target: int, data: bytes, at: int) -> int:
    view = memoryview(data)
    while view:
        try:
            written = os.pwrite(target, view, at)
        except OSError as error:
            if error.errno != errno.ESPIPE:
                raise
            written = os.write(target, view)
        view, at = view[written:], at + written
    return len(data)


def copy_attributes(source: int, target: int) -> None:
    """Copy the extended attributes that the file system and the copying user are allowed to set."""
    try:
        names = os.listxattr(source)
    except OSError:
        return
    for name in names:
        try:
            os.setxattr(target, name, os.getxattr(source, name))
        except OSError as error:
            if error.errno not in _NO_ATTRIBUTES:
                raise
