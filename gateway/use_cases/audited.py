"""Commands of sessions in the audit log: what the agents of sandboxes with attached sessions report.

Owns which sandboxes this replica follows for that: those to which it has attached a session, each once, from before the first session to
after the last. The gateway decodes no session (decision 0009), so the entries are the agent's claims, and name the owner and not the key;
the entries of the attaches name the keys. Does nothing unless there is an audit log. Called by the faces that attach.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast_wire.errors import HoldfastError

from gateway.agents.activity_channels import ENDED, ActivityChannel
from gateway.audit.lines import command_facts, masked
from gateway.identity.principal import Principal, member_of, project_of
from gateway.model.records import Record

from .agent_reports import note_command
from .service import Gateway

_BEGIN_S: Final = 5.0
"""How long an attach waits until the sandbox is followed."""
_LINGER_S: Final = 2.0
"""How long a sandbox is followed after its last session has left: what it did last is reported within this time."""
_KINDS: Final = frozenset({"command_started", "command_ended", "files_written"})


@dataclass(slots=True)
class Followed:
    """One sandbox that is followed."""

    task: asyncio.Task[Any] | None = None
    sessions: int = 0
    opened: asyncio.Event = field(default_factory=asyncio.Event)


@contextlib.asynccontextmanager
async def following(gateway: Gateway, principal: Principal, name: str) -> AsyncIterator[None]:
    """Follow the sandbox as long as the block lasts, if there is an audit log. An attach that cannot find it states the reason itself."""
    record = None
    if gateway.audit.is_on:
        with contextlib.suppress(HoldfastError):
            record = await gateway.ready(principal.owner, name)
    if record is None:
        yield
        return
    key = (record.sandbox_id, record.incarnation)
    followed: Followed = gateway.audited.setdefault(key, Followed())
    followed.sessions += 1
    if followed.task is None:
        followed.task = gateway.background.start(_follow(gateway, record, followed), f"audit of {record.sandbox_id}")
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_BEGIN_S):
                await followed.opened.wait()
        yield
    finally:
        followed.sessions -= 1
        if not followed.sessions:
            gateway.background.start(_leave(gateway, key, followed), f"end of the audit of {record.sandbox_id}")


async def _leave(gateway: Gateway, key: tuple[str, str], followed: Followed) -> None:
    await asyncio.sleep(_LINGER_S)
    if not followed.sessions and gateway.audited.get(key) is followed:
        del gateway.audited[key]
        if followed.task is not None:
            followed.task.cancel()


async def _follow(gateway: Gateway, record: Record, followed: Followed) -> None:
    channel = ActivityChannel(
        gateway.agents,
        lambda: gateway.ready(record.owner, record.name),
        incarnation=record.incarnation,
        opened=followed.opened.set,
    )
    about = {"owner": member_of(record.owner), "project": project_of(record.owner), "sandbox": record.name, "claimed": True}
    try:
        async for facts in channel.facts():
            for fact in facts:
                if fact["type"] == "command_ended":
                    note_command(gateway.metrics, "session", fact)
                elif fact["type"] == "gap":
                    gateway.metrics.count("gaps_total", where="journal")
                if fact["type"] in _KINDS or fact["type"] == "gap":
                    gateway.audit.add({"event": fact["type"], **about, **_shown(fact)})
    except HoldfastError as error:
        if error.code not in ENDED:
            raise
    finally:
        followed.opened.set()


def _shown(fact: dict[str, Any]) -> dict[str, Any]:
    kept = ("kind", "shell", "exit_code", "signal", "reason", "duration_s", "operation", "path", "size", "success", "lost")
    found = {name: fact[name] for name in kept if name in fact}
    if "id" in fact:
        found["command_id"] = fact["id"]
    if fact["type"] == "command_started":
        found |= command_facts(fact.get("command") or fact.get("line") or "")
    if "path" in found:
        found["path"] = masked(str(found["path"]))
    return found
