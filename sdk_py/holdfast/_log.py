"""The logger ``holdfast``: what becomes of sessions. Quiet, until the program says otherwise.

Owns that the logging library is not loaded for it: where nobody has loaded it, nobody listens.
"""

from __future__ import annotations

import sys
from typing import Any, Literal


def say(level: Literal["info", "warning"], text: str, *arguments: Any) -> None:
    """One record of that level."""
    logging = sys.modules.get("logging")
    if logging is None:
        return
    log = logging.getLogger("holdfast")
    if not log.handlers:
        log.addHandler(logging.NullHandler())  # else warnings would go to standard error where nothing is configured
    getattr(log, level)(text, *arguments)
