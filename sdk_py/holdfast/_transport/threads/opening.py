"""The blocking counterpart of ``aio.opening``: a call returns the created object itself."""

from __future__ import annotations

from typing import TypeVar

from holdfast._public import public

F = TypeVar("F")


@public
class Present:
    """Base of an object that needs no creation."""

    __slots__ = ()


def opening(function: F) -> F:
    """Return the function unchanged."""
    return function
