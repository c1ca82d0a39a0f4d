"""A file system whose server never answers, as of a network share that is gone: a process that opens one of its files cannot be killed.

Owns the mount, which has no place in any tree: its files are reached through a descriptor of this process. The server is a thread that
reads each request, because the kernel lets SIGKILL end only those waits whose request has not been read yet (state D). ``answer`` ends all
waits. Needs root and /dev/fuse: ``requires("root", "fuse")``.
"""

from __future__ import annotations

import os
import select
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from session_agent.node.kernel.syscalls import new_mount

_INIT = 26
_REQUEST = struct.Struct("=4xIQ16xI")  # opcode, number, process; as in linux/fuse.h
_ANSWER = struct.Struct("=IiQ")
_INIT_ANSWER = struct.Struct("=IIIIHHIIHHI28x")
_REQUEST_BYTES = 1 << 18


class StuckFiles:
    """The mounted file system."""

    def __init__(self) -> None:
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = (f"fd={self._device}", "rootmode=40000", "user_id=0", "group_id=0")
        try:
            self._mount = new_mount("fuse", "stuck", options, 0)
        except BaseException:
            os.close(self._device)
            raise
        self.asked = set[int]()
        """Processes that wait for an answer."""
        self._stop, self._stopped = os.pipe()
        self._server = threading.Thread(target=self._serve, name="stuck-files", daemon=True)
        self._server.start()

    @property
    def path(self) -> str:
        """The path of a file of it for any process of this user; to open it takes until ``answer``."""
        return f"/proc/{os.getpid()}/fd/{self._mount}/file"

    def answer(self) -> None:
        """End all waits with an error, and let no other begin."""
        if self._device >= 0:
            os.close(self._stopped)
            self._server.join()
            os.close(self._stop)
            os.close(self._device)
            os.close(self._mount)
            self._device = -1

    def _serve(self) -> None:
        while self._stop not in select.select([self._device, self._stop], [], [])[0]:
            request = os.read(self._device, _REQUEST_BYTES)
            opcode, number, pid = _REQUEST.unpack_from(request)
            self.asked.add(pid)
            if opcode == _INIT:
                body = _INIT_ANSWER.pack(7, 31, 1 << 16, 0, 16, 16, 1 << 16, 1, 16, 0, 0)
                os.write(self._device, _ANSWER.pack(_ANSWER.size + len(body), 0, number) + body)


@contextmanager
def stuck_files() -> Iterator[StuckFiles]:
    """A file system that does not answer; all its waits have ended afterwards."""
    files = StuckFiles()
    try:
        yield files
    finally:
        files.answer()


def state_of(pid: int) -> str:
    """The state of a process as of ps(1), such as ``D``; empty if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return text.rpartition(")")[2].split()[0]
