"""The entrypoint: the image's ENTRYPOINT and CMD, or the argument list of the sandbox's creator, started with the agent.

Owns its start, as a command with a well-known id that any client can follow, and its stop before the sandbox is deleted. It runs with the
user, directory and environment of the image. The sandbox continues when the entrypoint ends. Called by ``server``.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any

from holdfast_wire.errors import HoldfastError
from holdfast_wire.limits import ENTRYPOINT_ID, MIB

from session_agent.agent.context import AgentContext
from session_agent.agent.output.exit_status import ExitStatus
from session_agent.agent.output.records import Record

from .command import begin, spool_from

log = logging.getLogger("session_agent.agent.commands.entrypoint")

_SPOOL_BYTES = 4 * MIB
"""How much of its last output is kept as long as the sandbox lives."""
_CANNOT_START = 126


def start_entrypoint(context: AgentContext) -> None:
    """Start the entrypoint, if there is one. If it cannot be started its output is the error and its exit code 126, as in a shell."""
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
        _cannot_start(context, params, error)
        return
    context.records.keep(record)
    record.followers.append(lambda: _check_start(context, params, record))


def _check_start(context: AgentContext, params: dict[str, Any], record: Record) -> None:
    """The start may fail only after it has begun (``fork``)."""
    if record.error is not None:
        with contextlib.suppress(HoldfastError):  # the agent stops
            _cannot_start(context, params, record.error)


def _cannot_start(context: AgentContext, params: dict[str, Any], error: HoldfastError) -> None:
    log.warning("the entrypoint cannot be started: %s", error)
    record = context.records.create(ENTRYPOINT_ID, b"", spool_from(context, params)())
    record.started = True
    record.spool.append(2, f"{error.message}\n".encode())
    context.records.finish(record, ExitStatus(_CANNOT_START, 0.0), context.now())
    context.records.keep(record)


def stop_entrypoint(context: AgentContext) -> None:
    """Send SIGTERM to the entrypoint, as ``docker stop`` does."""
    if context.settings.entrypoint:
        with contextlib.suppress(HoldfastError):  # it could not be started, and the agent was stopping already
            record = context.records.get(ENTRYPOINT_ID)
            if record.owner is not None:
                record.owner.signal("TERM")
