"""Tar files that a task's start state is made of, by the SHA-256 of their bytes, in a folder beside the tasks.

Owns the folder, and the making of archives: from a source distribution, whose members are checked, and from files. An archive is the same
bytes for the same content, so that a task names exactly what it was validated with.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath


class ArchiveError(Exception):
    """An archive is missing, does not match its digest, or contains entries that no project needs."""


class Archives:
    """A folder of archives. ``get`` checks the bytes once per process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._held: dict[str, bytes] = {}

    def add(self, data: bytes) -> str:
        """Keep an archive; returns its name."""
        digest = hashlib.sha256(data).hexdigest()
        path = self.folder / f"{digest}.tar"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(f".{os.getpid()}")
            part.write_bytes(data)
            part.replace(path)
        self._held[digest] = data
        return digest

    def get(self, digest: str) -> bytes:
        """The bytes of an archive. Raises ArchiveError."""
        if digest not in self._held:
            try:
                data = (self.folder / f"{digest}.tar").read_bytes()
            except OSError as error:
                raise ArchiveError(f"there is no archive {digest} in {self.folder}: make the tasks again, or copy it there") from error
            if hashlib.sha256(data).hexdigest() != digest:
                raise ArchiveError(f"{self.folder}/{digest}.tar does not match its SHA-256")
            self._held[digest] = data
        return self._held[digest]


def members(archive: Path, *, most_bytes: int = 200 * 1024 * 1024) -> Iterator[tuple[str, bytes, bool]]:
    """Path without the top folder, content and executable bit of every regular file of a source distribution. Raises ArchiveError for a
    path that leaves the archive, and for more than ``most_bytes``; links and special files are left out."""
    total = 0
    with tarfile.open(archive) as tar:
        for member in tar:
            parts = PurePosixPath(member.name).parts
            if not member.isfile() or len(parts) < 2:
                continue
            if ".." in parts or member.name.startswith("/"):
                raise ArchiveError(f"{archive.name} holds {member.name}")
            total += member.size
            if total > most_bytes:
                raise ArchiveError(f"{archive.name} holds more than {most_bytes} bytes")
            file = tar.extractfile(member)
            assert file is not None
            yield "/".join(parts[1:]), file.read(), bool(member.mode & 0o111)


def pack(files: Iterable[tuple[str, bytes, bool]], prefix: str) -> bytes:
    """A tar file with the files below ``prefix``: in the order of their names, without times and owners."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, data, executable in sorted(files):
            entry = tarfile.TarInfo(f"{prefix}/{path}")
            entry.size, entry.mode = len(data), 0o755 if executable else 0o644
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()
