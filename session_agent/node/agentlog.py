"""Copies the agents' stderr to the node's log, within limits.

Owns one pipe per sandbox. Policy: LIMIT bytes in all, then the pipe is closed; control characters are escaped, because code in a sandbox
may have taken over its agent.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque

from holdfast_wire.logs import escape

log = logging.getLogger("session_agent.node.agents")
LIMIT = 64 << 10


class AgentLog:
    """Reads *fd* until its end, the limit or `close`."""

    def __init__(self, fd: int) -> None:
        self.name = "spare"
        self._fd = fd
        self._left = LIMIT
        self._lines: deque[str] = deque(maxlen=20)
        os.set_blocking(fd, False)
        asyncio.get_running_loop().add_reader(fd, self._readable)

    def tail(self) -> str:
        """The last lines, oldest first."""
        if self._fd >= 0:
            self._readable()
        return "\n".join(self._lines)

    def close(self) -> None:
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _readable(self) -> None:
        try:
            data = os.read(self._fd, min(16384, self._left))
        except BlockingIOError:
            return
        self._left -= len(data)
        for line in data.decode("utf-8", "backslashreplace").splitlines():
            clean = escape(line[:2000])
            self._lines.append(clean)
            log.info("%s: %s", self.name, clean)
        if not data or self._left <= 0:
            self.close()
