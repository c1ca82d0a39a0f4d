"""What can be wrong before the stack starts: each with the thing to do about it.

Owns the one exception of the runner. `__main__` prints it and exits with status 2.
"""

from __future__ import annotations


class UpError(Exception):
    """Starting is not possible; `hint` is what to do about it."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint
