"""The size of a terminal's window, from untrusted parameters. Used by ``terminal`` and ``shell.channel``."""

from __future__ import annotations

from typing import Any

from session_agent.agent.request import params as read

TERM = "xterm-256color"
"""What a program finds as the kind of its terminal."""
MOST_CELLS = 4096


def window_size(params: dict[str, Any]) -> tuple[int, int]:
    """``rows`` and ``cols``: 24 by 80 where they are left out."""
    rows = read.integer(params, "rows", 24, least=1, most=MOST_CELLS)
    columns = read.integer(params, "cols", 80, least=1, most=MOST_CELLS)
    return rows, columns
