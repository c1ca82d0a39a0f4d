"""The blocking counterpart of ``aio.opening``: a call returns the created object itself."""

from __future__ import annotations

from typing import TypeVar

F = TypeVar("F")


def opening(function: F) -> F:
    """Return the function unchanged."""
    return function
