"""The gateway's own labels of sandboxes. Owns their names; requests cannot use the prefix."""

from __future__ import annotations

RESERVED_LABEL = "holdfast/"
POOL_LABEL = RESERVED_LABEL + "pool"
"""The name of a spare's pool."""
KEY_LABEL = RESERVED_LABEL + "pool-key"
SPEC_LABEL = RESERVED_LABEL + "spec"
"""A sandbox's specification, as the node of one machine stores it."""
MOST_LABELS = 64
"""Of one sandbox."""
