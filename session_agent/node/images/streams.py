"""Byte streams of images: counted, hashed and decompressed as they are read.

Owns `Hashed` (what went through, and its digest) and `decompressed` (gzip, xz, zstd by their first bytes). Bounds on
how much may come out are the caller's Budget, asked at every read.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import lzma
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
"""How a frame of other data begins, which may stand before the first compressed one (RFC 8878, 3.1.2)."""


class Hashed(io.RawIOBase):
    """Reads *source*, counting and hashing; with a budget, the ratio to *packed* is watched."""

    def __init__(self, source: IO[bytes], budget: Budget | None = None, packed: Hashed | None = None) -> None:
        self._source = source
        self._budget = budget
        self._packed = packed
        self._hash = hashlib.sha256()
        self.count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._source.read(min(len(buffer), _CHUNK))
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            raise invalid(f"damaged compression: {error}") from error
        self._hash.update(data)
        self.count += len(data)
        if self._budget and self._packed:
            self._budget.unpacked(self.count, self._packed.count)
        buffer[: len(data)] = data
        return len(data)

    def drain(self) -> str:
        """Read to the end; the digest of all of it."""
        while self.read(_CHUNK):
            pass
        return f"sha256:{self._hash.hexdigest()}"


@contextlib.contextmanager
def decompressed(packed: Hashed, budget: Budget) -> Iterator[Hashed]:
    """What *packed* holds, whichever way it is compressed."""
    buffered = io.BufferedReader(packed, _CHUNK)
    magic = buffered.peek(6)[:6]
    if magic.startswith(b"\x1f\x8b"):
        with gzip.GzipFile(fileobj=buffered) as file:
            yield Hashed(cast("IO[bytes]", file), budget, packed)
    elif magic == b"\xfd7zXZ\x00":
        with lzma.LZMAFile(buffered) as file:
            yield Hashed(file, budget, packed)
    elif magic.startswith(b"\x28\xb5\x2f\xfd") or _ZSTD_SKIPPABLE.match(magic):
        with _zstd(buffered) as stream:
            yield Hashed(stream, budget, packed)
    elif magic.startswith(b"BZh"):
        raise invalid("bzip2 compression is not supported")
    else:
        yield Hashed(cast("IO[bytes]", buffered), budget, packed)


@contextlib.contextmanager
def _zstd(source: IO[bytes]) -> Iterator[IO[bytes]]:
    program = shutil.which("zstd")
    if program is None:
        raise HoldfastError("unsupported", "the image is compressed with zstd, which is not installed", hint="install zstd")
    with subprocess.Popen(
        [program, "-dc", "--memory=128MB"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        import threading

        assert process.stdin is not None
        assert process.stdout is not None
        feeder = threading.Thread(target=_feed, args=(source, process.stdin), daemon=True)
        feeder.start()
        try:
            yield process.stdout
            if process.stdout.read(1) == b"" and process.wait() != 0:
                raise invalid("damaged zstd compression")
        finally:
            process.kill()
            feeder.join()


def _feed(source: IO[bytes], sink: IO[bytes]) -> None:
    with contextlib.suppress(OSError, HoldfastError, ValueError):
        shutil.copyfileobj(source, sink, _CHUNK)
    with contextlib.suppress(OSError):
        sink.close()
