"""``events``: one line for each change of a sandbox, until interrupted."""

from __future__ import annotations

import dataclasses
import json
import sys
import time

from holdfast import ActivityEvent, EventGap, PullEvent, SandboxClient, SandboxEvent
from holdfast.cli.command_line import Arguments
from holdfast.cli.output import pairs, print_line
from holdfast.cli.signals import raised_on_exit_signals

_COLUMNS = frozenset({"type", "sandbox_id", "time", "line"})


def events(arguments: Arguments) -> None:
    with raised_on_exit_signals(), SandboxClient() as client:
        labels, since_s = pairs(arguments.label, "--label"), arguments.since or None
        with client.events(
            sandboxes=arguments.sandbox,
            labels=labels,
            group=arguments.group,
            since_s=since_s,
            kinds=arguments.kind,
            activity=arguments.activity,
            usage_s=arguments.usage or None,
            files=arguments.files or "",
            pulls=arguments.pulls,
        ) as found:
            for event in found:
                if arguments.json:
                    print_line(json.dumps(dataclasses.asdict(event)))
                else:
                    print_line(_line(event))
                sys.stdout.flush()


def _line(event: SandboxEvent | ActivityEvent | PullEvent | EventGap) -> str:
    if isinstance(event, EventGap):
        return f"{_time(time.time())}  gap      {event.sandbox_id + '  ' if event.sandbox_id else ''}{event.message}"
    if isinstance(event, PullEvent):
        return f"{_time(event.time)}  pull     {event.name}  {event.state} received={event.received_bytes} {event.error}".rstrip()
    if isinstance(event, ActivityEvent):
        shown = dataclasses.asdict(event)
        words = [f"{name}={value}" for name, value in shown.items() if value is not None and name not in _COLUMNS]
        words += [event.line] if event.line else []
        return f"{_time(event.time)}  {event.type:<8} {event.sandbox_id}  {' '.join(words)}".rstrip().replace("\n", "\\n")
    words = [f"image={event.image}"] if event.image else []
    words += [f"group={event.group}"] if event.group else []
    words += [f"{name}={value}" for name, value in event.labels.items()]
    words += [f"parent={event.parent}"] if event.parent else []
    words += [f"paused={event.paused}"] if event.paused else []
    if event.reason:
        words += [f"reason={event.reason}", f"fault={event.fault}"]
        words += [f"({event.message})"] if event.message and event.message != event.reason else []
    return f"{_time(event.time)}  {event.type:<8} {event.sandbox_id}  {' '.join(words)}".rstrip().replace("\n", "\\n")


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
