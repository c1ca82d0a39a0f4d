"""The scrollback that a client gets when it attaches to a terminal, so that its screen looks as before.

Pure functions. Owns where truncated terminal output may begin, the reset before it, and the sequences that are removed: queries to the
terminal, because their answers would be sent to the program again. Called by ``terminal``. See infra/decisions/0008.
"""

from __future__ import annotations

import re

SEARCH_BYTES = 1024
"""How many bytes of truncated output are searched for a safe position to begin."""
RESET = b"\x1bc"
"""Full reset of modes, colours, margins and the alternate screen, which the missing output had set."""

_BOUNDARY = re.compile(rb"\n|(?=\x1b)")
_CONTINUATION = re.compile(rb"[\x80-\xbf]{0,3}")
_QUERY = re.compile(
    rb"""
    \x1b\[ [>=]? [0-9;]* c              # device attributes
    | \x1b\[ \?? [56] n                 # device status, cursor position
    | \x1b\[ > 0? q                    # name and version
    | \x1b\[ \?? [0-9;]* \$p            # state of a mode
    | \x1b\[ \? u                       # keyboard protocol
    | \x1b\[ 1[4-9] t | \x1b\[ 2[01] t  # sizes and titles
    | \x1b\] [0-9;]* ;\? (?:\x07|\x1b\\)  # colour
    | \x1bP [+$] q [^\x1b]{0,256} \x1b\\  # terminfo, settings
    | \x1bZ | \x05
    """,
    re.VERBOSE,
)


def replay(tail: bytes, *, cut: bool) -> bytes:
    """``tail`` of a terminal's output as a new client should get it; ``cut``: output before it is missing."""
    if cut:
        tail = RESET + tail[clean_start(tail) :]
    return _QUERY.sub(b"", tail)


def clean_start(tail: bytes) -> int:
    """The first offset in truncated output that splits no escape sequence and no character: after a line end or before a sequence."""
    found = _BOUNDARY.search(tail, 0, SEARCH_BYTES)
    if found is not None:
        return found.end()
    continuation = _CONTINUATION.match(tail)
    return continuation.end() if continuation is not None else 0
