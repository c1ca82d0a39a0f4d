"""An event loop whose clock advances only when no task can run: sleeping costs nothing and time limits are exact."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    """Does not wait: the time that the loop would have slept is added to its clock."""

    skipped_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        events = super().select(0)
        if not events and timeout is not None and timeout > 0:
            self.skipped_s += timeout
        if not events and timeout is None:
            raise RuntimeError("nothing is left that could ever happen")
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._skipping = _Selector()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.skipped_s


def run_virtual(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in virtual time, which starts at 0."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(coroutine)


def now() -> float:
    return asyncio.get_running_loop().time()
