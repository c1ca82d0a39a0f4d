"""The channel kind ``history``: the last commands of the sandbox, those that run included.

Owns the order, and how much of each command's output can still be read. ``output.history`` remembers the commands that have ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgpack

from session_agent.agent.context import AgentContext
from session_agent.agent.files.transfers import Outgoing, Source, joined
from session_agent.agent.output.history import described
from session_agent.agent.session.channels import Channel, Handler


def open_history(context: AgentContext, channel: Channel) -> Handler:
    """``history {}``: Opened{commands}, so many packed maps, the oldest first, and Closed{}."""
    return Outgoing(channel, _source(list(_rows(context))), "history", context)


def _rows(context: AgentContext) -> Iterator[dict[str, Any]]:
    records = context.records
    for entry in records.history:
        yield entry | {"held_bytes": records.held_bytes(entry["id"])}
    running = [record for record in records.running() if record.kind]
    running += [terminal.record for terminal in context.terminals.values()]
    for record in running:
        yield described(record) | {"held_bytes": record.spool.held_bytes}


def _source(rows: list[dict[str, Any]]) -> Source:
    yield {"commands": len(rows)}
    yield from joined(msgpack.packb(row, unicode_errors="replace") for row in rows)
    return {}
