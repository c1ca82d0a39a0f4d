"""Finding the processes of a command that only write the rest of its output when it has ended, such as ``tee`` in ``command > >(tee log)``.

The shell does not wait for a process substitution, nor a program for one that it pipes to. Such a process holds the output and reads a pipe
that nothing else writes to any more, so it ends soon. A background job reads no such pipe. Used by shells and one-off commands, only if
their output is still open at their end.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat
import sys
import termios
from collections.abc import Callable, Collection

Pipe = tuple[int, int]
"""Device and inode."""

LIMIT_S = 2.0
"""How long the end of a command may wait for them, as docker waits for its streams."""
_MOST_DESCRIPTORS = 256
"""Descriptors of a process that are looked at."""
_MOST_READS = 4
_MOST_LOOKS = 4
_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.05


class LastOutput:
    """Waits until the last writers of a command that has ended are gone, for ``LIMIT_S`` at most."""

    __slots__ = ("_collect", "_done", "_is_full", "_outputs", "_pause_s", "_pids", "_shell", "_timer", "_until")

    def __init__(
        self,
        collect: Callable[[], list[Pipe]],
        is_full: Callable[[], bool],
        pids: Callable[[], list[int]],
        done: Callable[[bool], None],
        shell: int | None = None,
    ) -> None:
        """``collect`` reads what is there of the output and returns the pipes that are still open.

        ``pids`` lists the processes of the command. ``is_full``: whether clients have to read first. ``done`` is called with whether a last
        writer is still there. ``shell``: as for ``has_last_writers``.
        """
        self._collect = collect
        self._is_full = is_full
        self._pids = pids
        self._done = done
        self._shell = shell
        self._outputs: list[Pipe] = []
        self._pause_s = _FIRST_PAUSE_S
        self._until = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, outputs: list[Pipe]) -> bool:
        """Whether there is something to wait for. ``outputs``: the pipes that are still open."""
        self._outputs = outputs
        if not has_last_writers(self._pids, outputs, self._shell):
            self._collect()  # what a process wrote just before its end
            return False
        self._until = asyncio.get_running_loop().time() + LIMIT_S
        self._wait()
        return True

    def cancel(self) -> None:
        """Wait no longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end(self) -> None:
        """Wait no longer; the rest of the output is late."""
        if self._timer is not None:
            self.cancel()
            self._done(True)

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._pause_s, self._look)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def _look(self) -> None:
        is_over = asyncio.get_running_loop().time() >= self._until
        if self._is_full() and not is_over:
            self._wait()
            return
        writes = has_last_writers(self._pids, self._outputs, self._shell)
        self._outputs = self._collect()
        if writes and self._outputs and not is_over:
            self._wait()
            return
        self._timer = None
        self._done(writes and bool(self._outputs))


def has_last_writers(pids: Callable[[], list[int]], outputs: Collection[Pipe], shell: int | None = None) -> bool:
    """Whether a process of the command writes the rest of ``outputs``: it holds one of them, and reads a pipe without other writers.

    ``pids`` lists its processes. ``shell``: the shell that has run the command. It may keep a pipe to a process; then that one counts
    until it has read and written all that is in the pipe.
    """
    before: set[int] | None = None
    for _ in range(_MOST_LOOKS):
        listed = pids()
        if _one_writes(listed, outputs, shell):
            return True
        if before == set(listed):  # else one may have ended just after it has started another
            return False
        before = set(listed)
    return False


def _one_writes(pids: list[int], outputs: Collection[Pipe], shell: int | None) -> bool:
    running = {pid for pid in pids if _is_running(pid)}  # looked up first: what a process does next may settle its descriptors
    tables = {pid: _descriptors(pid) for pid in pids}
    # A shell that runs has not come back to its loop yet: it may be about to close its end of the pipe to a substitution.
    is_settled = shell is not None and not _is_running(shell)
    own = _descriptors(shell) if shell is not None and is_settled else {}
    writers: dict[Pipe, set[int]] = {}
    for pid, table in [*tables.items(), (0, own)]:
        for pipe, writes in table.values():
            if writes:
                writers.setdefault(pipe, set()).add(pid)
    private = {pipe for pipe, _ in own.values()}
    for pid, table in tables.items():
        held = [number for number, (pipe, writes) in table.items() if pipe in outputs and writes]
        if not held:
            continue
        # A process that was just forked may not have put the pipe in the place of its standard input yet.
        readable = list(table.values()) if pid in running else [table[0]] if 0 in table else []
        for pipe, writes in readable:
            if writes or pipe in outputs:
                continue
            by = {writer for writer in writers.get(pipe, ()) if writer == pid or not _is_ending(writer)}
            if pipe not in private and by <= {pid}:
                return True
            if 0 in by and by <= {pid, 0} and (pid in running or any(_unread(pid, number) for number in (0, *held))):
                return True
    return False


def count_open(pipe: Pipe, pids: list[int]) -> int:
    """How many descriptors of ``pids`` are open on ``pipe``."""
    return sum(pipe == other for pid in pids for other, _ in _descriptors(pid).values())


def _descriptors(pid: int) -> dict[int, tuple[Pipe, bool]]:
    """The pipes of a process by descriptor, and whether each is open for writing. Read again if one was closed meanwhile, or moved."""
    for _ in range(_MOST_READS - 1):
        table, is_whole = _read_descriptors(f"/proc/{pid}/fd")
        if is_whole:
            return table
    return _read_descriptors(f"/proc/{pid}/fd")[0]


def _read_descriptors(folder: str) -> tuple[dict[int, tuple[Pipe, bool]], bool]:
    table: dict[int, tuple[Pipe, bool]] = {}
    try:
        names = os.listdir(folder)[:_MOST_DESCRIPTORS]
    except OSError:  # it has ended, or may not be looked at
        return table, True
    is_whole = True
    for name in names:
        try:
            found = os.stat(f"{folder}/{name}")
            if stat.S_ISFIFO(found.st_mode):
                table[int(name)] = (found.st_dev, found.st_ino), bool(os.lstat(f"{folder}/{name}").st_mode & stat.S_IWUSR)
        except OSError:
            is_whole = False
    return table, is_whole


def _unread(pid: int, number: int) -> int:
    """How many bytes are in the pipe that is the process's descriptor ``number``."""
    try:
        pipe = os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # it has ended, or may not be looked at
        return 0
    try:
        return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)
    finally:
        os.close(pipe)


def _is_ending(pid: int) -> bool:
    """Whether it has ended, or closes its descriptors, the standard input first. 0 stands for the shell."""
    return pid != 0 and not os.path.lexists(f"/proc/{pid}/fd/0") and _state(pid) not in (b"S", b"T")


def _is_running(pid: int) -> bool:
    """Whether it is running, and not waiting for something."""
    return _state(pid) in (b"R", b"D")


def _state(pid: int) -> bytes:
    """The letter of its state, empty if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return b""
    return text[text.rfind(b")") + 2 :][:1]
