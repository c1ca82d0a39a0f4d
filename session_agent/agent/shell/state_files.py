"""The two memory files that carry the text of runs to a shell, and its state back.

Owns which of them is next, what each holds, and whether the newest dump of the state is complete. A run's text is put where the newest
dump is not, so that there is always one to fall back on. What is written there is ``driver``'s; called by ``process``.
"""

from __future__ import annotations

import os

from .driver import Dialect, cut_farewell, cut_snapshot
from .snapshot_elision import leaves_state

_SNAPSHOT_BYTES = 16 * 1024 * 1024
_COMMON_BYTES = 8 * 1024
"""More than most shells' state has."""
_PLAIN_BYTES = 64 * 1024
"""A larger state is not looked through."""


class StateFiles:
    """See the module."""

    __slots__ = ("_dumps", "_filled", "_plain", "descriptors", "slot")

    def __init__(self) -> None:
        self.descriptors = (os.memfd_create("holdfast", os.MFD_CLOEXEC), os.memfd_create("holdfast", os.MFD_CLOEXEC))
        self.slot = 0
        """The file of the last run, with the dump that followed it if there was one."""
        self._dumps = ((0, 0), (0, 0))
        """Number and file of the newest dump, and of the one before."""
        self._filled = [0, 0]
        """Bytes in each file, where only the agent has written since."""
        self._plain = False
        """Whether the state in the newest dump is plain: found out once per dump, and False until it is written."""

    @property
    def newest(self) -> int:
        """The number of the newest dump."""
        return self._dumps[0][0]

    def fill(self, text: bytes) -> int:
        """Put ``text`` where the newest dump is not; returns which file that is."""
        self.slot = slot = 1 - self._dumps[0][1]
        file = self.descriptors[slot]
        if self._filled[slot] > len(text):
            os.ftruncate(file, 0)
        self._filled[slot] = len(text)
        at = 0
        while at < len(text):
            at += os.pwrite(file, text[at:] if at else text, at)
        return slot

    def expect_dump(self, number: int) -> int:
        """The shell is about to write dump ``number`` to the file of the last run; returns which that is."""
        newest = (number, self.slot)
        if newest != self._dumps[0]:
            # one that is written over is no longer there to fall back on
            self._dumps = (newest, self._dumps[self.slot == self._dumps[0][1]])
        self._plain = False
        self._filled[self.slot] = _SNAPSHOT_BYTES
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

    def state(self, token: bytes) -> tuple[bytes, bytes] | None:
        """The newest complete dump, and ``token``."""
        dump = cut_farewell(os.pread(self.descriptors[0], _SNAPSHOT_BYTES, 0), token)
        for number, slot in self._dumps:
            if dump is None:
                dump = cut_snapshot(os.pread(self.descriptors[slot], _SNAPSHOT_BYTES, 0), token, number)
        return None if dump is None else (dump, token)

    def still_describe(self, script: bytes, dialect: Dialect) -> bool:
        """Whether the newest dump, which is written, will describe the state after ``script`` too."""
        if not leaves_state(script):
            return False
        if not self._plain:
            number, slot = self._dumps[0]
            dump = cut_snapshot(os.pread(self.descriptors[slot], _PLAIN_BYTES, 0), dialect.token, number)
            self._plain = dump is not None and dialect.is_plain(dump)
        return self._plain

    def close(self) -> None:
        """Close both."""
        for descriptor in self.descriptors:
            os.close(descriptor)
