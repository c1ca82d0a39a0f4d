"""The parts of REST requests that both APIs share: answers, failures, and whether an idle connection can still be used.

Pure. ``_async.http`` owns the connections, ``_async.rest`` the routes, ``retry`` when to send again.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Mapping
from typing import Any

from holdfast_wire.errors import TABLE, HoldfastError
from holdfast_wire.fast_dataclass import dataclass

from holdfast._errors import ServiceError, ServiceUnavailableError, error
from holdfast._options import Options
from holdfast._transport.proxies import ADVICE, ProxyError
from holdfast._transport.session.policy import BALANCER_STATUSES, problem, retry_after

_PROBES = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *[(socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in _PROBES if hasattr(socket, name)],
]
"""Socket options by which the loss of the service's machine is noticed after 25 s: an answer may take as long as a command runs."""
RESET = (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
"""The socket option by which closing a connection resets it."""
KEPT = 20
"""Most idle connections that are kept. Connections in use are not limited: a create may wait an hour, and must not delay heartbeats."""

KEPT_S = 5.0
"""How long an idle connection is kept; many servers close idle connections after about this time."""

_BY_STATUS = {
    TABLE[code].status: code
    for code in ("key_missing", "key_invalid", "not_found", "wait_timeout", "request_too_large", "invalid_argument")
}


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def map(self) -> dict[str, Any]:
        """The JSON object in the body. Raises ``ServiceError`` if it is not an object."""
        import json

        try:
            value = json.loads(self.body) if self.body else {}
        except (ValueError, RecursionError):
            raise ServiceError("internal", f"the service answered HTTP {self.status} without JSON", hint=_NOT_HOLDFAST) from None
        if not isinstance(value, dict):
            raise ServiceError("internal", f"the service answered HTTP {self.status} with JSON that is not an object", hint=_NOT_HOLDFAST)
        return value


_SILENT = "it accepted the connection: it may be overloaded or restarting, so try again later"
_NOT_HOLDFAST = "is this the address of a Holdfast service?"


class UnreachableError(ServiceUnavailableError):
    """There was no answer. ``reached``: the request may have been read before the connection broke. ``public`` is what callers get."""

    reached = False

    def public(self) -> ServiceUnavailableError:
        """The same error without the class of this module, whose name a traceback would show."""
        return ServiceUnavailableError(self.code, self.message, hint=self.hint)


class LocalFailureError(Exception):
    """What was to be sent could not be read here."""

    def __init__(self, why: OSError) -> None:
        super().__init__()
        self.why = why


def no_answer(failure: Exception, options: Options, timeout_s: float, *, reached: bool) -> Exception:
    """The error of a request that ``failure`` left without an answer."""
    if isinstance(failure, LocalFailureError):
        return failure.why
    why = getattr(failure, "verify_message", None) or getattr(failure, "strerror", None) or str(failure) or type(failure).__name__
    if isinstance(failure, TimeoutError):
        why = f"no answer within {timeout_s:g} s" if reached else f"no connection within {options.connect_timeout_s:g} s"
    hint = ADVICE if isinstance(failure, ProxyError) else _SILENT if reached else None
    lost = UnreachableError("service_unreachable", f"cannot reach {options.url}: {why}", hint=hint)
    lost.reached = reached
    return lost


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request failed, and whether the same one may succeed after ``after_s`` seconds."""

    why: HoldfastError
    again: bool
    after_s: float = 0.0
    reached: bool = False
    """Whether the service may have acted on the request nevertheless."""


def is_readable(descriptor: int) -> bool:
    """Whether an idle connection has unexpected bytes, usually its end."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def judge_answer(answer: Answer) -> Failure | None:
    """The failure that an answer reports; None for a successful one."""
    if answer.status < 400:
        return None
    known = problem(answer.headers, answer.body)
    again = answer.status in BALANCER_STATUSES and answer.status not in (408, 500)
    after_s = retry_after(answer.headers)
    if known is not None:
        return Failure(known, again and known.retryable, after_s, reached=known.code in ("outcome_unknown", "internal", "wait_timeout"))
    if again:
        why: HoldfastError = ServiceUnavailableError("runtime_unavailable", f"the service answered HTTP {answer.status}")
    else:
        code = _BY_STATUS.get(answer.status, "internal")
        why = error(code, f"the service answered HTTP {answer.status}", **({"hint": _NOT_HOLDFAST} if code == "not_found" else {}))
    return Failure(why, again, after_s, reached=answer.status in (500, 502, 504))  # a proxy may have lost the answer
