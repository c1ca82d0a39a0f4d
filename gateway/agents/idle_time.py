"""How long a sandbox has been idle, asked of its agent: the only one that knows what runs there.

Owns the asking, which opens no session, and what an agent that does not answer is taken for. Called by the controller before it ends a
sandbox whose idle limit is over by what placement knows: use over REST, attaching, and what an earlier question answered.
"""

from __future__ import annotations

import time
from typing import Final

from gateway.model.records import Record

from .dial import DialError, dial

_ASK_S: Final = 2.0
_PATIENCE_S: Final = 60.0
"""How long the end of a sandbox waits for an agent that does not answer: it may be busy with the very work that keeps the sandbox."""


class AgentIdleTime:
    """See the module. ``secrets``: the deployment's own, and those it is rotated from or to."""

    def __init__(self, secrets: tuple[str, ...]) -> None:
        self._secrets = secrets

    async def __call__(self, record: Record) -> float | None:
        """For how many seconds it has been idle; None where its agent never will say. Raises ``DialError`` while it may still answer."""
        try:
            dialled = await dial(record.endpoint, self._secrets, record.sandbox_id, record.incarnation, _ASK_S)
        except DialError:
            if record.expires_at is not None and time.time() - record.expires_at > _PATIENCE_S:
                return None
            raise
        dialled.transport.abort()
        return dialled.idle_s
