"""The local side of file transfers: checks of local paths, new files, and the checksum of the transferred bytes.

Pure, except for the local file system. Does not own archives (``_archives``) nor the transfers themselves (``_async.files``).
"""

from __future__ import annotations

import os
from binascii import crc32
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

from holdfast_wire.errors import ProtocolError

from holdfast._errors import ChecksumError, InvalidPathError
from holdfast._results import take

UNSIZED_BYTES = 1 << 30
"""Most bytes of a file that reports no size."""
LocalPath = str | os.PathLike[str]
Found = TypeVar("Found")


class Transferred:
    """The bytes of one file that were sent or received: their number and checksum."""

    def __init__(self) -> None:
        self.size = 0
        self.crc32 = 0
        """The CRC-32 of ISO 3309, as in zip and gzip. A SHA-256 would take as much time as the rest of the transfer (decision 0069)."""
        self.sha256: str | None = None
        """The agent's SHA-256 of the same bytes, after ``check``."""

    def note(self, data: bytes) -> None:
        self.size += len(data)
        self.crc32 = crc32(data, self.crc32)

    def check(self, result: dict[str, Any]) -> None:
        """Raise ``ChecksumError`` unless the agent reported the same size and checksum."""
        if take(result, "size", int, default=self.size) != self.size or take(result, "crc32", int, default=self.crc32) != self.crc32:
            raise ChecksumError(
                "checksum_mismatch", f"the checksum of the {self.size} transferred bytes differs in the sandbox", fault="workload"
            )
        self.sha256 = take(result, "sha256", str)


def local_path(path: LocalPath) -> Path:
    """A path on this machine. An empty one is refused: it is usually an unset variable, and would mean the working directory."""
    if not os.fspath(path):
        raise InvalidPathError("invalid_path", "the local path is empty", hint="write . for the working directory")
    if "\0" in os.fsdecode(path):
        raise InvalidPathError("invalid_path", "the local path has a NUL character", hint="give another path")
    return Path(path)


def is_special(path: Path) -> bool:
    """Whether the path exists and is not a regular file, so that a download cannot replace it."""
    return path.exists() and not path.is_file()


def create_part(part: Path, target: Path, mode: int) -> IO[bytes]:
    """A new file to write to, with the permission bits that the umask leaves."""
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        return open(part, "wb", opener=lambda path, flags: os.open(path, flags, mode))
    except OSError as why:
        raise OSError(why.errno, why.strerror, str(target)) from None


def read_each(unpacker: Any, data: bytes, read: Callable[[Any], Found], what: str) -> Iterator[Found]:
    """The complete values in the stream after ``data`` was added to it. Raises ``ProtocolError``."""
    try:
        unpacker.feed(data)
        for body in unpacker:
            yield read(body)
    except ProtocolError:
        raise
    except Exception as wrong:  # noqa: BLE001  msgpack raises a dozen kinds
        raise ProtocolError(f"the agent sent a malformed {what}: {type(wrong).__name__}") from None


def announced(info: dict[str, Any], offset: int, length: int | None) -> int:
    """The most bytes of a read whose ``Opened`` has ``info``: a file without a size, as in /proc, may have ``UNSIZED_BYTES``."""
    size = take(info, "size", int, default=0)
    most = max(size - offset, 0) if size > 0 else UNSIZED_BYTES
    return most if length is None else length if size <= 0 else min(length, most)
