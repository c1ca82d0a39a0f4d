"""Byte streams of images: decompressed, counted and hashed as they are read.

Owns `Hashed` (counts and hashes bytes) and `decompressed` (gzip, xz, zstd, recognised by their first bytes). The caller's Budget, which is
checked at every read, limits the size of the output.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import lzma
import os
import re
import shutil
import subprocess
import zlib
from collections.abc import Iterator
from typing import IO, Any, cast

from holdfast_wire.errors import HoldfastError

from session_agent.node.images.layers import Budget, invalid

_CHUNK = 1 << 18
_ZSTD_SKIPPABLE = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")
"""The first bytes of a skippable frame, which may precede the first compressed one (RFC 8878, 3.1.2)."""


class Hashed(io.RawIOBase):
    """Reads and hashes *source*, and checks the ratio of its size to the compressed size *packed_bytes*."""

    def __init__(self, source: IO[bytes], budget: Budget, packed_bytes: int) -> None:
        self._source = source
        self._budget = budget
        self._packed_bytes = packed_bytes
        self._hash = hashlib.sha256()
        self._count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._source.read(min(len(buffer), _CHUNK))
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            raise invalid(f"damaged compression: {error}") from error
        self._hash.update(data)
        self._count += len(data)
        self._budget.unpacked(self._count, self._packed_bytes)
        buffer[: len(data)] = data
        return len(data)

    def drain(self) -> str:
        """Read to the end; returns the digest of the whole stream."""
        while self.read(_CHUNK):
            pass
        return f"sha256:{self._hash.hexdigest()}"


@contextlib.contextmanager
def decompressed(file: io.BufferedReader, budget: Budget) -> Iterator[Hashed]:
    """The decompressed content of *file*, of which nothing has been read yet."""
    packed_bytes = os.fstat(file.fileno()).st_size
    magic = file.peek(6)[:6]
    with contextlib.ExitStack() as stack:
        source: IO[bytes] = file
        if magic.startswith(b"\x1f\x8b"):
            source = cast("IO[bytes]", stack.enter_context(gzip.GzipFile(fileobj=file)))
        elif magic == b"\xfd7zXZ\x00":
            source = stack.enter_context(lzma.LZMAFile(file))
        elif magic.startswith(b"\x28\xb5\x2f\xfd") or _ZSTD_SKIPPABLE.match(magic):
            source = stack.enter_context(_zstd(file))
        elif magic.startswith(b"BZh"):
            raise invalid("bzip2 compression is not supported")
        yield Hashed(source, budget, packed_bytes)


@contextlib.contextmanager
def _zstd(file: io.BufferedReader) -> Iterator[IO[bytes]]:
    program = shutil.which("zstd")
    if program is None:
        raise HoldfastError("unsupported", "the image is compressed with zstd, which is not installed", hint="install zstd")
    os.lseek(file.fileno(), 0, os.SEEK_SET)  # the program reads from the descriptor's position, not from Python's buffer
    with subprocess.Popen([program, "-dc", "--memory=128MB"], stdin=file, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            yield process.stdout
            if process.stdout.read(1) == b"" and process.wait() != 0:
                raise invalid("damaged zstd compression")
        finally:
            process.kill()
