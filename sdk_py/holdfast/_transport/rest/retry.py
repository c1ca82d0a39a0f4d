"""When a REST request is sent again: one rule, with different limits for plain requests, creates and commands.

Pure: time is an argument. ``_async.rest`` sends the requests.
"""

from __future__ import annotations

import time

from holdfast._options import Options
from holdfast._transport.rest.answer import Effect, Failure, UnreachableError
from holdfast._transport.session.policy import Backoff

MARGIN_S = 15.0
"""How much longer than the service's own limit a client waits for an answer."""
ATTEMPTS = 4
BASE_S = 0.2
CAP_S = 5.0
RESTART_S = 30.0
"""How long a service that has answered before may be unreachable: about as long as a restart takes."""
HOLD_S = 60.0
"""Longest time for one answer while a sandbox is made: another replica may answer where this one hangs."""
ARRIVED_S = 10.0
"""After so long a wait the request had reached the service, and a load balancer's time limit ended it."""


class Retry:
    """The attempts of one request. Made by ``few``, ``until`` or ``resuming``."""

    def __init__(self, backoff: Backoff, options: Options) -> None:
        self.body: dict[str, object] | None = None
        """The body of the attempts that follow, where it is another than the first."""
        self._backoff = backoff
        self._began = time.monotonic()
        self._restart_end = self._began + min(RESTART_S, options.resume_timeout_s)
        self._idempotent = True
        self._end: float | None = None
        self._effect: Effect | None = None
        self._later: dict[str, object] | None = None
        self._failures = 0

    @classmethod
    def few(cls, options: Options, idempotent: bool) -> Retry:
        """Four attempts, and more while a service that has answered before restarts."""
        retry = cls(Backoff(BASE_S, CAP_S), options)
        retry._idempotent = idempotent
        return retry

    @classmethod
    def until(cls, options: Options, end: float) -> Retry:
        """As ``few``, but while the service answers "later" until ``end``."""
        retry = cls(Backoff(BASE_S, CAP_S), options)
        retry._end = end
        return retry

    @classmethod
    def resuming(cls, options: Options, effect: Effect, later: dict[str, object] | None) -> Retry:
        """Until ``resume_timeout_s`` have passed, where the service recognises the request."""
        retry = cls(Backoff(options.backoff_base_s, options.backoff_cap_s), options)
        retry._idempotent, retry._effect, retry._later = effect.known_again, effect, later
        retry._end = retry._began + options.resume_timeout_s
        return retry

    def attempt_s(self, limit_s: float, now: float) -> float:
        """How long the next attempt may wait for its answer."""
        if self._end is None or self._effect is not None:
            return limit_s
        return min(max(self._end - now, 0.0) + MARGIN_S, HOLD_S)

    def pause_s(self, failure: Failure, sent: float, now: float, *, restarting: bool) -> float | None:
        """Seconds until the next attempt, None when there is none. ``restarting``: the service has answered before."""
        effect, end = self._effect, self._end
        again = failure.again
        if effect is not None:
            effect.note(failure)
            again = again or failure.why.code == "outcome_unknown"
            self.body = self._later if effect.reached else None
        if not (self._idempotent and again):
            return None
        if effect is not None and end is not None:
            return min(self._backoff.delay_s(failure.after_s), end - now) if now < end else None
        if end is not None and now - sent >= ARRIVED_S:
            self._failures = 0
        elif end is None or failure.after_s <= 0:
            self._failures += 1
        away = restarting and isinstance(failure.why, UnreachableError) and now < self._restart_end
        if self._failures >= ATTEMPTS and not away:
            return None
        pause_s = self._backoff.delay_s(failure.after_s)
        return pause_s if end is None or now + pause_s < end else None
