"""The gateway's own labels, which store a sandbox's limits and sizes on its runtime object.

Owns their names; requests cannot use the prefix. What they hold of a record is in ``lifecycle.reserved_labels``.
"""

from __future__ import annotations

RESERVED_LABEL = "holdfast/"
POOL_LABEL = RESERVED_LABEL + "pool"
"""The name of a spare's pool."""
KEY_LABEL = RESERVED_LABEL + "pool-key"
READY_LABEL = RESERVED_LABEL + "ready_timeout_s"


def number_of(text: str | None) -> float | None:
    """A label's number; an unreadable one counts as missing."""
    try:
        return float(text) if text else None
    except ValueError:
        return None
