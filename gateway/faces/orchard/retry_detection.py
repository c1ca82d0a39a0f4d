"""Retry detection: recognises an exec that is posted again, by clients that do so after any error and send no idempotency key.

Owns a bounded memory of recent execs on this replica. An identical exec is a retry when the client of the first disconnected before its
answer was sent, or when the first asked to wait and the second does not (the fallback of Orchard Env's SDK) while the first runs or was
answered at most ten seconds ago. Limits: this replica only, the last 4 096 execs, one minute; a client that needs certainty sends
``Idempotency-Key``. Two clients that run the same command concurrently are never merged.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gateway.http.request_fields import canonical
from gateway.model.records import Record
from gateway.use_cases.command_ids import new_command_id

_MOST = 4096
_ORPHANED_S = 60.0
_ANSWERED_S = 10.0


@dataclass(slots=True, eq=False)
class PostedExec:
    """One posted exec."""

    command_id: str
    waits: bool
    connected: Callable[[], bool] | None
    """Whether its client is still connected; None once it was answered."""
    orphaned: bool = False
    ended_at: float = 0.0

    def answered(self, connected: bool) -> None:
        """Its answer is being sent, to a client that is still ``connected`` or not."""
        self.connected = None
        self.orphaned = not connected
        self.ended_at = time.monotonic()


class RetryDetection:
    """See the module."""

    def __init__(self) -> None:
        self._posted: OrderedDict[bytes, list[PostedExec]] = OrderedDict()

    @contextlib.contextmanager
    def exec_id(self, record: Record, body: dict[str, Any], waits: bool, connected: Callable[[], bool]) -> Iterator[str]:
        """See ``use_cases.service.CommandIds``."""
        fingerprint = _fingerprint(record, body)
        posted = PostedExec(self.find(fingerprint, waits) or new_command_id(), waits, connected)
        self.note(fingerprint, posted)
        try:
            yield posted.command_id
        finally:
            posted.answered(connected())

    def find(self, fingerprint: bytes, waits: bool) -> str | None:
        """The command id of an earlier post of the same exec, to be joined; each is joined once."""
        now = time.monotonic()
        for posted in list(self._posted.get(fingerprint, ())):
            if posted.connected is not None:
                same = (posted.waits and not waits) or not posted.connected()
            else:
                fallback = posted.waits and not waits and now - posted.ended_at < _ANSWERED_S
                same = fallback or (posted.orphaned and now - posted.ended_at < _ORPHANED_S)
            if same:
                self._posted[fingerprint].remove(posted)
                return posted.command_id
        return None

    def note(self, fingerprint: bytes, posted: PostedExec) -> None:
        self._posted.setdefault(fingerprint, []).append(posted)
        self._posted.move_to_end(fingerprint)
        if len(self._posted[fingerprint]) > 64:
            del self._posted[fingerprint][0]
        while len(self._posted) > _MOST:
            self._posted.popitem(last=False)


def _fingerprint(record: Record, body: dict[str, Any]) -> bytes:
    same = {name: value for name, value in body.items() if name != "wait" and value is not None}
    return hashlib.sha256(canonical({"for": [record.owner, record.sandbox_id, record.incarnation], "same": same})).digest()
