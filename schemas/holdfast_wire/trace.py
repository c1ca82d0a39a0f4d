"""Trace contexts (W3C Trace Context) and the times that an agent reports of a traced command (PROTOCOL §7.17).

Pure, and without OpenTelemetry: client and gateway make spans of what is here. An agent's report is untrusted: its times are checked, and
placed within the caller's own, because its clock is another one.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

from .fast_dataclass import dataclass

HEADER: Final = "traceparent"
PARAM: Final = "trace"
"""The key in the params of Open and Run, and in the result of Exited."""
_PARENT: Final = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class Times:
    """Of one command, in nanoseconds since the epoch by the caller's clock: received by the agent, started, ended."""

    received_ns: int
    started_ns: int
    ended_ns: int


def trace_id_of(traceparent: object) -> str:
    """The trace id of a ``traceparent``, "" if it is none of version 00."""
    found = _PARENT.fullmatch(traceparent) if isinstance(traceparent, str) else None
    return found[1] if found else ""


def times_of(result: object, sent_ns: int, received_ns: int) -> Times | None:
    """The times in the result of Exited, between ``sent_ns`` and ``received_ns`` of the caller's clock; None if there are none.

    If they are not between them, the clocks differ: they are moved to the middle, and what is longer is cut.
    """
    report = result.get(PARAM) if isinstance(result, dict) else None
    if not isinstance(report, dict):
        return None
    given = [report.get(name) for name in ("received_at", "started_at", "ended_at")]
    moments: list[int] = []
    for moment in given:
        if not isinstance(moment, (int, float)) or isinstance(moment, bool) or not math.isfinite(moment) or not 0 <= moment < 2**33:
            return None
        moments.append(int(moment * 1e9))
    first, _, last = moments
    if first < sent_ns or last > received_ns:
        shift = (sent_ns + received_ns - first - last) // 2
        moments = [moment + shift for moment in moments]
    least, placed = sent_ns, []
    for moment in moments:
        least = min(max(moment, least), max(received_ns, sent_ns))
        placed.append(least)
    return Times(*placed)


def report_of(received_at: float, started_at: float, ended_at: float) -> dict[str, Any]:
    """What an agent reports: seconds since the epoch by its clock."""
    return {"received_at": received_at, "started_at": started_at, "ended_at": ended_at}
