"""Decides when a REST request is sent again: one rule, with different limits for plain requests, creates and commands.

Pure: time is an argument. ``_async.rest`` sends the requests.
"""

from __future__ import annotations

import time
from typing import Any

from holdfast._options import Options
from holdfast._transport.rest.answer import Failure
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
"""After a wait of this length the request has reached the service, and the failure is a load balancer's time limit."""


class Retry:
    """The attempts of one request: four, and more while a service that has answered before restarts.

    ``end``: until this time the request is also repeated while the service asks to retry later. ``resumes``: the service recognises a
    repeated request, so it is repeated until ``resume_timeout_s`` have passed, as a session would resume; all requests about one command
    share this object.
    """

    def __init__(self, options: Options, *, idempotent: bool = True, end: float | None = None, resumes: bool = False) -> None:
        self.reached = False
        """Whether a request may have taken effect."""
        self.started = False
        """Whether the service reported that the command had started."""
        self._options = options
        self._idempotent = idempotent
        self._end = end
        self._resumes = resumes
        self.begin()

    def begin(self) -> None:
        """The first attempt of a request is about to be sent."""
        options, now = self._options, time.monotonic()
        self._backoff = Backoff(options.backoff_base_s, options.backoff_cap_s) if self._resumes else Backoff(BASE_S, CAP_S)
        self._restart_end = now + min(RESTART_S, options.resume_timeout_s)
        self._resume_end = now + options.resume_timeout_s
        self._failures = 0

    def attempt_s(self, limit_s: float, now: float) -> float:
        """How long the next attempt may wait for its answer."""
        return limit_s if self._end is None else min(max(self._end - now, 0.0) + MARGIN_S, HOLD_S)

    def pause_s(self, failure: Failure, sent: float, now: float, *, restarting: bool) -> float | None:
        """Seconds until the next attempt; None if the request is not repeated. ``restarting``: the service has answered before."""
        detail, end = failure.why.detail, self._end
        self.reached |= failure.reached or "started" in detail
        self.started |= detail.get("started") is True
        if self._resumes and (failure.again or failure.why.code == "outcome_unknown"):
            return min(self._backoff.delay_s(failure.after_s), self._resume_end - now) if now < self._resume_end else None
        if self._resumes or not (self._idempotent and failure.again):
            return None
        if end is not None and now - sent >= ARRIVED_S:
            self._failures = 0
        elif end is None or failure.after_s <= 0:
            self._failures += 1
        away = restarting and failure.why.code == "service_unreachable" and now < self._restart_end
        if self._failures >= ATTEMPTS and not away:
            return None
        pause_s = self._backoff.delay_s(failure.after_s)
        return pause_s if end is None or now + pause_s < end else None

    def facts(self, command_id: str) -> dict[str, Any]:
        """What is known about the requested command (as ``Call.facts``)."""
        unknown = None if self.reached else False
        known = True if self.started else unknown
        return {"command_id": command_id, "accepted": known, "started": known}
