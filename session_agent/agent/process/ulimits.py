"""Limits of resources that a sandbox's creator chose for all that is started in it: setrlimit(2), spelled as docker spells them.

Owns their names, the check of untrusted ones, and making room for them: a process may only lower its hard limits, so the process that
made the agent raises the agent's first. Used by ``settings``, ``fork`` and the node.
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
"""Of x86-64 and arm64. Not rttime, which marks a ``process_tree``, nor rtprio: real-time tasks obey no CPU limit of a sandbox."""
_SOFT_COLUMN = 26
"""Where in a row of proc(5)'s ``limits`` the soft limit stands; the rows are in the order of the numbers."""
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
    """Let the process *pid* (0: this one) give these to its children. Raises ``invalid_argument`` for more than the machine allows."""
    if not ulimits:
        return
    with open(f"/proc/{pid or 'self'}/limits", encoding="ascii") as file:  # which asks for no right over the process
        rows = file.read().splitlines()[1:]
    for name, (_, hard) in ulimits.items():
        number = _NUMBERS[name]
        soft, most = (-1 if word == "unlimited" else int(word) for word in rows[number][_SOFT_COLUMN:].split()[:2])
        if most == -1 or -1 < hard <= most:
            continue
        try:
            resource.prlimit(pid, number, (soft, hard))
        except (OSError, ValueError):
            message = f"ulimits.{name}: at most {most} can be had here"
            raise HoldfastError("invalid_argument", message, hint="ask for less, or start the service with a higher limit") from None


def arguments_of(ulimits: Ulimits) -> list[tuple[int, bytes]]:
    """What prlimit64(2) takes of each: number and new limits."""
    return [(_NUMBERS[name], _LIMITS.pack(soft & (2**64 - 1), hard & (2**64 - 1))) for name, (soft, hard) in ulimits.items()]


def set_own(ulimits: Ulimits) -> None:
    """Take them on, in a child that has yet to become its program."""
    for name, limits in ulimits.items():
        resource.setrlimit(_NUMBERS[name], limits)
