"""The events of the session state machine, other than the items themselves and GoAway.

Owns one small dataclass for each. Both ends create them; the SDK's engine and the agent's sessions handle them.
"""

from __future__ import annotations

from typing import Any

from holdfast_wire.errors import HoldfastError
from holdfast_wire.fast_dataclass import dataclass
from holdfast_wire.frames import AnyItem, GoAway


@dataclass(frozen=True, slots=True)
class Attached:
    """The connection carries the session now; ``resumed``: whether the session existed before."""

    generation: int
    resumed: bool
    info: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Writable:
    """Credit was returned: ``channel`` accepts bytes again."""

    channel: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """The client has acknowledged the exit of ``command_id``."""

    channel: int
    command_id: str


@dataclass(frozen=True, slots=True)
class Dropped:
    """The client gave up ``channel`` without ending it: another client took the session over."""

    channel: int


@dataclass(frozen=True, slots=True)
class Retired:
    """The client has received everything of ``channel``, which had ended: no event of it follows."""

    channel: int


@dataclass(frozen=True, slots=True)
class Silent:
    """Nothing was received for too long: the connection is dead, close it."""


@dataclass(frozen=True, slots=True)
class Ponged:
    """The agent has answered the Ping ``number`` of ``ClientSession.ping``, and with it every earlier one."""

    number: int


@dataclass(frozen=True, slots=True)
class Lost:
    """The session has ended, for the reason in ``error``; no event follows."""

    error: HoldfastError


Event = AnyItem | GoAway | Attached | Writable | Delivered | Dropped | Retired | Silent | Ponged | Lost
