"""Steps of the engine that open channels and run, cancel or end what is on them.

Pure and synchronous: each is one ``link.perform(…)`` of either face, decided and queued as a whole before anything is written.
"""

from __future__ import annotations

from typing import Any

from holdfast_wire.frames import Close, Resize, Signal

from holdfast._transport.command_call import Call
from holdfast._transport.engine import Engine
from holdfast._transport.sinks import CommandSink, ShellSink, TransferSink, WatchSink


def open_command(
    engine: Engine,
    kind: str,
    params: dict[str, Any],
    command_id: str,
    limit: int,
    *,
    input_: bytes | None = None,
    collecting: bool = True,
) -> Call:
    """Open a ``command``, ``follow`` or ``terminal`` channel; ``input_`` is all of its standard input."""
    sink = CommandSink(engine.session, engine.gates)
    sink.call = call = Call(sink, engine.gates, command_id, limit, collecting=collecting)
    call.adopts_id = kind == "terminal" and "name" in params
    engine.open(kind, params, sink)
    if input_ is not None:
        call.give(input_)
        call.pump()
    return call


def open_shell(engine: Engine, params: dict[str, Any]) -> ShellSink:
    """Open a ``shell`` channel."""
    sink = ShellSink(engine.session, engine.gates)
    engine.open("shell", params, sink)
    return sink


def open_transfer(engine: Engine, kind: str, params: dict[str, Any]) -> TransferSink:
    """Open a file, archive, patch or tunnel channel."""
    sink = TransferSink(engine.session, engine.gates)
    engine.open(kind, params, sink)
    return sink


def open_watch(engine: Engine, params: dict[str, Any]) -> WatchSink:
    """Open a ``watch`` channel."""
    sink = WatchSink(engine.session, engine.gates)
    sink.path = str(params["path"])
    engine.open("watch", params, sink)
    return sink


def run_in_shell(
    sink: ShellSink,
    engine: Engine,
    command_id: str,
    params: dict[str, Any],
    limit: int,
    input_: bytes | None,
    collecting: bool,
) -> Call:
    """Run a command in the shell, after those before it."""
    call = Call(sink, engine.gates, command_id, limit, collecting=collecting)
    call.params = params
    if input_ is not None:
        call.give(input_)
    sink.run(call)
    return call


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
            call.abandoned = "INT"  # it may wait behind another client's command, where no signal meets it yet
    else:
        sink.send(Close(sink.number, False))


def kill_in_shell(call: Call) -> None:
    """The interrupt was not heeded, or met nothing yet: then the end comes with the start."""
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
    if not sink.ended:
        sink.gate.clear()
        sink.send(Close(sink.number, detach))
