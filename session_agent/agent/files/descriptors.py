"""Helpers of file operations: open a descriptor for a block, write all bytes to it, name a temporary file.

Called by the other modules of this folder.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
"""How to open a new file, for writing."""


@contextlib.contextmanager
def opened(path: str, flags: int, mode: int = 0o600, *, directory: int | None = None) -> Iterator[int]:
    """A descriptor that is closed at the end. Raises ``OSError``."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, mode, dir_fd=directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of ``data``, with several calls if the kernel accepts it in parts."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def temporary_name() -> str:
    """A new name for a file beside the one that it will replace."""
    return f".holdfast-{os.urandom(8).hex()}"
