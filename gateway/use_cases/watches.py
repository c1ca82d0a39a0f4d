"""Watches of directories: the changes in them, as they happen.

Owns reading what the agent reports, which is bounded. Called by faces.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

import msgpack
from holdfast_wire.frames import Closed, Failed, Opened, Output

from gateway.agents.agent_socket import AgentCallError
from gateway.model.records import Record

from .agent_channel import CALL_S, limit
from .agent_reports import fact_error
from .service import Gateway
from .streams import called

_BUFFER_BYTES: Final = 4 * 1024 * 1024
_TYPES: Final = ("created", "modified", "deleted", "moved", "overflow")


@dataclass(frozen=True, slots=True)
class Change:
    """``kind``: created, modified, deleted, moved (from ``path`` to ``to``), overflow (changes were lost).

    ``attributes``: of a modified entry, whether only its attributes are.
    """

    kind: str
    path: str
    to: str = ""
    attributes: bool = False


@contextlib.asynccontextmanager
async def watching(gateway: Gateway, record: Record, path: str, *, recursive: bool) -> AsyncIterator[AsyncGenerator[Change]]:
    """The changes of a directory from now on, until it is removed. Raises what the agent answers."""
    async with called(gateway, record, own=True) as call:
        call.open("watch", {"path": path, "recursive": recursive, "attributes": True})
        facts = call.facts()
        async with limit(CALL_S):
            async for fact in facts:
                if isinstance(fact, Failed):
                    raise fact_error(fact)
                if isinstance(fact, Opened):
                    break

        async def changes() -> AsyncGenerator[Change]:
            unpacker = msgpack.Unpacker(raw=False, max_buffer_size=_BUFFER_BYTES, unicode_errors="replace")
            async for fact in facts:
                if isinstance(fact, Failed):
                    raise fact_error(fact)
                if isinstance(fact, Closed):
                    return
                if isinstance(fact, Output):
                    for change in _read(unpacker, fact.data):
                        yield change

        yield changes()


def _read(unpacker: msgpack.Unpacker, data: bytes) -> list[Change]:
    try:
        unpacker.feed(data)
        return [change for reported in unpacker if (change := _change(reported)) is not None]
    except (ValueError, msgpack.UnpackException, RecursionError):
        raise AgentCallError("agent_unreachable", "the sandbox's agent sent changes that cannot be read") from None


def _change(reported: Any) -> Change | None:
    if not isinstance(reported, dict) or reported.get("type") not in _TYPES or not isinstance(reported.get("path"), str):
        return None
    to = reported.get("to")
    return Change(reported["type"], reported["path"], to if isinstance(to, str) else "", reported.get("attributes") is True)
