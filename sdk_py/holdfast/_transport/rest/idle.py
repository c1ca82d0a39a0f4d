"""When an idle connection may carry another request. Both HTTP clients keep theirs by this."""

from __future__ import annotations

import select

KEPT_S = 5.0
"""How long an idle connection is kept: servers close theirs after about as long."""


def is_readable(descriptor: int) -> bool:
    """Whether bytes that no request asked for are there to read: most often the end of the connection."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
