"""The sessions of one client that wait to reconnect: the first one that succeeds wakes the others.

Owns which sessions wait, and the interval between their attempts after they are woken. Does not own when a session would try without this
(``_transport.policy``). The transports of both APIs register here while they pause; any thread may call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

APART_S = 0.001
"""Time between the attempts of sessions that are woken together, so that a thousand of them do not overload a restarted service."""


class Peers:
    """The waiting sessions, each by an object that identifies it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[object, Callable[[float], None]] = {}

    def wait(self, session: object, wake: Callable[[float], None]) -> None:
        """Register a waiting session. When another session is attached, ``wake`` is called once, with the seconds after which to try."""
        with self._lock:
            self._waiting[session] = wake

    def leave(self, session: object) -> None:
        """``session`` no longer waits."""
        with self._lock:
            self._waiting.pop(session, None)

    def through(self) -> None:
        """Wake all waiting sessions: one was attached, so the service answers again."""
        if not self._waiting:
            return
        with self._lock:
            woken, self._waiting = list(self._waiting.values()), {}
        for number, wake in enumerate(woken):
            wake(number * APART_S)
