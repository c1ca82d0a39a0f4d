"""What a sandbox starts by itself: the image's ENTRYPOINT and CMD, or the words its creator gave.

Owns its start, as the command of a well-known id that any client can follow, and its stop when the sandbox is taken away. It is the
image's in every respect: user, directory, environment. The sandbox lives on when it ends. Called by ``server``.
"""

from __future__ import annotations

import logging

from holdfast_wire.errors import HoldfastError
from holdfast_wire.limits import ENTRYPOINT_ID, MIB

from session_agent.agent.context import AgentContext
from session_agent.agent.output.exit_status import Ending

from .command import begin, spool_from

log = logging.getLogger("session_agent.agent.commands.entrypoint")

_SPOOL_BYTES = 4 * MIB
"""How much of its output can be read again, as long as the sandbox lives."""
_CANNOT_START = 126


def start_entrypoint(context: AgentContext) -> None:
    """Start it, where there is one. What keeps it from starting is its output, and 126 its exit code, as a shell has it."""
    argv = list(context.settings.entrypoint)
    if not argv:
        return
    params = {
        "id": ENTRYPOINT_ID,
        "argv": argv,
        "outlive": "adopt",
        "detached": True,
        "spool": "tail",
        "spool_bytes": min(_SPOOL_BYTES, context.limits.spool_command_bytes),
    }
    try:
        record = begin(context, params)
    except HoldfastError as error:
        log.warning("the entrypoint cannot be started: %s", error)
        record = context.records.create(ENTRYPOINT_ID, b"", spool_from(context, params)())
        record.started = True
        record.spool.append(2, f"{error.message}\n".encode())
        context.records.finish(record, Ending(_CANNOT_START, 0.0), context.now())
    context.records.keep(record)


def stop_entrypoint(context: AgentContext) -> None:
    """Ask it to end, as `docker stop` does."""
    if context.settings.entrypoint:
        record = context.records.get(ENTRYPOINT_ID)
        if record.owner is not None:
            record.owner.signal_command(ENTRYPOINT_ID, "TERM")
