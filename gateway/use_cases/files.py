"""Files of a sandbox, whole: read, write, list, patch. Large ones stream over a session.

Owns how much of them is held in memory. The agent decides which paths are valid; what it reports is returned, not trusted. Called by faces.
"""

from __future__ import annotations

from typing import Any, Final

import msgpack
from holdfast_wire.errors import HoldfastError

from gateway.agents.agent_socket import AgentCallError
from gateway.memory_reservation import reserve_memory
from gateway.model.records import Record

from .agent_channel import request
from .service import Gateway

_ENTRIES: Final = 100_000
_LISTING_BYTES: Final = 64 * 1024 * 1024
"""Most bytes of a directory's listing, as the agent sends it."""
_SHORT: Final = ("name", "type", "size", "mtime")
_LONG: Final = (*_SHORT, "path", "mode", "uid", "gid", "target", "xattrs")


async def read(gateway: Gateway, record: Record, path: str, user: str | int | None = None) -> bytearray:
    """A whole file. Raises ``request_too_large`` for one above the service's limit."""
    content, most_bytes = bytearray(), gateway.settings.rest.file_bytes

    def take(data: bytes) -> None:
        reserve_memory(len(data))
        content.extend(data)
        if len(content) > most_bytes:
            hint = "read the file over a session, which streams it"
            raise HoldfastError("request_too_large", f"the file is over {most_bytes} bytes", hint=hint)

    await request(gateway, record, "read", {"path": path, "length": most_bytes + 1, **_as(user)}, take=take)
    return content


async def write(gateway: Gateway, record: Record, path: str, content: bytes, user: str | int | None = None) -> dict[str, Any]:
    """Write a whole file atomically, with its parent directories; the agent's result."""
    return await request(gateway, record, "write", {"path": path, "size": len(content), **_as(user)}, data=content)


async def patch(gateway: Gateway, record: Record, diff: bytes, timeout_s: float) -> dict[str, Any]:
    """Apply a unified diff in the sandbox's working directory; the agent's result."""
    return await request(gateway, record, "patch", {}, data=diff, timeout_s=timeout_s)


async def list_all(gateway: Gateway, record: Record, path: str, user: str | int | None = None) -> list[dict[str, Any]]:
    """At most ``_ENTRIES`` entries of a directory: of each its name, type, size and mtime. Raises ``request_too_large``."""
    return await _list(gateway, record, {"path": path, **_as(user)}, _SHORT)


async def list_tree(gateway: Gateway, record: Record, path: str, *, depth: int, xattrs: str = "") -> list[dict[str, Any]]:
    """The entries of a directory and of those in it, ``depth`` levels in all: of each what ``stat`` reports. Raises as ``list_all``.

    With ``xattrs`` also the extended attributes whose names begin with that text.
    """
    more = {"xattrs": xattrs} if xattrs else {}
    return await _list(gateway, record, {"path": path, "depth": depth, **more}, _LONG)


async def _list(gateway: Gateway, record: Record, params: dict[str, Any], shown: tuple[str, ...]) -> list[dict[str, Any]]:
    unpacker = msgpack.Unpacker(
        raw=False, strict_map_key=True, max_buffer_size=4 * 1024 * 1024, max_ext_len=0, max_array_len=64, max_map_len=64
    )
    entries: list[dict[str, Any]] = []
    left = _LISTING_BYTES

    def take(data: bytes) -> None:
        nonlocal left
        left -= len(data)
        reserve_memory(2 * len(data))
        if left < 0:
            hint = "list the directory over a session, which streams the listing"
            raise HoldfastError("request_too_large", f"the listing is over {_LISTING_BYTES} bytes", hint=hint)
        if len(entries) >= _ENTRIES:
            return
        try:
            unpacker.feed(data)
            entries.extend(_listed(entry, shown) for entry in unpacker if isinstance(entry, dict))
        except Exception as error:  # msgpack raises many kinds, and the bytes come from a sandbox
            raise AgentCallError("agent_unreachable", "the sandbox's agent sent a listing that cannot be read") from error

    await request(gateway, record, "fs", {"op": "list", "limit": _ENTRIES, **params}, take=take)
    return entries[:_ENTRIES]


def _as(user: str | int | None) -> dict[str, str | int]:
    return {} if user is None else {"user": user}


def _listed(entry: dict[str, Any], shown: tuple[str, ...]) -> dict[str, Any]:
    """The shown fields of a directory entry; the others may be anything, of any size."""
    return {
        name: value
        for name in shown
        if isinstance(value := entry.get(name), str | bytes | int | float) or (name == "xattrs" and isinstance(value, dict))
    }
