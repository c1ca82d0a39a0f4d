"""How control lines reach a living shell: through descriptors that nothing but its own reading loop uses.

A POSIX shell sources a pipe. Bash would read a sourced pipe to its end first, so it sources one file for each write: the agent puts the
lines into one of a few memory files and the number of that file into a pipe, from which bash takes one number at a time. What was taken
out of the pipe has reached the shell, and the shell executes all of it in order. Called by ``process``; ``driver`` has the texts.
"""

from __future__ import annotations

import os

from session_agent.agent.output.pipes import waiting_bytes

_DIGITS = tuple(b"%d" % digit for digit in range(10))
RING_FILES = 4
"""How many writes bash may leave unread, and one more that it may just read."""


class LineControl:
    """The control pipe of a POSIX shell."""

    __slots__ = ("pipe",)

    def __init__(self, pipe: int) -> None:
        """``pipe``: its write end, non-blocking."""
        self.pipe = pipe

    @property
    def is_unread(self) -> bool:
        """Whether the shell has not taken all that was written."""
        return waiting_bytes(self.pipe) > 0

    def write(self, lines: bytes) -> None:
        """Raises ``BlockingIOError`` if too much is unread, ``BrokenPipeError`` if the shell has ended."""
        os.write(self.pipe, lines)

    def withdraw(self) -> None:
        """Empty what was written last, if the shell has not taken it. A pipe cannot do that."""

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self.pipe)


class FileControl(LineControl):
    """The control pipe of bash, and the memory files to which the numbers in it refer."""

    __slots__ = ("_last", "_next", "files", "first")

    def __init__(self, pipe: int, files: tuple[int, ...], first: int) -> None:
        """``first``: the last digit of the first file's number in the shell; the others follow."""
        super().__init__(pipe)
        self.files = files
        self.first = first
        self._next = 0
        self._last = files[0]

    def write_digit(self, number: int, file: int) -> None:
        """Let the loop source ``file``, which has this ``number`` in the shell and is none of ``files``. It must not change meanwhile."""
        self._last = file
        os.write(self.pipe, _DIGITS[number % 10])

    def write(self, lines: bytes) -> None:
        if waiting_bytes(self.pipe) > len(self.files) - 2:
            raise BlockingIOError
        at = self._next
        self._next = (at + 1) % len(self.files)
        self._last = self.files[at]
        _put(self._last, lines)
        os.write(self.pipe, b"%d" % (self.first + at))

    def withdraw(self) -> None:
        if self.is_unread:
            os.ftruncate(self._last, 0)

    def close(self) -> None:
        super().close()
        for file in self.files:
            os.close(file)


def text_file(text: bytes) -> int:
    """A memory file that holds ``text``. Raises ``OSError``."""
    file = os.memfd_create("holdfast", os.MFD_CLOEXEC)
    _put(file, text)
    return file


def _put(file: int, text: bytes) -> None:
    os.ftruncate(file, len(text))
    at = 0
    while at < len(text):
        at += os.pwrite(file, text[at:] if at else text, at)
