# Generated from ../_async by infra/scripts/generate_sync.py: edit that, then run `make generate`.
"""How long the SDK waits for an agent that is connected and does not answer.

Owns the limits of waits inside a session, and the errors when they have passed. The time without a connection has its own limit
(``resume_timeout_s``) and does not count, up to that limit. Code in a sandbox may control its agent: it may keep a session alive and never
answer, or break every connection. Used by ``running``, ``commands`` and ``transfers``.
"""

from __future__ import annotations

import time

from holdfast._errors import HoldfastError, error
from holdfast._transport.threads.driver import SessionDriver
from holdfast._transport.session.command_call import Call
from holdfast._transport.session.failures import overdue
from holdfast._transport.session.sink import AnyEvent
from holdfast._transport.session.sinks import ShellSink

STALLS = 10
"""A transfer may make no progress for this many times ``request_timeout_s``: an agent may have to search a large tree."""


class Patience:
    """A limit of ``limit_s`` seconds with a connection, from now on."""

    def __init__(self, driver: SessionDriver, limit_s: float) -> None:
        self._driver = driver
        self.limit_s = limit_s
        self.restart()

    def restart(self) -> None:
        """Begin again from now."""
        now = time.monotonic()
        self._end, self._away_s = now + self.limit_s, self._driver.engine.away_s(now)

    def left_s(self) -> float:
        """Seconds until the limit, 0.0 at the least."""
        now = time.monotonic()
        away_s = min(self._driver.engine.away_s(now) - self._away_s, self._driver.options.resume_timeout_s)
        return max(self._end + away_s - now, 0.0)

    def wait(self, event: AnyEvent) -> bool:
        """Wait until the event is set. Returns False if the limit has passed."""
        while not event.wait(self.left_s()):
            if self.left_s() <= 0.0:
                return False
        return True


def answered(driver: SessionDriver, event: AnyEvent, what: str, times: int = 1) -> None:
    """Wait for an answer, at most ``times`` times ``request_timeout_s``. Raises ``ServiceUnavailableError``."""
    patience = Patience(driver, driver.options.request_timeout_s * times)
    if not patience.wait(event):
        raise silent(f"the sandbox's agent has not answered {what} for {patience.limit_s:g} s")


def ended(driver: SessionDriver, call: Call) -> None:
    """Wait for the end of a command. The agent ends it at its time limit; if it does not report that, ``OutcomeUnknownError`` is raised."""
    if call.limit_s is None:
        call.changed.wait()
        return
    patience = Patience(driver, call.limit_s + driver.options.answer_timeout_s)
    while not patience.wait(call.changed):
        if not _waits_for_others(call):
            give_up(driver, call)
            return
        patience.restart()


def give_up(driver: SessionDriver, call: Call) -> None:
    """End the wait for a command whose end should have been reported by now."""
    driver.perform(call.cancel)
    driver.perform(call.finish, overdue(call.limit_s or 0.0, call.facts()))


def silent(message: str) -> HoldfastError:
    """The error for an agent that does not answer although it is connected."""
    hint = "what controls the agent may be stopped or overloaded: create a new sandbox"
    return error("agent_unreachable", message, reason="no-answer", fault="workload", retryable=False, hint=hint)


def _waits_for_others(call: Call) -> bool:
    """Whether the command is queued behind others of its shell, perhaps of another client."""
    sink = call.sink
    return isinstance(sink, ShellSink) and (sink.current is not call or (sink.shared and not call.started))
