"""One-off operations in a sandbox: a command, a file, a listing, a patch.

Owns the channel of each and its result. Stores nothing: a job is a command of the agent, ``<sandbox id>.<command id>``, so any replica can
query it. Uses ``agent_call`` for the connection; the routes are in ``routes.commands`` and ``routes.files``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import msgpack
from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import STDERR, STDOUT, Closed, Exited, Fact, Failed, Gap, Output, Started

from gateway.agents.agent_socket import AgentCallError
from gateway.lifecycle.activity import in_use
from gateway.memory_reservation import reserve_memory
from gateway.model.records import Record
from gateway.placement.errors import PlacementUnavailableError
from gateway.service import Gateway

from .validation import ReportedEndError, fact_error, is_truncated, moment

_CALL_S = 30.0
"""Time limit of a request that is not a command."""
_REASON_S = 5.0
"""How long to wait for the reason of an agent's end: the runtime reports it within moments, and the controller records it."""
_REASON_POLL_S = 0.2
_END_OF_ALL = 2**53
_LISTING_BYTES = 64 * 1024 * 1024
"""Most bytes of a directory's listing, as the agent sends it."""


@dataclass(slots=True)
class Outcome:
    """The state of a command. ``result`` is the map of Exited, None while it runs."""

    status: Literal["queued", "running", "ended"] = "queued"
    result: dict[str, Any] | None = None
    output: dict[int, bytearray] = field(default_factory=lambda: {STDOUT: bytearray(), STDERR: bytearray()})
    truncated: bool = False
    started_at: float | None = None
    """Seconds since the epoch by the sandbox's clock; None if its agent does not report it."""


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
                async with _limit(_CALL_S):
                    await call.write(rest)
            try:
                async with asyncio.timeout(_CALL_S if wait_s is None else wait_s):
                    async for fact in call.facts():
                        _note(gateway, outcome, fact)
                        if wait_s is None:
                            break
            except TimeoutError:
                if wait_s is None:
                    raise AgentCallError(
                        "agent_unreachable", f"the sandbox's agent did not start the command within {_CALL_S:g} s"
                    ) from None
            if call.ended and wait_s is not None and wanted():
                call.acknowledge()
            call.detach()
    except AgentCallError as error:
        if not opened:
            raise
        raise await _lost(gateway, record, outcome, error) from error
    except ReportedEndError as error:
        raise await _confirmed(gateway, record, error) from None
    return outcome


async def _confirmed(gateway: Gateway, record: Record, error: ReportedEndError) -> HoldfastError:
    """The recorded or announced end of a sandbox whose agent reports its end; ``error`` if there is none."""
    clock = asyncio.get_running_loop().time
    end = clock() + _REASON_S
    while True:
        try:
            found = await gateway.ready(record.owner, record.sandbox_id)
        except HoldfastError as gone:
            return gone
        if found.leaving is not None:
            cause = found.leaving.cause
            message = f"sandbox {record.sandbox_id!r} will end soon: {cause.message or cause.reason}"
            return HoldfastError("sandbox_gone", message, fault=cause.fault, reason=cause.reason, detail=error.detail)
        if clock() > end:
            return error
        await asyncio.sleep(_REASON_POLL_S)


async def _lost(gateway: Gateway, record: Record, outcome: Outcome, error: AgentCallError) -> HoldfastError:
    """The error of a requested command whose connection to the agent broke: the cause, and whether it had started."""
    started = None if outcome.status == "queued" else True
    known = {"accepted": started, "started": started}
    clock = asyncio.get_running_loop().time
    end = clock() + _REASON_S
    while True:
        try:
            await gateway.ready(record.owner, record.sandbox_id)
        except PlacementUnavailableError:
            break  # unchanged, this error would mean that the command did not run
        except HoldfastError as gone:
            gone.detail |= known
            return gone
        if clock() > end or await _answers(gateway, record):
            break
        await asyncio.sleep(_REASON_POLL_S)
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
                    async with _limit(_CALL_S):
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
                async with _limit(_CALL_S):
                    async for fact in call.facts():
                        _note(gateway, whole, fact)
        return whole
    except ReportedEndError as error:
        raise await _confirmed(gateway, record, error) from None


async def read_file(gateway: Gateway, record: Record, path: str, most_bytes: int, user: str | int | None = None) -> bytearray:
    """A whole file. Raises ``request_too_large`` for more than ``most_bytes``."""
    content = bytearray()

    def take(data: bytes) -> None:
        reserve_memory(len(data))
        content.extend(data)
        if len(content) > most_bytes:
            hint = "read the file over a session, which streams it"
            raise HoldfastError("request_too_large", f"the file is over {most_bytes} bytes", hint=hint)

    await _request(gateway, record, "read", {"path": path, "length": most_bytes + 1, **_as(user)}, take=take)
    return content


def _as(user: str | int | None) -> dict[str, str | int]:
    return {} if user is None else {"user": user}


async def write_file(gateway: Gateway, record: Record, path: str, content: bytes, user: str | int | None = None) -> dict[str, Any]:
    """Write a whole file atomically, with its parent directories; the agent's result."""
    return await _request(gateway, record, "write", {"path": path, "size": len(content), **_as(user)}, data=content)


async def apply_patch(gateway: Gateway, record: Record, diff: bytes, timeout_s: float) -> dict[str, Any]:
    """Apply a unified diff in the sandbox's working directory; the agent's result."""
    return await _request(gateway, record, "patch", {}, data=diff, timeout_s=timeout_s)


async def list_files(gateway: Gateway, record: Record, path: str, most: int, user: str | int | None = None) -> list[dict[str, Any]]:
    """At most ``most`` entries of a directory: of each its name, type, size and mtime. Raises ``request_too_large``."""
    unpacker = msgpack.Unpacker(
        raw=False, strict_map_key=True, max_buffer_size=4 * 1024 * 1024, max_ext_len=0, max_array_len=64, max_map_len=64
    )
    entries: list[dict[str, Any]] = []
    left = _LISTING_BYTES

    def take(data: bytes) -> None:
        nonlocal left
        left -= len(data)
        reserve_memory(2 * len(data))
        if left < 0:
            hint = "list the directory over a session, which streams the listing"
            raise HoldfastError("request_too_large", f"the listing is over {_LISTING_BYTES} bytes", hint=hint)
        if len(entries) >= most:
            return
        try:
            unpacker.feed(data)
            entries.extend(_listed(entry) for entry in unpacker if isinstance(entry, dict))
        except Exception as error:  # msgpack raises many kinds, and the bytes come from a sandbox
            raise AgentCallError("agent_unreachable", "the sandbox's agent sent a listing that cannot be read") from error

    await _request(gateway, record, "fs", {"op": "list", "path": path, "limit": most, **_as(user)}, take=take)
    return entries[:most]


def _listed(entry: dict[str, Any]) -> dict[str, Any]:
    """The shown fields of a directory entry; the others may be anything, of any size."""
    return {name: value for name in ("name", "type", "size", "mtime") if isinstance(value := entry.get(name), str | bytes | int | float)}


async def _request(
    gateway: Gateway,
    record: Record,
    kind: str,
    params: dict[str, Any],
    *,
    data: bytes | None = None,
    take: Callable[[bytes], None] | None = None,
    timeout_s: float = _CALL_S,
) -> dict[str, Any]:
    """One channel from Open to Closed; its result. Raises what the agent answers, and ``wait_timeout``."""
    try:
        with in_use(gateway, record):
            async with gateway.agents.call(record) as call, _limit(timeout_s):
                call.open(kind, params)
                if data is not None:
                    await call.write(data, eof=True)
                async for fact in call.facts():
                    if isinstance(fact, Failed):
                        raise fact_error(fact)
                    if isinstance(fact, Output) and take is not None:
                        take(fact.data)
                    if isinstance(fact, Closed):
                        call.acknowledge()
                        result: dict[str, Any] = fact.result
                        return result
    except ReportedEndError as error:
        raise await _confirmed(gateway, record, error) from None
    raise AgentCallError("agent_unreachable", "the sandbox's agent did not answer")


@contextlib.asynccontextmanager
async def _limit(timeout_s: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        raise HoldfastError("wait_timeout", f"the sandbox did not answer within {timeout_s:g} s") from None


def _note(gateway: Gateway, outcome: Outcome, fact: Fact) -> None:
    if isinstance(fact, Failed) or (isinstance(fact, Exited) and "error" in fact.result):
        raise fact_error(fact)
    if isinstance(fact, Started):
        outcome.status = "running"
        outcome.started_at = moment(fact.info.get("started_at"))
    elif isinstance(fact, Gap):
        outcome.truncated = True
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
