# Generated from ../_async by infra/scripts/generate_sync.py: edit that, then run `make generate`.
"""Starting commands, processes, terminals and living shells in a sandbox.

Owns the choice between session and REST for a command, and the opening of channels. Does not own the parameters (``_requests``) or the
methods of what was started (``running``, ``process``, ``shell``). Called by ``sandbox`` and the command line.
"""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar

from holdfast._sync.attachable import Attachable
from holdfast._sync.patience import answered
from holdfast._sync.running import Input, outcome
from holdfast._sync.shell import Shell
from holdfast._errors import HoldfastError, ServiceUnavailableError
from holdfast._results import CommandResult
from holdfast._transport.threads.events import Cancelled
from holdfast._transport.session.sinks import ShellSink, new_command, open_command

InputT = TypeVar("InputT", bound=Input)


def execute(sandbox: Attachable, params: dict[str, Any], data: bytes | None, limit: int) -> CommandResult:
    """Run a command and wait for its result; ``data`` is its whole standard input, ``limit`` how much of each output stream is kept."""
    driver = None
    try:
        driver = sandbox._attached()
    except HoldfastError:
        if not sandbox._by_rest:
            raise
    if driver is None:
        return sandbox._rest.exec(sandbox.id, params, data, limit)
    call = new_command(driver.engine, params["id"], limit)
    return outcome(driver, call, partial(open_command, driver.engine, call, "command", params, data))


def begin(sandbox: Attachable, cls: type[InputT], kind: str, params: dict[str, Any], limit: int) -> InputT:
    """Start a process or terminal on a new channel of that kind, and return once it has started."""
    driver = sandbox._attached()
    call = new_command(driver.engine, params["id"], limit, collecting=False)
    begun = cls(driver, call)
    begun._start(partial(open_command, driver.engine, call, kind, params))
    return begun


def open_shell(sandbox: Attachable, params: dict[str, Any]) -> Shell:
    """Open a living shell. Raises the agent's error if it cannot start one."""
    driver, named = sandbox._attached(), "name" in params
    sink = ShellSink(driver.engine.session, driver.engine.new_event)
    sink.shared = named
    try:
        driver.perform(driver.engine.open, "shell", params, sink)
        answered(driver, sink.changed, "the request for a shell")
    except (Cancelled, ServiceUnavailableError):
        driver.perform(sink.close, named)
        raise
    if sink.info is None:
        raise sink.over()
    shell = Shell(driver, sink, named=named)
    resources = sandbox._resources
    resources.shells = {other for other in resources.shells if not other._sink.ended} | {shell}
    return shell
