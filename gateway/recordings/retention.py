"""Which recordings are removed: those that are older than they are kept, and the oldest of an owner who has more than the limit.

Owns both rules. A recording whose sandbox lives is never removed for its size. All functions block. Called by ``recorder``.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from .files import RecordingFiles, stored

_META_BYTES: Final = 4096
"""What a recording counts besides its lines."""


def expire(files: RecordingFiles, folder: str, oldest: float) -> None:
    """Remove an owner's recordings that ended, or without an end began, before ``oldest``, seconds since the epoch."""
    for one in files.names(folder):
        name = f"{folder}/{one}"
        found = _document(files.read(name, "end.json") or files.read(name, "meta.json"))
        if (found.get("ended_at") or found.get("started_at") or oldest + 1) < oldest:
            files.remove(name)


def trim(files: RecordingFiles, folder: str, limit_bytes: int) -> int:
    """Remove an owner's complete recordings, the oldest first, until all have at most ``limit_bytes``; how many were removed."""
    total, complete = 0, []
    for one in files.names(folder):
        name = f"{folder}/{one}"
        found = stored(files, name)
        if found is None:
            continue
        size = int(found["bytes"]) + _META_BYTES
        total += size
        if isinstance(found["ended_at"], int | float):
            complete.append((found["ended_at"], name, size))
    removed = 0
    for _, name, size in sorted(complete):
        if total <= limit_bytes:
            break
        files.remove(name)
        total -= size
        removed += 1
    return removed


def _document(content: bytes | None) -> dict[str, Any]:
    try:
        found = orjson.loads(content or b"{}")
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}
