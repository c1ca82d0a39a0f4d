"""Ctrl-C and steps of a session: a signal's exception is raised before or after a step, never inside it.

Owns the handler that is in place while the main thread runs a step, a few microseconds. Only Python's own SIGINT handler is replaced; a
handler of the program that raises may call ``raise_between_steps``. Waits run without it and are interrupted at once.
"""

from __future__ import annotations

import os
import signal
import threading
from _signal import getsignal  # type: ignore[import-not-found]  # without the enums, whose making takes 15 us a step
from _signal import signal as set_handler
from types import FrameType

_running: Uninterrupted | None = None


class Uninterrupted:
    """Held during a step: Ctrl-C is raised at the end of the step."""

    __slots__ = ("_in_main", "_outer", "_pid", "_postponed", "_replaced")

    def __init__(self) -> None:
        self._in_main = False
        self._outer: Uninterrupted | None = None
        self._replaced = False
        self._pid = 0
        self._postponed: KeyboardInterrupt | None = None

    def __enter__(self) -> None:
        global _running
        if threading.get_ident() == threading.main_thread().ident:
            if getsignal(signal.SIGINT) is signal.default_int_handler:
                self._pid = os.getpid()
                set_handler(signal.SIGINT, self._on_signal)
                self._replaced = True
            self._in_main = True
            self._outer, _running = _running, self

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if _running is not self or os.getpid() != self._pid:  # another handler raised before its removal, or a fork inherited it
            set_handler(signal.SIGINT, signal.default_int_handler)
            signal.default_int_handler(number, frame)
        self._postponed = KeyboardInterrupt()

    def __exit__(self, *_: object) -> None:
        global _running
        if self._in_main:
            _running = self._outer
            if self._replaced:
                set_handler(signal.SIGINT, signal.default_int_handler)
            if self._postponed is not None:
                raise self._postponed


def raise_between_steps(failure: KeyboardInterrupt) -> None:
    """For signal handlers: raise ``failure`` here, or at the end of the step that the signal interrupted."""
    if _running is None:
        raise failure
    _running._postponed = failure
