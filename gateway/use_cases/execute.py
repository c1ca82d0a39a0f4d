"""Commands of a sandbox over requests: execute one, and look at it again as a job.

Owns the channel of a command and its outcome. Stores nothing: a job is a command of the agent, ``<sandbox id>.<command id>``, so any
replica can query it. Called by faces.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import STDERR, STDOUT, Exited, Fact, Failed, Gap, Output, Started

from gateway.agents.agent_socket import AgentCallError, ReportedEndError
from gateway.identity.principal import Principal
from gateway.memory_reservation import reserve_memory
from gateway.model.records import SANDBOX_NAME, Record
from gateway.placement.errors import PlacementUnavailableError

from .activity import in_use
from .agent_channel import CALL_S, REASON_POLL_S, REASON_S, confirmed, limit
from .agent_reports import fact_error, is_truncated, moment, note_command
from .command_ids import command_id_of_key
from .service import Gateway

_WAIT_MORE_S: Final = 30.0
"""A waiting request waits this much longer than its command may run."""
_END_OF_ALL: Final = 2**53


@dataclass(slots=True)
class Outcome:
    """The state of a command. ``result`` is the map of Exited, None while it runs."""

    status: Literal["queued", "running", "ended"] = "queued"
    result: dict[str, Any] | None = None
    output: dict[int, bytearray] = field(default_factory=lambda: {STDOUT: bytearray(), STDERR: bytearray()})
    truncated: bool = False
    started_at: float | None = None
    """Seconds since the epoch by the sandbox's clock; None if its agent does not report it."""


@dataclass(frozen=True, slots=True)
class Command:
    """A requested command: a ``script`` for the shell, or an argument list."""

    script: str | None = None
    argv: list[str] = field(default_factory=list)
    cwd: str | None = None
    user: str | int | None = None
    env: dict[str, str] = field(default_factory=dict)
    timeout_s: float | None = None
    outlive: str | None = None
    """What becomes of its background processes: ``adopt``, ``kill`` or ``wait``; None is the agent's default."""

    def params(self) -> dict[str, Any]:
        """The params of its channel (PROTOCOL §7.1), without what was not requested."""
        asked = {"cwd": self.cwd, "user": self.user, "env": self.env or None, "timeout_s": self.timeout_s, "outlive": self.outlive}
        what = {"argv": self.argv} if self.script is None else {"script": self.script}
        return {"detached": True, **what, **{name: value for name, value in asked.items() if value is not None}}


@dataclass(frozen=True, slots=True)
class Posted:
    """How a command was requested."""

    fields: dict[str, Any]
    """The request's fields: the same for a repeated request."""
    connected: Callable[[], bool]
    """Whether its client is still connected."""
    key: str | None = None
    """Its idempotency key: the same key is the same command."""
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """A command of a sandbox, and its state when it was looked at."""

    record: Record
    command_id: str
    outcome: Outcome

    @property
    def job_id(self) -> str:
        return f"{self.record.name}.{self.command_id}"


async def execute(gateway: Gateway, record: Record, command: Command, posted: Posted) -> Job:
    """Run a command in a ready sandbox; with ``posted.waits`` until it ends, else until it has begun. Raises as ``run``."""
    wait_s = None
    if posted.waits:
        wait_s = command.timeout_s + _WAIT_MORE_S if command.timeout_s else gateway.settings.rest.exec_timeout_s
    if posted.key:
        ids: AbstractContextManager[str] = contextlib.nullcontext(command_id_of_key(record.owner, posted.key))
    else:
        ids = gateway.command_ids(record, posted.fields, posted.waits, posted.connected)
    with ids as command_id:
        outcome = await run(gateway, record, {"id": command_id, **command.params()}, wait_s, posted.connected)
    gateway.metrics.count("execs_total")
    if outcome.result is not None:
        note_command(gateway.metrics, "rest", outcome.result)
    return Job(record, command_id, outcome)


async def look(gateway: Gateway, principal: Principal, job_id: str, wait_s: float | None) -> Job:
    """The state of a job; with ``wait_s`` wait for its end for that long. Raises ``command_not_found``."""
    name, dot, command_id = job_id.rpartition(".")
    missing = HoldfastError("command_not_found", f"there is no job {job_id[:200]!r}")
    if not dot or not SANDBOX_NAME.fullmatch(name) or not command_id.isalnum() or len(command_id) > 64:
        raise missing
    try:
        record = await gateway.ready(principal.owner, name)
    except HoldfastError as error:
        if error.code == "sandbox_not_found":
            raise missing from None
        raise
    return Job(record, command_id, await peek(gateway, record, command_id, wait_s))


async def run(gateway: Gateway, record: Record, params: dict[str, Any], wait_s: float | None, wanted: Callable[[], bool]) -> Outcome:
    """Start the command of ``params``, or join it when its id is known; wait for its end for at most ``wait_s``.

    With None it returns as soon as the command has begun. The output is acknowledged, so that the agent may discard it, only if ``wanted``
    returns that the caller still waits; otherwise it can be queried later. Raises what the agent answers, ``sandbox_gone`` when the sandbox
    ended meanwhile, and ``outcome_unknown`` when the agent was lost after the command may have begun.
    """
    outcome = Outcome()
    opened = False
    try:
        async with gateway.agents.call(record) as call:
            opened = True
            rest = call.begin("command", {**params, "keep": True})  # if this answer is lost, the output can be queried again
            if rest:
                async with limit(CALL_S):
                    await call.write(rest)
            try:
                async with asyncio.timeout(CALL_S if wait_s is None else wait_s):
                    async for fact in call.facts():
                        _note(gateway, outcome, fact)
                        if wait_s is None:
                            break
            except TimeoutError:
                if wait_s is None:
                    raise AgentCallError(
                        "agent_unreachable", f"the sandbox's agent did not start the command within {CALL_S:g} s"
                    ) from None
            if call.ended and wait_s is not None and wanted():
                call.acknowledge()
            call.detach()
    except AgentCallError as error:
        if not opened:
            raise
        raise await _lost(gateway, record, outcome, error) from error
    except ReportedEndError as error:
        raise await confirmed(gateway, record, error) from None
    return outcome


async def _lost(gateway: Gateway, record: Record, outcome: Outcome, error: AgentCallError) -> HoldfastError:
    """The error of a requested command whose connection to the agent broke: the cause, and whether it had started."""
    started = None if outcome.status == "queued" else True
    known = {"accepted": started, "started": started}
    clock = asyncio.get_running_loop().time
    end = clock() + REASON_S
    while True:
        try:
            await gateway.ready(record.owner, record.name)
        except PlacementUnavailableError:
            break  # unchanged, this error would mean that the command did not run
        except HoldfastError as gone:
            gone.detail |= known
            return gone
        if clock() > end or await _answers(gateway, record):
            break
        await asyncio.sleep(REASON_POLL_S)
    return HoldfastError("outcome_unknown", f"the command may have run: {error.message}", fault=error.fault, detail=known)


async def _answers(gateway: Gateway, record: Record) -> bool:
    """Whether the agent can still be dialled. If not, the controller soon records why."""
    try:
        dialled = await gateway.dial(record)
    except HoldfastError:
        return False
    dialled.transport.abort()
    return True


async def peek(gateway: Gateway, record: Record, command_id: str, wait_s: float | None) -> Outcome:
    """The state of a command, without acknowledging its output, which can be queried again.

    While it runs only its state is reported. With ``wait_s``, wait for its end for that long.
    """
    outcome, whole = Outcome("running"), Outcome("running")
    try:
        with in_use(gateway, record):
            async with gateway.agents.call(record) as call:
                call.open("follow", {"id": command_id, "output": False, "from": {STDOUT: _END_OF_ALL, STDERR: _END_OF_ALL}})
                if wait_s is None:
                    async with limit(CALL_S):
                        settled = await call.settled()
                    for fact in settled:
                        _note(gateway, outcome, fact)
                else:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(wait_s):
                            async for fact in call.facts():
                                _note(gateway, outcome, fact)
                call.detach()
            if outcome.status != "ended":
                return outcome
            async with gateway.agents.call(record) as call:
                call.open("follow", {"id": command_id, "keep": True})
                async with limit(CALL_S):
                    async for fact in call.facts():
                        _note(gateway, whole, fact)
        return whole
    except ReportedEndError as error:
        raise await confirmed(gateway, record, error) from None


def _note(gateway: Gateway, outcome: Outcome, fact: Fact) -> None:
    if isinstance(fact, Failed) or (isinstance(fact, Exited) and "error" in fact.result):
        raise fact_error(fact)
    if isinstance(fact, Started):
        outcome.status = "running"
        outcome.started_at = moment(fact.info.get("started_at"))
    elif isinstance(fact, Gap):
        outcome.truncated = True
        gateway.metrics.count("gaps_total", where="rest")
        gateway.metrics.count("gap_bytes_total", fact.dropped, where="rest")
    elif isinstance(fact, Output):
        kept = outcome.output.get(fact.stream)
        if kept is not None:
            room = gateway.settings.rest.output_bytes - len(kept)
            reserve_memory(2 * min(room, len(fact.data)))
            kept += fact.data[:room]
            outcome.truncated |= len(fact.data) > room
    elif isinstance(fact, Exited):
        outcome.status = "ended"
        outcome.result = fact.result
        outcome.truncated |= fact.result.get("truncated") is True
        streams = fact.result.get("streams")
        if isinstance(streams, dict):
            for stream, kept in outcome.output.items():
                outcome.truncated |= is_truncated(streams.get(stream), len(kept))
