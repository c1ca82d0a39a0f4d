"""The reading of what an agent reports on a channel ``activity``: every value is typed and bounded, or left out.

Pure. Owns the types of facts and their fields. All of it is the agent's claim, since code in the sandbox may own the agent. Called by
``activity_channels``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgpack
from holdfast_wire.limits import DECODE_ITEMS, ID_BYTES, JOURNAL_COMMAND_BYTES, JOURNAL_TEXT_BYTES, KIB, MIB, PATH_BYTES

from .agent_socket import AgentCallError

Fact = dict[str, Any]
"""``type``, ``time`` in seconds since the epoch by the sandbox's clock, and the fields of the type.

``seq`` is the position of its entry, if it has one, and ``n`` the same in the last fact of an entry."""
_BUFFER_BYTES: Final = 2 * MIB
_PIECES: Final = 256
_NAMES: Final = 100
_LAST_MOMENT: Final = 1e11
_LIMITS: Final[dict[str, Any]] = {
    "max_str_len": 4 * PATH_BYTES,
    "max_bin_len": JOURNAL_COMMAND_BYTES,
    "max_array_len": DECODE_ITEMS,
    "max_map_len": 64,
    "max_ext_len": 0,
}


def _text(most: int) -> Callable[[Any], str | None]:
    return lambda value: value[:most] if isinstance(value, str) else None


def _bytes(most: int) -> Callable[[Any], bytes | None]:
    return lambda value: value[:most] if isinstance(value, bytes) else None


def _whole(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 2**53 else None


def _number(value: Any) -> float | None:
    usable = (type(value) is float and math.isfinite(value)) or type(value) is int
    return float(value) if usable and 0 <= value < 2**53 else None


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _one_of(*words: str) -> Callable[[Any], str | None]:
    return lambda value: value if isinstance(value, str) and value in words else None


def _ports(value: Any) -> list[int] | None:
    return [one for one in value[:_NAMES] if type(one) is int and 0 < one < 65536] if isinstance(value, list) else None


def _names(value: Any) -> list[str] | None:
    return [one[:PATH_BYTES] for one in value[:_NAMES] if isinstance(one, str)] if isinstance(value, list) else None


_ID: Final = _text(ID_BYTES)
_SESSION: Final = {"session": _text(16), "generation": _whole, "received_bytes": _whole}
FIELDS: Final[Mapping[str, Mapping[str, Callable[[Any], Any]]]] = {
    "command_started": {
        "id": _ID, "kind": _one_of("command", "run", "terminal"), "shell": _ID, "line": _text(200), "late": _flag, "rows": _whole,
        "cols": _whole, "command": _bytes(JOURNAL_TEXT_BYTES),
    },
    "command_ended": {
        "id": _ID, "duration_s": _number, "exit_code": _whole, "signal": _text(20), "reason": _text(40), "cpu_s": _number,
        "stdout_bytes": _whole, "stderr_bytes": _whole,
    },
    "output": {"id": _ID, "stream": _whole, "data": _bytes(JOURNAL_COMMAND_BYTES)},
    "input": {"id": _ID, "data": _bytes(64 * KIB)},
    "resized": {"id": _ID, "rows": _whole, "cols": _whole},
    "progress": {"id": _ID, "stdout_bytes": _whole, "stderr_bytes": _whole},
    "files_written": {
        "operation": _one_of("write", "upload", "patch"), "path": _text(PATH_BYTES), "size": _whole, "sha256": _text(64),
        "entries": _whole, "bytes": _whole, "success": _flag, "files": _names,
    },
    "attached": _SESSION, "resumed": _SESSION, "lost": _SESSION, "detached": _SESSION,
    "usage": {"memory_bytes": _whole, "cpu_s": _number},
    "ports": {"ports": _ports},
    "gap": {"lost": _whole},
}  # fmt: skip
"""For each type of fact its fields; what is None is left out."""


class ReportReader:
    """Reads one channel: feed it the bytes of its output."""

    def __init__(self) -> None:
        self._unpacker = msgpack.Unpacker(raw=False, unicode_errors="replace", max_buffer_size=_BUFFER_BYTES, **_LIMITS)

    def feed(self, data: bytes) -> list[Fact]:
        """The facts that ``data`` completes. Raises ``agent_unreachable`` for what is no report."""
        found: list[Fact] = []
        try:
            self._unpacker.feed(data)
            for entry in self._unpacker:
                if not isinstance(entry, dict):
                    raise ValueError
                found += _facts(entry)
        except (ValueError, TypeError, msgpack.UnpackException, RecursionError):
            raise AgentCallError("agent_unreachable", "the sandbox's agent sent a report of its activity that cannot be read") from None
        return found


def _facts(entry: dict[Any, Any]) -> Iterator[Fact]:
    """The facts of an entry, the last of them with its position: one entry may have a command from its start to its end."""
    kind = entry.get("type")
    fields = FIELDS.get(kind) if isinstance(kind, str) else None
    if fields is None:
        return
    time = _moment(entry.get("t"))
    position = _whole(entry.get("n"))
    first = {"type": kind, "time": time, **_typed(entry, fields)}
    pieces, ended = entry.get("output"), entry.get("ended")
    if kind == "command_started" and (isinstance(pieces, list) or isinstance(ended, dict)):
        command_id = first.get("id")
        found = [first, *_pieces(pieces, command_id, time)] if isinstance(pieces, list) else [first]
        if isinstance(ended, dict):
            values = _typed(ended, FIELDS["command_ended"])
            found.append({"type": "command_ended", "time": time + values.get("duration_s", 0.0), **values, "id": command_id})
    else:
        found = [first]
    if position is not None:
        for one in found:
            one["seq"] = position
        found[-1]["n"] = position
    yield from found


def _pieces(pieces: list[Any], command_id: str | None, time: float) -> Iterator[Fact]:
    for piece in pieces[:_PIECES]:
        if isinstance(piece, list) and len(piece) == 3 and isinstance(piece[2], bytes):
            stream = piece[1] if type(piece[1]) is int else 1
            yield {"type": "output", "time": time + (_number(piece[0]) or 0.0), "id": command_id, "stream": stream, "data": piece[2]}


def _typed(entry: dict[Any, Any], fields: Mapping[str, Callable[[Any], Any]]) -> Fact:
    return {name: value for name, check in fields.items() if name in entry and (value := check(entry[name])) is not None}


def _moment(value: Any) -> float:
    return float(value) if type(value) in (int, float) and 0 <= value < _LAST_MOMENT else 0.0
