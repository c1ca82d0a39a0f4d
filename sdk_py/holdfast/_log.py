"""The logger ``holdfast``: sessions that attach, resume and end. Silent until the program configures logging.

Does not import the logging library: if the program has not loaded it, there is no handler.
"""

from __future__ import annotations

import sys
from typing import Any, Literal


def log(level: Literal["info", "warning"], text: str, *arguments: Any) -> None:
    """One record of that level."""
    logging = sys.modules.get("logging")
    if logging is None:
        return
    logger = logging.getLogger("holdfast")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())  # else warnings would be printed to standard error if logging is not configured
    getattr(logger, level)(text, *arguments)
