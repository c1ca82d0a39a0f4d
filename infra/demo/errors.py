"""What can go wrong with the demo itself, as opposed to the service. Printed by `__main__`, exit status 2."""

from __future__ import annotations


class DemoError(Exception):
    """The demo cannot continue; `hint` is the remedy."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint
