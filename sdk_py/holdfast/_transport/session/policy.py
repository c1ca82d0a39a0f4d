"""Decides, after a refusal, a close or a broken connection, when to try again or with which error to give up.

Pure. Owns the reading of HTTP refusals and close codes and the delays of reconnecting (exponential, capped, full jitter).
Called by ``engine``; the same reading of problem documents serves REST requests.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from holdfast_wire.agent_errors import ENDED, SERVICE_CODES, reported_error
from holdfast_wire.errors import TABLE, HoldfastError
from holdfast_wire.fast_dataclass import dataclass

from holdfast._errors import error, from_map, typed
from holdfast._transport.session.failures import OWN_REASONS

if TYPE_CHECKING:
    from holdfast._transport.session.websocket import CloseInfo, Refusal

RESUMABLE_CLOSES = frozenset({1000, 1001, 1005, 1006, 1011, 1012, 1013, 1014, 1015})
BALANCER_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
_CLOSE_CODES = {kind.close_code: kind.code for kind in reversed(TABLE.values()) if kind.close_code >= 4000}
RETRY_AFTER_MAX_S = 60.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What follows from the end of a connection.

    ``fatal`` ends the session; without it, try again, not before ``retry_after_s``. ``not_holdfast``: no Holdfast service answered.
    ``answered``: there was an answer, so another attempt would probably get the same.
    """

    why: HoldfastError
    fatal: bool
    retry_after_s: float = 0.0
    not_holdfast: bool = False
    answered: bool = True


def problem(headers: Mapping[str, str], body: bytes) -> HoldfastError | None:
    """The error in a problem document; None if ``body`` is not a problem document of this service."""
    if "json" not in headers.get("content-type", ""):
        return None
    import json  # imported here, as in other modules of this package, so that a short command without this need starts sooner

    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return from_problem(document) if isinstance(document, dict) and document.get("code") in TABLE else None


def from_problem(document: dict[str, Any]) -> HoldfastError:
    """The error that a problem document states."""
    detail = document.get("detail")
    facts = document.get("context")
    return from_map(
        {
            **document,
            "message": detail if isinstance(detail, str) else document.get("title"),
            "detail": facts if isinstance(facts, dict) else None,
        }
    )


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds of a ``Retry-After`` header, 0.0 without a usable one."""
    try:
        return min(max(float(headers.get("retry-after", "")), 0.0), RETRY_AFTER_MAX_S)
    except ValueError:
        return 0.0


def judge_refusal(refusal: Refusal, *, attached_before: bool) -> Verdict:
    """What to do after the service's answer to a handshake."""
    known = problem(refusal.headers, refusal.body)
    if known is not None:
        if attached_before and known.code == "sandbox_not_found":
            known = error("sandbox_gone", "the sandbox is gone and its record has expired", reason="unknown")
        return Verdict(known, fatal=not known.retryable, retry_after_s=retry_after(refusal.headers))
    if refusal.status == 0:
        hint = "check the URL, and that the service runs; if a proxy blocks WebSockets, transport='rest' works without them"
        why = error("agent_unreachable", "the connection ended before the WebSocket handshake was answered", hint=hint)
        return Verdict(why, fatal=False, not_holdfast=True, answered=False)
    why = error(
        "agent_unreachable",
        f"the service answered HTTP {refusal.status} to the WebSocket handshake",
        hint="a proxy may block WebSockets; transport='rest' works without them",
    )
    return Verdict(why, fatal=False, retry_after_s=retry_after(refusal.headers), not_holdfast=refusal.status not in BALANCER_STATUSES)


def judge_close(closed: CloseInfo, *, attached_before: bool) -> Verdict:
    """What to do after the end of an open connection. The close may come from the sandbox's agent, and so decides nothing that only the
    service may decide: a close that states the end of the sandbox leads to another attempt, whose answer comes from the record."""
    code, reason, message = _read_close(closed)
    text = f"the connection was closed with code {closed.code}{f' ({code})' if code else ''}{f': {message}' if message else ''}"
    if closed.code in RESUMABLE_CLOSES or code in ENDED or (code is not None and TABLE[code].retryable):
        return Verdict(error("agent_unreachable", text, hint="", fault="workload"), fatal=False)
    known = code is not None and code not in SERVICE_CODES
    why = reported_error({"code": code if known else "protocol_error", "message": text, "reason": reason})
    if not known or why.code == "protocol_error":
        why = breach(text)
    return Verdict(typed(why), fatal=not why.retryable)


def reports_end(closed: CloseInfo) -> bool:
    """Whether the close states that the sandbox has ended."""
    return _read_close(closed)[0] in ENDED


def breach(text: str, code: str = "protocol_error") -> HoldfastError:
    """The error for an agent that broke the protocol."""
    why = error(code, text)
    why.fault = "workload"
    return why


def _read_close(closed: CloseInfo) -> tuple[str | None, str | None, str]:
    """Error code, reason and message of a close (PROTOCOL §1.5).

    If the text has no error code, the first error with this close code is assumed.
    """
    code, _, message = closed.reason.partition(": ")
    if code not in TABLE or TABLE[code].close_code != closed.code:
        return _CLOSE_CODES.get(closed.code), None, ""
    word, colon, rest = message.partition(": ")
    if colon and word.replace("-", "").isalnum() and word not in OWN_REASONS:  # these are decisions of this client
        return code, word, rest
    return code, None, message


def jitter(most_s: float) -> float:
    """A random time up to ``most_s``. Not of the library ``random``, which takes longer to import and may be seeded by the program."""
    return most_s * int.from_bytes(os.urandom(4), "big") / 2**32


class Backoff:
    """Delays between attempts, in seconds: full jitter below an exponential, capped limit; the first delay is very short."""

    def __init__(self, base_s: float, cap_s: float, jitter: Callable[[float], float] = jitter) -> None:
        self._base_s = base_s
        self._cap_s = cap_s
        self._jitter = jitter
        self.attempts = 0

    def delay_s(self, at_least_s: float = 0.0) -> float:
        """The next delay. ``at_least_s``: the delay that the service asked for; jitter is added to it."""
        ceiling = min(self._cap_s, self._base_s * 2 ** min(self.attempts, 30))
        self.attempts += 1
        return at_least_s + self._jitter(ceiling)

    def reset(self) -> None:
        """An attempt succeeded: the next delay is the shortest again."""
        self.attempts = 0
