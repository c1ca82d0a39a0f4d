"""The errors of commands and requests that had not finished when their session or connection ended.

Pure, and independent of the protocol, because REST uses it too.
"""

from __future__ import annotations

from typing import Any

from holdfast_wire.agent_errors import ENDED
from holdfast_wire.errors import HoldfastError

from holdfast._errors import error, typed

GONE = ENDED
"""Codes of the service's answers that state the end of a sandbox."""
LAST_LOOK_S = 10.0
"""How long to query the service for the end of a sandbox that only its agent has reported."""
OWN_REASONS = frozenset({"closed", "paused", "reset"})
"""Reasons that the caller caused: the session ended because of a request of this client."""
_PASSED_ON_CODES = frozenset({"session_fenced", "session_forbidden", "key_invalid", "key_missing", "sandbox_paused"})


def lost_command(why: HoldfastError, command_id: str, facts: dict[str, Any]) -> HoldfastError:
    """The error for a command whose session ended with ``why``."""
    if why.code in GONE:
        message = f"the sandbox was lost while command {command_id} was under way: {why.message}"
        return error("sandbox_gone", message, reason=why.reason or "unknown", fault=why.fault, detail={**why.detail, **facts})
    if facts["started"] is False or why.code in _PASSED_ON_CODES or why.reason in OWN_REASONS:
        return typed(why, **facts)
    message = f"the outcome of command {command_id} cannot be known: {why.message}"
    # Only the connection is lost: the agent has the outcome or will have it.
    hint = f"sandbox.follow({command_id!r}) returns its outcome, once the service answers" if "waited_s" in why.detail else None
    return error("outcome_unknown", message, reason=why.reason or why.code, fault=why.fault, detail=facts, hint=hint)


def overdue(limit_s: float, facts: dict[str, Any]) -> HoldfastError:
    """The error for a command whose end the agent should have reported by now."""
    message = f"the sandbox's agent has not reported the end of command {facts['command_id']} after its time limit of {limit_s:g} s"
    return error("outcome_unknown", message, reason="no-answer", fault="workload", detail=facts)


def given_up(why: HoldfastError, what: str, again: str, facts: dict[str, Any]) -> HoldfastError:
    """The error for an object whose session was given up because of ``why``: it cannot be used any more, and ``again`` creates another."""
    return error(
        "session_lost",
        f"the service did not answer for {why.detail.get('waited_s', 0):g} s, and the session of {what} was given up: {why.message}",
        hint=f"{what} may still exist: call {again} once the service answers",
        reason=why.code,
        fault=why.fault,
        retryable=False,
        detail={**why.detail, **facts},
    )
