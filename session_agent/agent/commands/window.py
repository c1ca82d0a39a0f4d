"""Creating pseudo-terminals, writing keys to them, their sizes, and reading a size from untrusted parameters.

Used by terminals and by shells with a terminal.
"""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from collections.abc import Callable
from typing import Any

from holdfast_wire.errors import HoldfastError

from session_agent.agent.output.pipes import PipeWriter
from session_agent.agent.request import params as read

TERM = "xterm-256color"
"""The value of the environment variable TERM."""
MOST_CELLS = 4096
MOST_BUFFERED_BYTES = 256 * 1024
"""More than the kernel buffers of a terminal's output."""
_END_OF_INPUT = b"\x04"
_IUTF8 = 0o40000


class Keyboard(PipeWriter):
    """Writes keys to a pseudo-terminal."""

    def feed(self, data: bytes, eof: bool, consumed: Callable[[int], None]) -> None:
        """Queue keys; the end of input is sent as Ctrl-D."""
        super().feed(data, False, consumed)
        if eof:
            super().feed(_END_OF_INPUT, False, _ignore)


def _ignore(size_bytes: int) -> None:
    """Ctrl-D is not the client's: it gives no credit back."""


def open_pty(rows: int, columns: int) -> tuple[int, int]:
    """Both ends of a new pseudo-terminal, on which backspace erases whole UTF-8 characters. Raises ``spawn_failed``."""
    try:
        master, slave = os.openpty()
    except OSError as error:
        hint = "the sandbox needs /dev/ptmx and /dev/pts"
        raise HoldfastError("spawn_failed", f"no pseudo-terminal is available: {error.strerror}", hint=hint) from None
    set_size(master, rows, columns)
    modes = termios.tcgetattr(slave)
    modes[0] |= _IUTF8
    termios.tcsetattr(slave, termios.TCSANOW, modes)
    return master, slave


def set_size(master: int, rows: int, columns: int) -> None:
    """Set the size of a pseudo-terminal; the kernel sends SIGWINCH to its foreground processes."""
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def window_size(params: dict[str, Any]) -> tuple[int, int]:
    """``rows`` and ``cols``, by default 24 and 80. Raises ``invalid_argument``."""
    rows = read.integer(params, "rows", 24, least=1, most=MOST_CELLS)
    columns = read.integer(params, "cols", 80, least=1, most=MOST_CELLS)
    return rows, columns
