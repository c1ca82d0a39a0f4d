"""What a sandbox uses at the moment, and where its programs listen: read from its own kernel files, for ``activity``.

Owns the names of these files under both versions of control groups. What cannot be read is left out: in some sandboxes no control group is
visible.
"""

from __future__ import annotations

import os
from typing import Any, Final

_MEMORY: Final = ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes")
_NANOSECONDS: Final = "/sys/fs/cgroup/cpuacct/cpuacct.usage"
_TABLE_BYTES: Final = 256 * 1024
_MOST_PORTS: Final = 100
_LISTENING: Final = b"0A"


def usage() -> dict[str, Any]:
    """``memory_bytes`` now, of these ``cache_bytes``; ``cpu_s``, the CPU time so far; ``disk_bytes`` of ``disk_total_bytes``."""
    found: dict[str, Any] = {}
    for path in _MEMORY:
        text = _text(path, 64).strip()
        if text.isdigit():
            found["memory_bytes"] = int(text)
            break
    words = _text("/sys/fs/cgroup/cpu.stat", 4096).split()
    if b"usage_usec" in words and words[words.index(b"usage_usec") + 1].isdigit():
        found["cpu_s"] = int(words[words.index(b"usage_usec") + 1]) / 1e6
    elif (text := _text(_NANOSECONDS, 64).strip()).isdigit():
        found["cpu_s"] = int(text) / 1e9
    words = _text("/sys/fs/cgroup/memory.stat", 4096).split() or _text("/sys/fs/cgroup/memory/memory.stat", 4096).split()
    for name in (b"file", b"total_cache"):
        if name in words and words[words.index(name) + 1].isdigit():
            found["cache_bytes"] = int(words[words.index(name) + 1])
            break
    try:
        disk = os.statvfs("/")
    except OSError:
        return found
    return found | {"disk_bytes": (disk.f_blocks - disk.f_bfree) * disk.f_frsize, "disk_total_bytes": disk.f_blocks * disk.f_frsize}


def ports() -> list[int]:
    """The TCP ports on which programs listen, each once, in order."""
    found: set[int] = set()
    for path in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        for line in _text(path, _TABLE_BYTES).splitlines()[1:]:
            words = line.split(None, 4)
            if len(words) > 4 and words[3] == _LISTENING:
                found.add(int(words[1].rpartition(b":")[2], 16))
    return sorted(found)[:_MOST_PORTS]


def _text(path: str, most_bytes: int) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(most_bytes) or b""
    except OSError:
        return b""
