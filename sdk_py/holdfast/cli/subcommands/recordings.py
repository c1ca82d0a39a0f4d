"""``recordings`` and ``replay``: what happened in sandboxes, also after they are gone.

Owns which recording is meant and the forms in which it is written. ``replaying`` shows it.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time

from holdfast import NotFoundError, RecordingInfo, SandboxClient
from holdfast._recording_results import Lines, read_lines, to_asciicast, to_messages
from holdfast.cli.command_line import Arguments, UsageError
from holdfast.cli.output import age, print_json, print_line, table
from holdfast.cli.replaying import Replay
from holdfast.cli.signals import raised_on_exit_signals

_FORMS = ("asciicast", "lines", "messages")


def recordings(arguments: Arguments) -> None:
    with SandboxClient() as client:
        for id_ in arguments.rm:
            client.recordings.delete(id_)
            print_line(id_)
        if arguments.rm:
            return
        found = client.recordings.list(arguments.sandbox)
    if arguments.json:
        print_json([dataclasses.asdict(one) for one in found])
        return
    now = time.time()
    table(("ID", "IMAGE", "STARTED", "STATUS", "SIZE", "COMMANDS"), (_row(one, now) for one in found))


def _row(one: RecordingInfo, now: float) -> tuple[str, ...]:
    started = "" if one.started_at is None else f"{age(one.started_at, now)} ago"
    status = "lives" if one.ended_at is None else f"ended ({one.reason})"
    return one.recording_id, one.image, started, status, str(one.bytes), "" if one.commands is None else str(one.commands)


def replay(arguments: Arguments) -> None:
    form = arguments.export
    if form is not None and form not in _FORMS:
        raise UsageError(f"--export must be one of {', '.join(_FORMS)}, not {form}")
    speed, pause_s = arguments.speed or 1.0, 2.0 if arguments.pause is None else arguments.pause
    if not speed > 0 or pause_s < 0:
        raise UsageError("--speed must be more than 0, and --pause at least 0")
    with SandboxClient() as client:
        id_ = _recording(client, arguments.recording)
        content = client.recordings.raw(id_)
    lines = read_lines(content)
    if form == "lines":
        sys.stdout.buffer.write(content)
    elif form == "asciicast":
        sys.stdout.write(to_asciicast(lines, id_))
    elif form == "messages":
        sys.stdout.write(json.dumps({"messages": to_messages(lines), "tools": _TOOLS, "metadata": {"recording_id": id_}}) + "\n")
    else:
        with raised_on_exit_signals():
            Replay(lines, speed, pause_s, _begin(lines, getattr(arguments, "from"))).run()
    sys.stdout.flush()


_TOOLS = json.dumps(
    [
        {
            "type": "function",
            "function": {
                "name": "bash",
                "description": "Run a command in the sandbox",
                "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
            },
        }
    ]
)


def _recording(client: SandboxClient, given: str) -> str:
    """The id of the recording that the user means."""
    try:
        return client.recordings.get(given).recording_id
    except NotFoundError:
        found = client.recordings.list(given)
        if not found:
            raise
        return found[0].recording_id


def _begin(lines: Lines, wanted: str | None) -> int:
    """Where in the lines the command begins that the user names."""
    if wanted is None:
        return 0
    starts = [(number, line) for number, line in enumerate(lines) if line["type"] == "command_started"]
    if wanted.isdecimal() and 0 < int(wanted) <= len(starts):
        return starts[int(wanted) - 1][0]
    for number, line in starts:
        if line.get("id") == wanted:
            return number
    raise UsageError(f"the recording has no command {wanted}", hint=f"--from takes an id, or a number from 1 to {len(starts)}")
