"""Dividing what a shell printed about itself into entries: one variable, alias, trap or option each.

Owns the quoting rules of ``declare -p``, ``set``, ``alias`` and ``trap``, which are those of a shell's own input, and the limits on sizes.
It reads blocks, so that a state of any size takes little memory. It executes nothing. Used by ``bash`` and ``posix``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

ENTRY_BYTES = 4 * 1024 * 1024
"""Largest entry that is restored."""
TOTAL_BYTES = 16 * 1024 * 1024
"""Largest sum of the sizes of all entries."""
_NAME_BYTES = 300
"""What is kept of the beginning of an entry that is too large."""

_PLAIN = re.compile(rb"[\"'\\\n]")
_ENDS = {ord('"'): re.compile(rb"[\"\\]"), ord("'"): re.compile(rb"'"), ord("$"): re.compile(rb"['\\]")}
"""What ends a quoted part or escapes a character in it, by the character that began it; ``$`` for ``$'…'``."""


class Splitter:
    """Divides text into entries: an entry ends at a newline that is not quoted."""

    def __init__(self, known: re.Pattern[bytes]) -> None:
        """``known`` matches the beginning of an entry. A line that begins otherwise (printed by a trap) is passed over, quotes and all."""
        self._known = known
        self._rest = b""
        self._entry = bytearray()
        self._quote = 0
        self._cut = False
        self._total = 0

    def divide(self, blocks: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
        """Each entry without its newline, and whether it is complete: of one that is too large only the beginning is returned."""
        for block in blocks:
            yield from self._feed(self._rest + block, last=False)
        yield from self._feed(self._rest + b"\n", last=True)

    def _feed(self, data: bytes, *, last: bool) -> Iterator[tuple[bytes, bool]]:
        at = 0
        while at < len(data):
            if not self._entry and not self._quote:
                line_end = data.find(b"\n", at)
                if line_end < 0 and not last and len(data) - at < _NAME_BYTES:
                    break  # more is needed to see what it is
                if self._known.match(data, at) is None:
                    if line_end < 0:
                        data, at = b"?", 0  # the rest of this line is in the next block
                        break
                    at = line_end + 1
                    continue
            found = (_ENDS[self._quote] if self._quote else _PLAIN).search(data, at)
            if found is None:
                # a ``$`` may belong to the quote that the next block begins with
                end = len(data) - (data.endswith(b"$") and not self._quote)
                self._take(data[at:end])
                at = end
                break
            end, byte = found.end(), found[0]
            if byte == b"\\":
                if end == len(data) and not last:
                    self._take(data[at : end - 1])
                    at = end - 1
                    break
                end += 1
            elif self._quote:
                self._quote = 0
            elif byte != b"\n":
                self._quote = ord("$") if byte == b"'" and data[end - 2 : end - 1] == b"$" and end - 2 >= at else byte[0]
            elif byte == b"\n":
                self._take(data[at : end - 1])
                yield bytes(self._entry), not self._cut
                self._entry.clear()
                self._cut, at = False, end
                continue
            self._take(data[at:end])
            at = end
        self._rest = data[at:]

    def _take(self, data: bytes) -> None:
        if self._cut:
            return
        self._total += len(data)
        self._entry += data
        if len(self._entry) > ENTRY_BYTES or self._total > TOTAL_BYTES:
            self._total -= len(self._entry)
            self._cut = True
            del self._entry[_NAME_BYTES:]
