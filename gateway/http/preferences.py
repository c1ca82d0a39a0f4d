"""The header ``Prefer`` (RFC 7240): how long a request waits for its result.

Owns reading it, and the header of the answer that says what was done. Unknown preferences are ignored, as the RFC asks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request

MOST_WAIT_S: Final = 86400.0


@dataclass(frozen=True, slots=True)
class Preference:
    """What a request prefers: to be answered when there is a result, or at once."""

    wait_s: float | None
    """How long it waits at most; None: as long as the route would."""
    applied: str
    """For ``Preference-Applied``."""

    @property
    def waits(self) -> bool:
        return self.wait_s != 0

    @property
    def headers(self) -> dict[str, str]:
        return {"Preference-Applied": self.applied, "Vary": "Prefer"}


def preference_of(request: Request) -> Preference | None:
    """``wait=SECONDS``, ``wait`` or ``respond-async`` of the request, the first of them that it has; None without any."""
    for word in ",".join(request.headers.getlist("prefer")).split(","):
        name, _, value = word.partition(";")[0].partition("=")
        name, value = name.strip().lower(), value.strip().strip('"')
        if name == "respond-async":
            return Preference(0.0, "respond-async")
        if name == "wait" and not value:
            return Preference(None, "wait")
        if name == "wait" and (wait_s := _seconds(value)) is not None:
            return Preference(wait_s, f"wait={wait_s:g}")
    return None


def _seconds(text: str) -> float | None:
    try:
        wait_s = float(text)
    except ValueError:
        return None
    return min(wait_s, MOST_WAIT_S) if math.isfinite(wait_s) and wait_s >= 0 else None
