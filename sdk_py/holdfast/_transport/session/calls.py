"""Steps of the engine that open channels and run, cancel or end what is on them.

Pure and synchronous: each is one ``driver.perform(…)`` of either API, decided and queued as a whole before anything is written.
"""

from __future__ import annotations

from typing import Any

from holdfast_wire.frames import Close, Resize, Signal

from holdfast._errors import error
from holdfast._transport.session.command_call import Call
from holdfast._transport.session.engine import Engine
from holdfast._transport.session.sink import Sink
from holdfast._transport.session.sinks import CommandSink, ShellSink, WatchSink


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


def open_channel(engine: Engine, kind: str, params: dict[str, Any], sink: Sink) -> None:
    """Open a shell, file, archive, patch or tunnel channel."""
    engine.open(kind, params, sink)


def open_watch(engine: Engine, params: dict[str, Any]) -> WatchSink:
    """Open a ``watch`` channel."""
    sink = WatchSink(engine.session, engine.new_event)
    sink.path = str(params["path"])
    engine.open("watch", params, sink)
    return sink


def new_shell_command(
    sink: ShellSink,
    engine: Engine,
    command_id: str,
    params: dict[str, Any],
    limit: int,
    input_: bytes | None,
    collecting: bool,
) -> Call:
    """A command that ``run_in_shell`` sends."""
    call = Call(sink, engine.new_event, command_id, limit, collecting=collecting)
    call.params = params
    if input_ is not None:
        call.give(input_)
    return call


def run_in_shell(call: Call) -> None:
    """Run a command in its shell, after those before it."""
    sink = call.sink
    assert isinstance(sink, ShellSink)
    sink.run(call)


def cancel_command(call: Call) -> None:
    """End the command's whole tree; its output is no longer wanted."""
    call.discard()
    if call.done:
        return
    sink = call.sink
    if isinstance(sink, ShellSink):
        if sink.withdraw(call):
            return
        sink.send(Signal(sink.number, "INT"))
        if not call.started:
            call.abandoned = "INT"  # it may wait behind another client's command, where no signal reaches it yet
    elif not sink.number:
        call.finish(error("cancelled", "the command was cancelled before it was sent", detail=call.facts()))
    else:
        sink.send(Close(sink.number, False))


def kill_in_shell(call: Call) -> None:
    """The interrupt had no effect, or the command has not started: then it ends as soon as it starts."""
    if not call.done and call.started:
        call.sink.send(Signal(call.sink.number, "KILL"))
    else:
        call.abandoned = "KILL"


def signal_call(call: Call, name: str) -> None:
    """Signal what runs; nothing when it is over."""
    if not call.done:
        call.sink.send(Signal(call.sink.number, name))


def resize_call(call: Call, rows: int, columns: int) -> None:
    """Set a terminal's size."""
    if not call.done:
        call.sink.send(Resize(call.sink.number, rows, columns))


def resize_shell(sink: ShellSink, rows: int, columns: int) -> None:
    """Set the size of a shell's terminal."""
    sink.send(Resize(sink.number, rows, columns))


def close_channel(sink: CommandSink | ShellSink, detach: bool) -> None:
    """End the channel, or with ``detach`` leave what runs running."""
    if sink.number and not sink.ended:
        sink.changed.clear()
        sink.send(Close(sink.number, detach))
