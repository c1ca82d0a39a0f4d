"""Keeping the names that every command looks up in the kernel's memory, so that a command beside a fork bomb does not wait for the bomb.

A lookup of a name that is not in the kernel's memory waits for another lookup of the same name in the same directory. The processes of a
bomb look up programs, directories and libraries all the time; at the limit of their memory the kernel frees the names again at once, and
one that looks a name up waits behind a thousand others for memory. A name that the agent has looked up first counts in the memory of the
agent's group, and stays. So the agent does that while the first command starts, and again from time to time. Called by ``crowding``.
"""

from __future__ import annotations

import asyncio
import os
import time

_AGAIN_S = 60.0
_PROGRAMS = ("sh", "bash", "kill")
_LINKER = (
    "/etc/ld.so.preload",
    "/etc/ld.so.cache",
    "/lib64/ld-linux-x86-64.so.2",
    "/lib/ld-linux-aarch64.so.1",
    "/lib/ld-musl-x86_64.so.1",
)
_LIBRARIES = tuple(f"{folder}/libc.so.6" for folder in ("/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/lib64"))
_LIBRARIES += ("/lib/x86_64-linux-gnu/libtinfo.so.6", "/usr/lib/x86_64-linux-gnu/gconv/gconv-modules.cache")
_CATEGORIES = (
    "ADDRESS", "COLLATE", "CTYPE", "IDENTIFICATION", "MEASUREMENT", "MESSAGES", "MONETARY", "NAME", "NUMERIC", "PAPER", "TELEPHONE", "TIME",
)  # fmt: skip
_LOCALE: tuple[str, ...] = (
    "/usr/lib/locale/locale-archive",
    "/usr/share/locale/locale.alias",
    "/usr/lib/locale/C.utf8/LC_MESSAGES/SYS_LC_MESSAGES",
)
_LOCALE += tuple(f"/usr/lib/locale/{locale}/LC_{category}" for locale in ("C.UTF-8", "C.utf8") for category in _CATEGORIES)
_FILES = _LINKER + _LIBRARIES + _LOCALE
"""What programs look up when they start, whether it exists or not."""


class KnownNames:
    """When the names were looked up last."""

    __slots__ = ("_due",)

    def __init__(self) -> None:
        self._due = 0.0

    def look_up(self, path: str) -> None:
        """Look the names up, also those that do not exist, in the next turn of the loop, unless that was done a short time ago: the process
        that is about to start does not wait for it. ``path``: the variable ``PATH``.

        Call only while the sandbox is not crowded: beside a bomb the agent itself would wait.
        """
        now = time.monotonic()
        if now >= self._due:
            self._due = now + _AGAIN_S
            asyncio.get_running_loop().call_soon(_look_up, path)


def _look_up(path: str) -> None:
    folders = [folder for folder in path.split(os.pathsep) if folder.startswith("/")]
    for name in (*[f"{folder}/{name}" for folder in folders for name in _PROGRAMS], *_FILES):
        try:
            os.stat(name)
        except (OSError, ValueError):  # a ``PATH`` may contain any character
            continue
