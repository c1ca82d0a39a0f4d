"""The lines of a recording: one JSON object each, in the order in which things happened.

Pure. Owns the form of a line, and how a recording that was cut off is continued. Bytes are text where they are UTF-8, else base64 under the
same name with ``_b64``.
"""

from __future__ import annotations

import base64
import time
from typing import Any, Final

import orjson

_CONTENT: Final = ("data", "command")
_FIRST: Final = ("recording_started", "branched")
"""What begins another agent's journal: positions before it are not its own."""


def line(fact: dict[str, Any], epoch: str = "") -> bytes:
    """One fact, with its newline. ``epoch``: the journal of its position ``n``."""
    shown = {name: value for name, value in fact.items() if name != "seq"}
    for name in _CONTENT:
        if isinstance(data := shown.get(name), bytes):
            try:
                shown[name] = data.decode()
            except UnicodeDecodeError:
                del shown[name]
                shown[f"{name}_b64"] = base64.b64encode(data).decode()
    if "n" in shown:
        shown["epoch"] = epoch
    try:
        return orjson.dumps(shown) + b"\n"
    except (TypeError, orjson.JSONEncodeError):  # a text with half a character
        return orjson.dumps({name: _clean(value) for name, value in shown.items()}) + b"\n"


def note(kind: str, **facts: Any) -> bytes:
    """A line of the service itself, by its own clock."""
    return line({"type": kind, "time": time.time(), **facts})


def position(tail: bytes) -> tuple[str, int] | None:
    """The journal and the position of the last whole entry in the end of a recording; None if it has none."""
    for text in reversed(tail.split(b"\n")):
        if not text:
            continue
        try:
            found = orjson.loads(text)
        except orjson.JSONDecodeError:
            continue  # it was cut off, or begins before the tail
        if not isinstance(found, dict) or found.get("type") in _FIRST:
            return None
        if isinstance(found.get("n"), int) and isinstance(found.get("epoch"), str):
            return found["epoch"], found["n"]
    return None


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return [_clean(one) for one in value] if isinstance(value, list) else value
