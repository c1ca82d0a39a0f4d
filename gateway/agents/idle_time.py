"""The idle time of a sandbox, queried from its agent: only the agent sees what runs there.

Owns the query, which opens no session, and how an agent that does not answer is treated. Called by the controller before it ends a
sandbox whose idle limit has passed by placement's knowledge: use over REST, attaches, and earlier queries.
"""

from __future__ import annotations

import time
from typing import Final

from gateway.model.records import Record

from .dial import DialError, dial

_ASK_S: Final = 2.0
_PATIENCE_S: Final = 60.0
"""How long the end of a sandbox is delayed for an agent that does not answer: the work that keeps it busy may be a reason to wait."""


class AgentIdleTime:
    """``secrets``: the deployment's own, and those accepted during a rotation."""

    def __init__(self, secrets: tuple[str, ...]) -> None:
        self._secrets = secrets

    async def __call__(self, record: Record) -> float | None:
        """For how many seconds it has been idle; None where its agent will not answer any more. Raises ``DialError`` while it may."""
        try:
            dialled = await dial(record.endpoint, self._secrets, record.sandbox_id, record.incarnation, _ASK_S)
        except DialError:
            if record.expires_at is not None and time.time() - record.expires_at > _PATIENCE_S:
                return None
            raise
        dialled.transport.abort()
        return dialled.idle_s
