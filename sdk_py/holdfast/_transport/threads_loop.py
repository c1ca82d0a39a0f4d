"""A warning for who uses the blocking SDK in a running event loop, which stands still meanwhile. Said once a process.

Owns the question and the words. Asked where a connection is made, not for every command: that would cost each of them.
"""

from __future__ import annotations

import sys
import warnings

_said = False


def warn_in_loop() -> None:
    """Warn when this thread runs an event loop. Without asyncio loaded there is none, and it is not loaded for this."""
    global _said
    asyncio = sys.modules.get("asyncio")
    if _said or asyncio is None or asyncio._get_running_loop() is None:
        return
    _said = True
    level = 2
    while sys._getframe(level).f_globals.get("__name__", "").startswith("holdfast."):
        level += 1
    warnings.warn(
        "SandboxClient blocks the event loop that runs here: use AsyncSandboxClient, or asyncio.to_thread()",
        RuntimeWarning,
        stacklevel=level + 1,
    )
