"""What a client that attaches to a terminal is shown of its past, so that its screen becomes what the screen was.

Pure. Owns where a cut piece of terminal output may begin, the reset before it, and which sequences are never replayed: questions to the
terminal, whose answers would be typed into the program a second time. Called by ``terminal`` (infra/decisions/0008).
"""

from __future__ import annotations

import re

SEARCH_BYTES = 1024
"""How far into a cut piece a clean beginning is looked for."""
RESET = b"\x1bc"
"""Full reset: modes, colours, margins and the other screen belong to what is no longer there."""

_BOUNDARY = re.compile(rb"\n|(?=\x1b)")
_CONTINUATION = re.compile(rb"[\x80-\xbf]{0,3}")
_QUESTION = re.compile(
    rb"""
    \x1b\[ [>=]? [0-9;]* c              # what are you (device attributes)
    | \x1b\[ \?? [56] n                 # are you well, where is the cursor
    | \x1b\[ > 0? q                    # name and version
    | \x1b\[ \?? [0-9;]* \$p            # is this mode set
    | \x1b\[ \? u                       # which keyboard protocol
    | \x1b\[ 1[4-9] t | \x1b\[ 2[01] t  # sizes and titles
    | \x1b\] [0-9;]* ;\? (?:\x07|\x1b\\)  # which colour
    | \x1bP [+$] q [^\x1b]{0,256} \x1b\\  # terminfo, settings
    | \x1bZ | \x05
    """,
    re.VERBOSE,
)


def replay(tail: bytes, *, cut: bool) -> bytes:
    """``tail`` of a terminal's output as a new client should get it; ``cut``: something came before it that is gone."""
    if cut:
        tail = RESET + tail[clean_start(tail) :]
    return _QUESTION.sub(b"", tail)


def clean_start(tail: bytes) -> int:
    """Where in a cut piece no escape sequence and no character is cut: after a line's end, or at the start of a sequence."""
    found = _BOUNDARY.search(tail, 0, SEARCH_BYTES)
    if found is not None:
        return found.end()
    continuation = _CONTINUATION.match(tail)
    return continuation.end() if continuation is not None else 0
