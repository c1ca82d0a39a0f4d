"""What a sandbox uses at the moment, as its agent reports it.

Owns the sample: two reports a moment apart, for the use of processors. What the agent cannot read is 0. Called by faces.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import msgpack
from holdfast_wire.frames import Failed, Output

from gateway.agents.agent_socket import AgentCallError
from gateway.model.records import Record

from .agent_channel import limit
from .agent_reports import fact_error
from .service import Gateway

_BETWEEN_S: Final = 0.2
_REPORT_S: Final = 10.0
_BUFFER_BYTES: Final = 1024 * 1024
_MOST: Final = 2.0**53


@dataclass(frozen=True, slots=True)
class Usage:
    """``cores`` is how many processors are busy. ``cache_bytes`` are part of ``memory_bytes``."""

    cores: float
    memory_bytes: int
    cache_bytes: int
    disk_bytes: int
    disk_total_bytes: int


async def sample(gateway: Gateway, record: Record) -> Usage:
    """A sample of a ready sandbox. Does not count as use of the sandbox. Raises what the agent answers, and ``wait_timeout``."""
    reports: list[dict[str, Any]] = []
    unpacker = msgpack.Unpacker(raw=False, max_buffer_size=_BUFFER_BYTES, unicode_errors="replace")
    async with gateway.agents.call(record, own=True) as call, limit(_REPORT_S):
        call.open("activity", {"usage_s": _BETWEEN_S})
        async for fact in call.facts():
            if isinstance(fact, Failed):
                raise fact_error(fact)
            if isinstance(fact, Output):
                reports += _reports(unpacker, fact.data)
                if len(reports) > 1:
                    return _usage(reports[0], reports[-1])
    raise AgentCallError("agent_unreachable", "the sandbox's agent ended its report")


def _reports(unpacker: msgpack.Unpacker, data: bytes) -> list[dict[str, Any]]:
    try:
        unpacker.feed(data)
        return [one for one in unpacker if isinstance(one, dict) and one.get("type") == "usage"]
    except (ValueError, msgpack.UnpackException, RecursionError):
        raise AgentCallError("agent_unreachable", "the sandbox's agent sent a report that cannot be read") from None


def _usage(first: dict[str, Any], last: dict[str, Any]) -> Usage:
    passed_s = _number(last.get("t")) - _number(first.get("t"))
    used_s = _number(last.get("cpu_s")) - _number(first.get("cpu_s"))
    sizes = [int(_number(last.get(name))) for name in ("memory_bytes", "cache_bytes", "disk_bytes", "disk_total_bytes")]
    return Usage(max(used_s / passed_s, 0.0) if passed_s > 0 else 0.0, *sizes)


def _number(value: Any) -> float:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and 0 <= value < _MOST
    return float(value) if usable else 0.0
