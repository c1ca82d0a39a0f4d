"""The owner's recordings: which there are, their content, and their removal; and the beginning and end of one with its sandbox.

Another owner's recording is indistinguishable from one that does not exist. ``gateway.recordings`` makes and keeps them. Called by faces,
and by ``create`` and ``delete``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Final

from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import Closed, Failed, Opened

from gateway.identity.principal import Principal
from gateway.model.records import Record
from gateway.recordings.files import RecordingFiles, name_of, stored

from .service import Gateway

_SETTLE_S: Final = 3.0
MOST_LISTED: Final = 10_000


def check(gateway: Gateway) -> None:
    """Raises ``unsupported`` if this service records nothing."""
    _files(gateway)


def _files(gateway: Gateway) -> RecordingFiles:
    files = gateway.recorder.files
    if files is None:
        raise HoldfastError("unsupported", "this service keeps no recordings", hint="set HOLDFAST_RECORDINGS")
    return files


async def begin(gateway: Gateway, record: Record, endpoint: str) -> None:
    """Begin the recording of a sandbox that is about to be ready, if its creator wants one."""
    spec = record.spec
    if spec.record:
        reached = None
        if spec.parent:
            with contextlib.suppress(HoldfastError):  # the parent has ended meanwhile
                reached = await settle(gateway, await gateway.ready(spec.owner, spec.parent))
        await gateway.recorder.begin(replace(record, endpoint=endpoint, status="ready"), reached)


async def settle(gateway: Gateway, record: Record) -> tuple[str, int] | None:
    """Before a sandbox is removed that is recorded or in the audit log: what has happened in it arrives at the replica that follows it.

    The journal and the position of what has happened last; None if the agent keeps no journal or does not answer.
    """
    is_recorded = record.spec.record and gateway.recorder.files is not None
    reached = None
    if not record.endpoint or not (is_recorded or gateway.audit.is_on):
        return None
    with contextlib.suppress(HoldfastError, TimeoutError):
        async with asyncio.timeout(_SETTLE_S), gateway.agents.call(record) as call:
            call.open("activity", {"sync": True})
            async for fact in call.facts():
                if isinstance(fact, Closed | Failed):
                    break
                if isinstance(fact, Opened):
                    reached = _position(fact.info)
    return reached


def _position(info: dict[str, Any]) -> tuple[str, int] | None:
    """The agent's claim, checked."""
    epoch, following = info.get("epoch"), info.get("next")
    return (epoch, following - 1) if isinstance(epoch, str) and isinstance(following, int) else None


async def list_owned(gateway: Gateway, principal: Principal, sandbox_id: str = "") -> list[dict[str, Any]]:
    """The owner's recordings, of one sandbox or all, the latest first."""
    files, folder = _files(gateway), name_of(principal.owner)

    def found() -> list[dict[str, Any]]:
        names = [one for one in files.names(folder) if not sandbox_id or one.rpartition(".")[0] == sandbox_id]
        return [one for name in names[:MOST_LISTED] if (one := stored(files, f"{folder}/{name}")) is not None]

    return sorted(await _on_thread(found), key=lambda one: -float(one.get("started_at") or 0.0))


async def describe(gateway: Gateway, principal: Principal, recording_id: str) -> dict[str, Any]:
    """One recording. Raises ``not_found``."""
    files, name = _files(gateway), _name(principal, recording_id)
    found: dict[str, Any] | None = await _on_thread(lambda: stored(files, name))
    if found is None:
        raise _no_recording(recording_id)
    return found


async def content(gateway: Gateway, principal: Principal, recording_id: str, offset: int) -> AsyncIterator[bytes]:
    """The lines from a byte on, as far as they are written. Raises ``not_found``."""
    await describe(gateway, principal, recording_id)
    pieces = _files(gateway).lines(_name(principal, recording_id), offset)
    while piece := await _on_thread(lambda: next(pieces, b"")):
        yield piece


async def remove(gateway: Gateway, principal: Principal, recording_id: str) -> None:
    """Remove a recording that is complete. Raises ``not_found``, and ``invalid_argument`` while the sandbox lives."""
    found = await describe(gateway, principal, recording_id)
    if found["ended_at"] is None and await _lives(gateway, principal, found["sandbox_id"], recording_id):
        raise HoldfastError("invalid_argument", f"the sandbox {found['sandbox_id']!r} is still recorded", hint="delete it first")
    files, name = _files(gateway), _name(principal, recording_id)
    await _on_thread(lambda: files.remove(name))


async def _lives(gateway: Gateway, principal: Principal, sandbox_id: str, recording_id: str) -> bool:
    try:
        record = await gateway.record(principal.owner, sandbox_id)
    except HoldfastError:
        return False
    return recording_id.endswith(f".{record.incarnation}")


def _name(principal: Principal, recording_id: str) -> str:
    try:
        return name_of(principal.owner, recording_id)
    except ValueError:
        raise _no_recording(recording_id) from None


def _no_recording(recording_id: str) -> HoldfastError:
    return HoldfastError("not_found", f"there is no recording {recording_id[:100]!r}", hint="GET /recordings lists yours")


async def _on_thread(work: Any) -> Any:
    """Raises ``internal`` when the store does not answer."""
    try:
        return await asyncio.to_thread(work)
    except OSError as error:
        raise HoldfastError("internal", f"the store of recordings does not answer: {error.strerror or type(error).__name__}") from None
