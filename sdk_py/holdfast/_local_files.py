"""The local side of file transfers: checks of local paths, new files, and the checksum of the transferred bytes.

Pure but for the local file system. Does not own archives (``_archives``) nor the transfers themselves (``_async.files``).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

from holdfast_wire.errors import ProtocolError

from holdfast._errors import ChecksumError, InvalidPathError
from holdfast._results import take

LocalPath = str | os.PathLike[str]
Found = TypeVar("Found")


class Transferred:
    """What has passed through: bytes and their SHA-256."""

    def __init__(self) -> None:
        self.size = 0
        self._digest = hashlib.sha256()

    def note(self, data: bytes) -> None:
        self.size += len(data)
        self._digest.update(data)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def check(self, result: dict[str, Any]) -> None:
        """Raise ``ChecksumError`` unless the agent's account is the same."""
        if take(result, "size", int, default=self.size) != self.size or take(result, "sha256", str, default=self.sha256) != self.sha256:
            raise ChecksumError("checksum_mismatch", f"{self.size} bytes were transferred, and their checksum differs there")


def local_path(path: LocalPath) -> Path:
    """A path on this machine. An empty one, most often a variable that was not set, would be the working directory."""
    if not os.fspath(path):
        raise InvalidPathError("invalid_path", "the local path is empty", hint="write . for the working directory")
    return Path(path)


def is_special(path: Path) -> bool:
    """Whether it is there, and no file that another could take the place of."""
    return path.exists() and not path.is_file()


def create_part(part: Path, target: Path, mode: int) -> IO[bytes]:
    """A new file to write to, with the permission bits that the umask leaves."""
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        return open(part, "wb", opener=lambda path, flags: os.open(path, flags, mode))
    except OSError as why:
        raise OSError(why.errno, why.strerror, str(target)) from None


def read_each(unpacker: Any, data: bytes, read: Callable[[Any], Found], what: str) -> Iterator[Found]:
    """What is whole in the stream that ``data`` continues. Raises ``ProtocolError``."""
    try:
        unpacker.feed(data)
        for body in unpacker:
            yield read(body)
    except ProtocolError:
        raise
    except Exception as wrong:  # noqa: BLE001  msgpack raises a dozen kinds
        raise ProtocolError(f"the agent answered a malformed {what}: {type(wrong).__name__}") from None
