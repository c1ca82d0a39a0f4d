"""Commands that have a channel of their own: the call and its sink, and the step of the engine that opens the channel.

Pure and synchronous. What is done with a call afterwards are methods of ``Call``; each is one ``driver.perform(…)`` of either API, decided
and queued as a whole before anything is written.
"""

from __future__ import annotations

from typing import Any

from holdfast._transport.session.command_call import Call
from holdfast._transport.session.engine import Engine
from holdfast._transport.session.sinks import CommandSink


def new_command(engine: Engine, command_id: str, limit: int, *, collecting: bool = True) -> Call:
    """A command that ``open_command`` opens. The caller has it before it is sent, and so can cancel it at any time."""
    sink = CommandSink(engine.session, engine.new_event)
    sink.call = call = Call(sink, engine.new_event, command_id, limit, collecting=collecting)
    return call


def open_command(engine: Engine, call: Call, kind: str, params: dict[str, Any], input_: bytes | None = None) -> None:
    """Open a ``command``, ``follow`` or ``terminal`` channel; ``input_`` is all of its standard input."""
    call.adopts_id = kind == "terminal" and "name" in params
    engine.open(kind, params, call.sink)
    if input_ is not None:
        call.give(input_)
        call.pump()
