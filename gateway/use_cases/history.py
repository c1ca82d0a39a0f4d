"""The last commands of a sandbox, as its agent reports them.

Owns the reading of the report, which is a claim: code in the sandbox may own the agent. It is bounded in bytes and number, and each value
has its type or is left out. Called by faces.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import msgpack
from holdfast_wire.errors import HoldfastError
from holdfast_wire.limits import HISTORY_BYTES, HISTORY_COMMANDS, ID_BYTES, KIB

from gateway.agents.agent_socket import AgentCallError
from gateway.identity.principal import Principal

from .agent_channel import request
from .service import Gateway

_BYTES: Final = 2 * HISTORY_BYTES
_MOST: Final = 2 * HISTORY_COMMANDS
_TEXT: Final = 200
_KINDS: Final = ("command", "run", "terminal")


@dataclass(frozen=True, slots=True)
class PastCommand:
    """One command; None where nothing is known. Times are seconds, since the epoch by the sandbox's clock."""

    command_id: str
    kind: str
    shell: str
    pid: int | None
    line: str
    started_at: float | None
    duration_s: float | None
    running: bool
    exit_code: int | None
    signal: str | None
    reason: str | None
    cpu_s: float | None
    stdout_bytes: int
    stderr_bytes: int
    held_bytes: int


async def commands(gateway: Gateway, principal: Principal, name: str) -> list[PastCommand]:
    """The commands of the owner's sandbox, the oldest first. Raises what ``Gateway.ready`` raises, and what the agent answers."""
    record = await gateway.ready(principal.owner, name)
    content = bytearray()

    def take(data: bytes) -> None:
        content.extend(data)
        if len(content) > _BYTES:
            raise HoldfastError("request_too_large", f"the sandbox reports a history of over {_BYTES} bytes")

    await request(gateway, record, "history", {}, take=take)
    return parsed(bytes(content))


def parsed(content: bytes) -> list[PastCommand]:
    """The commands of a report. Raises ``agent_unreachable`` for what is none."""
    limits: dict[str, Any] = {"max_str_len": 4 * KIB, "max_bin_len": 0, "max_array_len": 0, "max_map_len": 32, "max_ext_len": 0}
    unpacker = msgpack.Unpacker(raw=False, unicode_errors="replace", max_buffer_size=_BYTES, **limits)
    unpacker.feed(content)
    found: list[PastCommand] = []
    end = 0
    try:
        for row in unpacker:
            if not isinstance(row, dict) or len(found) >= _MOST:
                raise ValueError
            found.append(_command(row))
            end = unpacker.tell()
        if end != len(content):  # the last one is cut off
            raise ValueError
    except (ValueError, msgpack.UnpackException, RecursionError):
        raise AgentCallError("agent_unreachable", "the sandbox's agent sent a history that cannot be read") from None
    return found


def _command(row: dict[Any, Any]) -> PastCommand:
    kind = row.get("kind")
    return PastCommand(
        command_id=_text(row.get("id"), ID_BYTES) or "",
        kind=kind if isinstance(kind, str) and kind in _KINDS else "command",
        shell=_text(row.get("shell"), ID_BYTES) or "",
        pid=_whole(row.get("pid")),
        line=_text(row.get("line"), _TEXT) or "",
        started_at=_number(row.get("started_at")),
        duration_s=_number(row.get("duration_s")),
        running=row.get("running") is True,
        exit_code=_whole(row.get("exit_code")),
        signal=_text(row.get("signal"), 20),
        reason=_text(row.get("reason"), 40),
        cpu_s=_number(row.get("cpu_s")),
        stdout_bytes=_whole(row.get("stdout_bytes")) or 0,
        stderr_bytes=_whole(row.get("stderr_bytes")) or 0,
        held_bytes=_whole(row.get("held_bytes")) or 0,
    )


def _text(value: Any, most: int) -> str | None:
    return value[:most] if isinstance(value, str) else None


def _number(value: Any) -> float | None:
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and 0 <= value < 2**53
    return float(value) if usable else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None
