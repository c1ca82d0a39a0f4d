"""The data of a simulated world: plans, connections, jobs, and the error for a violated guarantee.

``simulation.World`` owns everything that happens to them.
"""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass, field


def pattern(command_id: str, size_bytes: int) -> bytes:
    """Bytes that differ from those of another command and from themselves at another offset."""
    return hashlib.shake_128(command_id.encode()).digest(size_bytes)


@dataclass
class Plan:
    """One command: what it will print, what input it is sent, and what each side saw of it."""

    command_id: str
    output: bytes
    input: bytes
    seen: bytearray = field(default_factory=bytearray)
    started: int = 0
    exited: int = 0
    ran: int = 0
    received: bytearray = field(default_factory=bytearray)
    input_ended: int = 0
    input_sent: int = 0
    eof_sent: bool = False


@dataclass
class Wire:
    """One connection: messages on their way up and down, and whether each end still considers it open."""

    up: deque[bytes] = field(default_factory=deque)
    down: deque[bytes] = field(default_factory=deque)
    open: bool = True
    hole: bool = False  # loses everything without an error


class ViolationError(AssertionError):
    """A guarantee of the session was violated."""


class Job:
    """A command the agent runs: prints ``plan.output`` once its input is complete, in odd pieces, as credit allows."""

    def __init__(self, channel: int, plan: Plan) -> None:
        self.channel = channel
        self.plan = plan
        self.printed = 0
        self.done = False
