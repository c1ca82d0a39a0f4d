"""File names as text.

Inside a program a path is a ``str`` with surrogate escapes, which ``os`` functions convert back to the same bytes.
"""

from __future__ import annotations

import os


def wire(path: str) -> str:
    """``path`` as text for the wire, with U+FFFD for bytes that are not UTF-8."""
    return os.fsencode(path).decode("utf-8", "replace")


def shown(path: str) -> str:
    """``path`` for a message: encodable as UTF-8 and without control characters."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)  # not by a codec: a forked agent cannot import its module
