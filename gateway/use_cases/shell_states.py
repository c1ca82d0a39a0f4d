"""The states of a sandbox's living shells, taken from its agent and given to another one.

Owns the two requests to the agent, and the size and form of what it reports, which code in the sandbox may have written: the states are
passed on unread, and only to agents of the same owner. Called by ``snapshots`` and ``branch``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import Closed, Failed, Opened, Output

from gateway.agents.agent_call import AgentCall
from gateway.agents.agent_socket import AgentCallError
from gateway.memory_reservation import reserve_memory
from gateway.model.records import Record

from .agent_channel import CALL_S, request
from .agent_reports import fact_error
from .service import Gateway

_MOST_BYTES: Final = 16 * 1024 * 1024
_MOST_LOST: Final = 1000
_TEXT: Final = 500
_UNREADABLE: Final = "the sandbox's agent sent a state of its shells that cannot be read"


@dataclass(frozen=True, slots=True)
class Lost:
    """Something of a sandbox that does not continue in a branch, or after a pause to disk."""

    kind: str
    """What it was: ``command``, ``terminal``, ``shell``, ``variable``, …"""
    name: str
    """Its id, its name, or the name of the shell that had it."""
    reason: str
    """Why it does not continue."""


@dataclass(frozen=True, slots=True)
class Dump:
    """The states of all living shells, opaque, and what else there is that they do not contain."""

    data: bytes
    lost: list[Lost]


@contextlib.asynccontextmanager
async def held(gateway: Gateway, record: Record, wait_s: float) -> AsyncIterator[Dump]:
    """The states, taken when no shell runs a command, at the latest after ``wait_s`` (0: as they were before the commands that run now).

    Until the block ends the shells begin no command. Raises ``wait_timeout`` if a command takes longer, and what the agent answers.
    """
    async with gateway.agents.call(record, own=True) as call:
        dump = await _read(call, record, wait_s)
        yield dump


async def _read(call: AgentCall, record: Record, wait_s: float) -> Dump:
    loop = asyncio.get_running_loop()
    data, size, lost = bytearray(), -1, list[Lost]()
    try:
        async with asyncio.timeout(wait_s or CALL_S) as limit:
            call.open("dump", {"wait": wait_s > 0})
            async for fact in call.facts():
                if isinstance(fact, Failed):
                    raise fact_error(fact)
                if isinstance(fact, Opened):
                    size, lost = _announced(fact.info)
                    reserve_memory(2 * size)
                    limit.reschedule(loop.time() + CALL_S)
                elif isinstance(fact, Output):
                    data += fact.data
                if size >= 0 and len(data) >= size:
                    return Dump(bytes(data), lost)
                if isinstance(fact, Closed) or len(data) > _MOST_BYTES:
                    break
        raise AgentCallError("agent_unreachable", _UNREADABLE)
    except TimeoutError:
        if size >= 0 or not wait_s:
            raise HoldfastError("wait_timeout", "the sandbox did not send the states of its shells in time") from None
        message = f"a shell of sandbox {record.name!r} still runs a command after {wait_s:g} s"
        hint = "wait longer, or choose when=now, which takes the shells as they were before the commands that run"
        raise HoldfastError("wait_timeout", message, hint=hint) from None


async def restore(gateway: Gateway, record: Record, data: bytes) -> list[Lost]:
    """Start the shells of a dump in a sandbox that has none; returns what could not be restored."""
    result = await request(gateway, record, "restore", {}, data=data, timeout_s=2 * CALL_S)
    return _lost(result.get("lost"))


def _announced(info: dict[str, Any]) -> tuple[int, list[Lost]]:
    size = info.get("bytes")
    if not isinstance(size, int) or not 0 <= size <= _MOST_BYTES:
        raise AgentCallError("agent_unreachable", _UNREADABLE)
    return size, _lost(info.get("lost"))


def _lost(rows: Any) -> list[Lost]:
    listed = rows[:_MOST_LOST] if isinstance(rows, list) else []
    return [Lost(*(_text(row.get(name)) for name in ("kind", "name", "reason"))) for row in listed if isinstance(row, dict)]


def _text(value: Any) -> str:
    return value[:_TEXT].encode("utf-8", "replace").decode() if isinstance(value, str) else ""
