"""Recordings as the client has them: what is known of one, its lines, and their other forms.

Pure. Owns the reading of lines, and the export as an asciicast and as chat messages. All content is the sandbox's own: only a program that
shows it decides what of it a terminal may get (``cli.replaying``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast_wire.fast_dataclass import dataclass, field

from ._results import Fields, take_all

Line = dict[str, Any]
"""One line: ``type``, ``time`` in seconds since the epoch, and the fields of the type. ``data`` and ``command`` are bytes."""
Lines = list[Line]


@dataclass(frozen=True, slots=True)
class RecordingInfo:
    """What the service knows of a recording. Times are seconds since the epoch."""

    recording_id: str
    """Its id: the sandbox's id and its incarnation."""
    sandbox_id: str
    """The sandbox."""
    image: str = ""
    """Its image."""
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Its labels."""
    group: str | None = None
    """Its group."""
    parent: str | None = None
    """Of a branch: the sandbox that it continues. Its recording begins with the parent's."""
    turn: int | None = None
    """Of a branch: the turn that the request named."""
    created_at: float | None = None
    """When the sandbox was created."""
    started_at: float | None = None
    """When the recording began."""
    ended_at: float | None = None
    """When the sandbox ended; None while it lives."""
    reason: str | None = None
    """Why it ended."""
    fault: str | None = None
    """Which side caused that."""
    message: str | None = None
    """The same as a sentence."""
    bytes: int = 0
    """The size of its lines so far."""
    commands: int | None = None
    """How many commands ended, since the last restart of the gateway that recorded it; None while the sandbox lives."""


_NUMBER = (int, float)
_FIELDS: Fields = (
    ("recording_id", (str,), ""), ("sandbox_id", (str,), ""), ("image", (str,), ""), ("labels", (dict,), {}), ("group", (str,), None),
    ("parent", (str,), None), ("turn", (int,), None), ("created_at", _NUMBER, None), ("started_at", _NUMBER, None),
    ("ended_at", _NUMBER, None), ("reason", (str,), None), ("fault", (str,), None), ("message", (str,), None), ("bytes", (int,), 0),
    ("commands", (int,), None),
)  # fmt: skip


def read_recording(body: Any) -> RecordingInfo:
    """From a REST answer."""
    return RecordingInfo(*take_all(body, _FIELDS))


def read_lines(content: bytes) -> Lines:
    """The lines of a recording; one that was cut off is left out, and of an entry that was written twice the second."""
    import json

    found: Lines = []
    seen: dict[str, int] = {}
    for text in content.split(b"\n"):
        try:
            line = json.loads(text) if text else None
        except (ValueError, RecursionError):
            continue
        if not isinstance(line, dict) or not isinstance(line.get("type"), str):
            continue
        epoch, position = line.get("epoch"), line.get("n")
        if isinstance(epoch, str) and isinstance(position, int):
            if seen.get(epoch, -1) >= position:
                continue
            seen[epoch] = position
        for name in ("data", "command"):
            line = _with_bytes(line, name)
        if not isinstance(line.get("time"), (int, float)):
            line["time"] = found[-1]["time"] if found else 0.0
        found.append(line)
    return found


def _with_bytes(line: Line, name: str) -> Line:
    packed = line.pop(f"{name}_b64", None)
    if isinstance(packed, str):
        import base64

        try:
            line[name] = base64.b64decode(packed, validate=True)
        except ValueError:
            line[name] = b""
    elif name in line:
        line[name] = line[name].encode("utf-8", "surrogatepass") if isinstance(line[name], str) else b""
    return line


@dataclass(slots=True)
class RecordedCommand:
    """One command of a recording. ``command`` is all of it, up to 64 KiB; outputs have at most one megabyte together."""

    id: str
    """Its id; of a terminal, its name."""
    kind: str
    """``command``, ``run`` of a living shell, or ``terminal``."""
    command: bytes
    """The command."""
    started_at: float
    """When it started."""
    stdout: bytes = b""
    """What it wrote to standard output; of a terminal, all output."""
    stderr: bytes = b""
    """What it wrote to standard error."""
    exit_code: int | None = None
    """Its exit code; None if it had not ended."""
    ended: bool = False
    """Whether its end is recorded."""
    reason: str | None = None
    """Why it was ended from outside."""


Recorded = list[RecordedCommand]


def commands_of(lines: Iterable[Line]) -> Recorded:
    """The commands of a recording, in the order in which they started."""
    found: Recorded = []
    running: dict[str, RecordedCommand] = {}
    for line in lines:
        id_ = str(line.get("id", ""))
        if line["type"] == "command_started":
            command = line.get("command") or str(line.get("line", "")).encode("utf-8", "replace")
            one = RecordedCommand(id_, str(line.get("kind", "command")), command, line["time"])
            if id_ not in running:  # else its first line was written twice
                running[id_] = one
                found.append(one)
        elif (one_ := running.get(id_)) is None:
            continue
        elif line["type"] == "output":
            if line.get("stream") == 2:
                one_.stderr += line.get("data", b"")
            else:
                one_.stdout += line.get("data", b"")
        elif line["type"] == "command_ended":
            one_.ended, one_.exit_code, one_.reason = True, line.get("exit_code"), line.get("reason")
            del running[id_]
    return [one for one in found if one.reason != "not_started"]


def to_asciicast(lines: Lines, title: str = "") -> str:
    """The recording as an asciicast (version 2): every command after a prompt, what it writes, and typed input."""
    import json

    start = lines[0]["time"] if lines else 0.0
    size = next((line for line in lines if line["type"] == "command_started" and "rows" in line), {})
    head = {"version": 2, "width": size.get("cols") or 80, "height": size.get("rows") or 24, "timestamp": int(start), "title": title}
    rows = [json.dumps(head)]
    last = 0.0
    kinds: dict[str, str] = {}
    for line in lines:
        last = max(last, line["time"] - start)  # clocks of the service and of the sandbox differ
        code, text = "o", ""
        kind, id_ = line["type"], str(line.get("id", ""))
        if kind == "command_started":
            kinds[id_] = str(line.get("kind"))
            shown = line.get("command") or str(line.get("line", "")).encode()
            text = f"$ {_crlf(shown)}\r\n"
        elif kind == "output":
            text = line.get("data", b"").decode("utf-8", "replace") if kinds.get(id_) == "terminal" else _crlf(line.get("data", b""))
        elif kind == "input":
            code, text = "i", line.get("data", b"").decode("utf-8", "replace")
        elif kind == "resized":
            code, text = "r", f"{line.get('cols')}x{line.get('rows')}"
        elif kind in ("gap", "branched", "sandbox_ended"):
            code, text = "m", f"{kind}: {line.get('message') or line.get('parent') or ''}"
        if text:
            rows.append(json.dumps([round(last, 6), code, text]))
    return "\n".join(rows) + "\n"


def _crlf(data: bytes) -> str:
    return data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\n", "\r\n")


def to_messages(lines: Iterable[Line]) -> list[dict[str, Any]]:
    """The recording as chat messages: for each command a tool call of ``bash`` by the assistant and its result."""
    import json

    messages: list[dict[str, Any]] = []
    for one in commands_of(lines):
        arguments = json.dumps({"command": one.command.decode("utf-8", "replace")})
        call = {"id": one.id, "type": "function", "function": {"name": "bash", "arguments": arguments}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        content = (one.stdout + one.stderr).decode("utf-8", "replace")
        content += "" if one.exit_code == 0 else f"\n[exit code {one.exit_code}]" if one.ended else "\n[not ended]"
        messages.append({"role": "tool", "tool_call_id": one.id, "content": content})
    return messages


for _public in (RecordedCommand, RecordingInfo, commands_of):
    _public.__module__ = "holdfast"  # where they are imported from
