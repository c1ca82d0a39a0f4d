"""Parts of a memory file, read in blocks: what a shell printed may be larger than the agent's memory.

Used by ``files``, which finds the newest complete state, and by ``bash`` and ``posix``, which read it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

BLOCK_BYTES = 1024 * 1024


class Section:
    """The bytes from ``begin`` to ``end`` of an open file. Offsets are relative to ``begin``."""

    __slots__ = ("_begin", "_descriptor", "_end")

    def __init__(self, descriptor: int, begin: int, end: int) -> None:
        self._descriptor = descriptor
        self._begin = begin
        self._end = end

    def __len__(self) -> int:
        return self._end - self._begin

    def part(self, begin: int, end: int) -> Section:
        """A part of this section."""
        return Section(self._descriptor, self._begin + begin, self._begin + end)

    def read(self) -> bytes:
        """All of it."""
        return b"".join(self.blocks())

    def blocks(self) -> Iterator[bytes]:
        """All of it, one block after the other. Ends early if the file has become shorter."""
        at = self._begin
        while at < self._end:
            block = os.pread(self._descriptor, min(BLOCK_BYTES, self._end - at), at)
            if not block:
                return
            at += len(block)
            yield block

    def find(self, wanted: bytes, *, last: bool = False) -> int:
        """The offset of the first ``wanted``, or of the last one; -1 if there is none."""
        result, before, at = -1, b"", 0
        for block in self.blocks():
            data = before + block
            found = data.rfind(wanted) if last else data.find(wanted)
            if found >= 0:
                result = at - len(before) + found
                if not last:
                    return result
            at += len(block)
            before = data[-(len(wanted) - 1) :]
        return result

    @staticmethod
    def mark(token: bytes, what: bytes) -> bytes:
        """The line that divides two parts of what a shell printed, and the newline before it."""
        return b"\n#%s %s\n" % (token, what)
