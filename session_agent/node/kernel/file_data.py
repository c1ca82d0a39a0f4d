"""Copying the content of one open file to another, with as little work as the file system permits.

Owns the choice between sharing the blocks (a reflink) and copying the data, and that holes stay holes. Blocks. Called by disks.py for the
file behind a disk, and by images/upper.py for the files of a layer and their digest.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator

_FICLONE = 0x40049409
_CHUNK = 1 << 20
_BLOCK = 1 << 16


def copy_data(source: int, target: int, size: int) -> int:
    """Copy *size* bytes to an empty file, as a reflink where the file system can; holes stay holes. Returns the bytes of data.

    Raises OSError, for example ENOSPC.
    """
    if size == 0:
        return 0
    try:
        share_blocks(source, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.EPERM):
            raise
    else:
        return os.fstat(target).st_blocks * 512
    os.ftruncate(target, size)
    data = end = 0
    while end < size:
        try:
            start = os.lseek(source, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break
            raise
        end = os.lseek(source, start, os.SEEK_HOLE)
        data += end - start
        _copy_range(source, target, start, end)
    return data


def data_blocks(source: int, size: int) -> Iterator[tuple[int, bytes]]:
    """The blocks of a file that are not all zeros, each with its place, whether the others are holes or not. Holes are not read."""
    done = 0
    while done < size:
        try:
            data = os.lseek(source, done, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        begin, hole = data - data % _BLOCK, os.lseek(source, data, os.SEEK_HOLE)
        done = min(size, -(-hole // _BLOCK) * _BLOCK)
        for place in range(begin, done, _BLOCK):
            block = os.pread(source, min(_BLOCK, size - place), place)
            if block.count(0) != len(block):
                yield place, block


def _copy_range(source: int, target: int, start: int, end: int) -> None:
    buffer = memoryview(bytearray(0))
    while start < end:
        try:
            count = 0 if buffer else os.copy_file_range(source, target, end - start, start, start)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            buffer = memoryview(bytearray(min(_CHUNK, end - start)))
        if buffer:
            read = os.preadv(source, [buffer[: end - start]], start)
            count = os.pwrite(target, buffer[:read], start)
        if count == 0:
            return
        start += count


def share_blocks(source: int, target: int) -> None:
    """Make *target* a reflink of *source*. Raises OSError where the file system cannot."""
    fcntl.ioctl(target, _FICLONE, source)
