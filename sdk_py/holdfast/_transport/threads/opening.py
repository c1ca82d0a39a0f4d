"""``aio.opening``'s name for the blocking API, where a call gives what it makes."""

from __future__ import annotations

from typing import TypeVar

F = TypeVar("F")


def opening(function: F) -> F:
    """The function itself."""
    return function
