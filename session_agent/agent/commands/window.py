"""The size of a terminal's window, from untrusted parameters. Used by ``terminal`` and ``shell.channel``."""

from __future__ import annotations

from typing import Any

from session_agent.agent.request import params as read

TERM = "xterm-256color"
"""The value of the environment variable TERM."""
MOST_CELLS = 4096


def window_size(params: dict[str, Any]) -> tuple[int, int]:
    """``rows`` and ``cols``, by default 24 and 80. Raises ``invalid_argument``."""
    rows = read.integer(params, "rows", 24, least=1, most=MOST_CELLS)
    columns = read.integer(params, "cols", 80, least=1, most=MOST_CELLS)
    return rows, columns
