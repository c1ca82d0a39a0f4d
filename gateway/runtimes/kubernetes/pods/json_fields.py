"""Fields of the API server's JSON, read defensively: a value of another type counts as missing, texts are cut. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

_MESSAGE = 500


def moment(text: Any) -> float:
    """RFC 3339 to seconds since the epoch; 0 for anything else."""
    try:
        return datetime.fromisoformat(text).timestamp() if isinstance(text, str) else 0.0
    except ValueError:
        return 0.0


def map_of(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def maps_of(value: Any) -> Iterator[dict[str, Any]]:
    return (one for one in value if isinstance(one, dict)) if isinstance(value, list) else iter(())


def printable(text: Any) -> str:
    if not isinstance(text, str):
        return ""
    return "".join(c if c.isprintable() else " " for c in text[: _MESSAGE * 2]).strip()[:_MESSAGE]
