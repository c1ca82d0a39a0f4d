"""What the sockets of a sandbox hold of the kernel's memory, where no control group limits that well enough.

No group counts what raw, ping and netlink sockets hold. What TCP sockets hold is counted, but the kernel lets each socket exceed a limit
once (v1). Owns reading this from /proc and the decision when to look, which takes time for many sandboxes: only when the machine has
less memory left than at the last look. Called by sandboxes.py, which ends a sandbox whose sockets hold more than they may.
"""

from __future__ import annotations

import contextlib
import os

from session_agent.node.kernel.cgroups import SandboxCgroup, socket_bytes

_FEWER = 64 << 20
"""Look again after so much less memory is available."""
_QUEUES = ("raw", "raw6", "icmp", "icmp6", "udplite", "udplite6")
LOOK_S = 1.0


class MachineMemory:
    """Whether much memory has been used since the last look."""

    def __init__(self) -> None:
        self._most = 0

    def has_shrunk(self) -> bool:
        available = _available()
        if self._most - available < _FEWER:
            self._most = max(self._most, available)
            return False
        self._most = available
        return True


def allowed(memory_bytes: int) -> int:
    """How much the sockets of a sandbox with that memory limit may hold: twice the limit that the kernel enforces for TCP and UDP."""
    return 2 * socket_bytes(memory_bytes)


def held(pid: int, cgroup: SandboxCgroup) -> int:
    """Bytes that sockets in the network namespace of the process hold; those of TCP and UDP only if they are no part of the memory limit.

    0 if it has ended.
    """
    total = cgroup.socket_bytes()
    with contextlib.suppress(OSError):
        for name in _QUEUES:
            total += sum(int(fields[4].partition(":")[2], 16) for fields in _rows(f"/proc/{pid}/net/{name}"))
        total += sum(int(fields[4]) for fields in _rows(f"/proc/{pid}/net/netlink"))
    return total


def _rows(path: str) -> list[list[str]]:
    if not os.path.exists(path):
        return []
    with open(path, encoding="ascii", errors="replace") as file:
        return [line.split() for line in file.readlines()[1:]]


def _available() -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:"))
