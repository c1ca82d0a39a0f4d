"""The memory files through which a shell reads the text of runs and writes its state.

Owns which file is used next, what each holds, and whether the newest dump of the state is complete. A run's text is written to the file
that does not hold the newest dump, so a complete dump always exists. ``driver`` has the texts. Called by ``process``.
"""

from __future__ import annotations

import functools
import os
from typing import Protocol

from . import bash, posix
from .elision import leaves_state
from .saved import SavedState
from .sections import Section

_UNKNOWN_BYTES = 1 << 60
_COMMON_BYTES = 8 * 1024
"""Larger than the state of most shells: these are read with one system call."""
_SEARCHED_BYTES = 1024 * 1024
"""A dump of at least this size is taken for one that may skip commands."""
_PLAIN_BYTES = 64 * 1024
"""A dump of at least this size is never considered plain."""


class Printing(Protocol):
    """What is known about how a shell prints its state, of ``driver.Dialect``."""

    kind: str
    token: bytes

    def is_plain(self, dump: bytes) -> bool: ...


class StateFiles:
    """The memory files of one shell process."""

    __slots__ = ("_dumps", "_filled", "_plain", "_run", "command", "descriptors", "slot")

    def __init__(self, *, command: bool = False) -> None:
        """``command``: with a third file, for a command that is not part of the text of its run."""
        opened: list[int] = []
        try:
            opened.extend(os.memfd_create("holdfast", os.MFD_CLOEXEC) for _ in range(2 + command))
        except OSError:
            for file in opened:
                os.close(file)
            raise
        self.descriptors = (opened[0], opened[1])
        self.command = opened[2] if command else -1
        """The third file, or -1."""
        self._run = opened[0]
        """The file whose reading shows that the last run has begun."""
        self.slot = 0
        """The file of the last run; the dump that follows the run is written to it too."""
        self._dumps = ((0, 0), (0, 0))
        """Number and file of the newest dump and of the one before."""
        self._filled = [0, 0]
        """Upper bound of the bytes in each file."""
        self._plain = False
        """Whether the newest dump is known to be plain; checked once per dump."""

    @property
    def newest(self) -> int:
        """The number of the newest dump."""
        return self._dumps[0][0]

    def fill(self, text: bytes, command: bytes | None = None) -> int:
        """Write ``text`` to the file without the newest dump; returns its index. ``command``: what it sources from the third file."""
        self.slot = slot = 1 - self._dumps[0][1]
        file = self.descriptors[slot]
        if self._filled[slot] > len(text):
            os.ftruncate(file, 0)
        self._filled[slot] = len(text)
        at = os.pwrite(file, text, 0)
        while at < len(text):
            at += os.pwrite(file, text[at:], at)
        self._run = file
        if command is not None:
            self._run = self.command
            os.ftruncate(self._run, 0)
            command, at = command or b"\n", 0  # of an empty file nothing is read
            while at < len(command):
                at += os.pwrite(self._run, command[at:] if at else command, at)
        os.utime(self._run, (0, 0))  # for ``is_read``
        return slot

    @property
    def is_read(self) -> bool:
        """Whether a process has begun to read the run that was written last. True where the kernel keeps no times of access."""
        return os.fstat(self._run).st_atime_ns != 0 or not _has_times_of_access()

    def expect_dump(self, number: int) -> int:
        """The shell is about to write dump ``number`` to the file of the last run; returns the file's index."""
        newest = (number, self.slot)
        if newest != self._dumps[0]:
            # the older dump to keep is the one that is not overwritten
            self._dumps = (newest, self._dumps[self.slot == self._dumps[0][1]])
        self._plain = False
        self._filled[self.slot] = _UNKNOWN_BYTES
        return self.slot

    def is_written(self, token: bytes) -> bool:
        """Whether the newest dump is complete."""
        if self._plain:
            return True
        number, slot = self._dumps[0]
        file = self.descriptors[slot]
        mark = b"\n#%s end %d\n" % (token, number)
        dump = os.pread(file, _COMMON_BYTES, 0)
        if len(dump) == _COMMON_BYTES:
            dump = os.pread(file, len(mark), max(0, os.fstat(file).st_size - len(mark)))
        return dump.endswith(mark)

    def state(self, dialect: Printing) -> SavedState | None:
        """The newest complete state, None if there is none."""
        sections = [Section(descriptor, 0, os.fstat(descriptor).st_size) for descriptor in self.descriptors]
        dump = _exit_dump(sections[0], dialect.token)
        for number, slot in self._dumps:
            if dump is None:
                end = sections[slot].find(sections[slot].mark(dialect.token, b"end %d" % number))
                dump = sections[slot].part(0, end) if end >= 0 else None
        if dump is None:
            return None
        return bash.read(dump, dialect.token) if dialect.kind == "bash" else posix.read(dump, dialect.token)

    def remain_valid_after(self, script: bytes, dialect: Printing) -> bool:
        """Whether the newest dump, which must be complete, will also describe the state after ``script``."""
        if not leaves_state(script):
            return False
        if not self._plain:
            number, slot = self._dumps[0]
            dump = os.pread(self.descriptors[slot], _PLAIN_BYTES, 0)
            end = dump.find(Section.mark(dialect.token, b"end %d" % number))
            self._plain = end >= 0 and dialect.is_plain(dump[:end])
        return self._plain

    def may_skip_commands(self) -> bool:
        """Whether something in the newest dump of a bash, which must be complete, may keep it from a command that it should execute."""
        dump = os.pread(self.descriptors[self._dumps[0][1]], _SEARCHED_BYTES, 0)
        return len(dump) == _SEARCHED_BYTES or bash.may_skip_commands(dump)

    def close(self) -> None:
        """Close all."""
        for descriptor in (*self.descriptors, self.command):
            if descriptor >= 0:
                os.close(descriptor)


@functools.cache
def _has_times_of_access() -> bool:
    file = os.memfd_create("holdfast", os.MFD_CLOEXEC)
    try:
        os.write(file, b"x")
        os.utime(file, ns=(0, 0))
        os.pread(file, 1, 0)
        return os.fstat(file).st_atime_ns != 0
    finally:
        os.close(file)


def _exit_dump(file: Section, token: bytes) -> Section | None:
    """What an ending shell wrote by its exit trap, None if that is missing or incomplete."""
    begin_mark = file.mark(token, b"exit-begin")
    end = file.find(file.mark(token, b"exit-end"), last=True)
    begin = file.part(0, end).find(begin_mark, last=True) if end >= 0 else -1
    return file.part(begin + len(begin_mark), end) if begin >= 0 else None
