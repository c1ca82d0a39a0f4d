"""A warning where the blocking SDK is used in a running event loop, which it blocks. Issued once per process.

Checked where a connection is made, not for every command, which would slow down each of them.
"""

from __future__ import annotations

import sys
import warnings

_warned = False


def warn_in_loop() -> None:
    """Warn when this thread runs an event loop. Without asyncio loaded there is none, and it is not loaded for this."""
    global _warned
    asyncio = sys.modules.get("asyncio")
    if _warned or asyncio is None or asyncio._get_running_loop() is None:
        return
    _warned = True
    level = 2
    while sys._getframe(level).f_globals.get("__name__", "").startswith("holdfast."):
        level += 1
    warnings.warn(
        "SandboxClient blocks the event loop that runs here: use AsyncSandboxClient, or asyncio.to_thread()",
        RuntimeWarning,
        stacklevel=level + 1,
    )
