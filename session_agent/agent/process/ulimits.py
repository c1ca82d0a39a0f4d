"""Resource limits (setrlimit(2)) that a sandbox's creator sets for every process in it, with the names that docker uses.

Owns the names, the validation of untrusted values, and raising the agent's own limits: a process may only lower its hard limits, so the
process that creates the agent raises the agent's limits first. Used by ``settings``, ``fork`` and the node.
"""

from __future__ import annotations

import resource
import struct
from collections.abc import Mapping
from typing import Any

from holdfast_wire.errors import HoldfastError

_NUMBERS = {
    "cpu": 0, "fsize": 1, "data": 2, "stack": 3, "core": 4, "rss": 5, "nproc": 6, "nofile": 7, "memlock": 8, "as": 9, "locks": 10,
    "sigpending": 11, "msgqueue": 12, "nice": 13,
}  # fmt: skip
"""Numbers on x86-64 and arm64. Left out: rttime, which marks a ``process_tree``, and rtprio, because CPU limits do not hold for real-time
tasks."""
_SOFT_COLUMN = 26
"""Column of the soft limit in proc(5)'s ``limits``; its rows are in the order of the numbers."""
_LIMITS = struct.Struct("=QQ")

Ulimits = Mapping[str, tuple[int, int]]
"""Soft and hard limit by name, -1 for none."""


def read_ulimits(value: Any) -> dict[str, tuple[int, int]]:
    """The limits in a map of pairs. Raises ``invalid_argument``."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise HoldfastError("invalid_argument", "ulimits must be a map")
    found = {}
    for name, pair in value.items():
        if name not in _NUMBERS or not isinstance(pair, list | tuple) or len(pair) != 2:
            raise HoldfastError("invalid_argument", f"ulimits: {str(name)[:60]!r} is not a known limit, or does not have two values")
        if not all(type(one) is int and -1 <= one < 2**63 for one in pair):
            raise HoldfastError("invalid_argument", f"ulimits.{name} must be two whole numbers, -1 for none")
        found[name] = (pair[0], pair[1])
    return found


def raise_ulimits(pid: int, ulimits: Ulimits) -> None:
    """Raise the limits of the process *pid* (0: this one) so that it can give these to its children.

    Raises ``invalid_argument`` for a limit that is higher than the machine allows.
    """
    if not ulimits:
        return
    with open(f"/proc/{pid or 'self'}/limits", encoding="ascii") as file:  # unlike prlimit(2) this needs no permission on the process
        rows = file.read().splitlines()[1:]
    for name, (_, hard) in ulimits.items():
        number = _NUMBERS[name]
        soft, most = (-1 if word == "unlimited" else int(word) for word in rows[number][_SOFT_COLUMN:].split()[:2])
        if most == -1 or -1 < hard <= most:
            continue
        try:
            resource.prlimit(pid, number, (soft, hard))
        except (OSError, ValueError):
            message = f"ulimits.{name}: the limit of this machine is {most}"
            raise HoldfastError("invalid_argument", message, hint="ask for less, or start the service with a higher limit") from None


def ulimit_arguments(ulimits: Ulimits) -> list[tuple[int, bytes]]:
    """Number and packed limits of each, as prlimit64(2) takes them."""
    return [(_NUMBERS[name], _LIMITS.pack(soft & (2**64 - 1), hard & (2**64 - 1))) for name, (soft, hard) in ulimits.items()]


def apply_ulimits(ulimits: Ulimits) -> None:
    """Set these limits in a forked child before its exec."""
    for name, limits in ulimits.items():
        resource.setrlimit(_NUMBERS[name], limits)
