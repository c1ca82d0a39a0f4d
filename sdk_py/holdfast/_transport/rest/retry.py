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
    """The attempts of one request: four, and more while a service that has answered before restarts.

    ``end``: until this time it also tries again while the service answers "later". ``effect``: what a repeated request does; one that the
    service recognises is tried for ``resume_timeout_s`` instead. ``later``: the body to send once an earlier attempt may have arrived.
    """

    def __init__(
        self,
        options: Options,
        *,
        idempotent: bool = True,
        end: float | None = None,
        effect: Effect | None = None,
        later: dict[str, object] | None = None,
    ) -> None:
        self.body: dict[str, object] | None = None
        """The body of the attempts that follow, where it is another than the first."""
        began = time.monotonic()
        self._backoff = Backoff(BASE_S, CAP_S) if effect is None else Backoff(options.backoff_base_s, options.backoff_cap_s)
        self._restart_end = began + min(RESTART_S, options.resume_timeout_s)
        self._idempotent = idempotent if effect is None else effect.known_again
        self._end = end if effect is None else began + options.resume_timeout_s
        self._effect = effect
        self._later = later
        self._failures = 0

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
