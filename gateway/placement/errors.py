"""What a step of the placement store raises.

HoldfastError ├── PlacementUnavailableError   the store did not answer; whether the step was carried out is not known │   ├──
UnreadableError         a key has a value that no replica wrote │   └── RebuildingError         the store does not know all sandboxes yet
└── FencedError                 a newer controller leads: this write was refused
"""

from __future__ import annotations

from holdfast_wire.errors import HoldfastError

NO_ANSWER = "the placement store does not answer"


class PlacementUnavailableError(HoldfastError):
    """The store is down. Safe to retry: every step is idempotent or guarded."""

    def __init__(self, message: str = NO_ANSWER) -> None:
        super().__init__("placement_unavailable", message)


class UnreadableError(PlacementUnavailableError):
    """A key of the gateway holds a value that no replica wrote; the controller writes the records of living sandboxes again."""

    def __init__(self) -> None:
        super().__init__("the placement store holds an unreadable value for the record of this sandbox")


class RebuildingError(PlacementUnavailableError):
    """The store was wiped, or is new, and does not know all sandboxes yet: an unknown id may belong to a living one."""

    def __init__(self) -> None:
        super().__init__("the placement store is new or was emptied, and its records are being rebuilt from the running sandboxes")


class FencedError(HoldfastError):
    """The write carried an old term: another controller leads now."""

    def __init__(self) -> None:
        super().__init__("internal", "another controller has taken over")
