"""The outcome of a create: waiting until a record is ready or failed, and the error of one that failed.

Owns how often the store is asked. Called by ``create``, and by ``describe`` for a request that waits.
"""

from __future__ import annotations

import asyncio
from typing import Final

from holdfast_wire.errors import HoldfastError

from gateway.model.records import Cause, Record

from .service import EndedError, Gateway

_POLL_LEAST_S: Final = 0.02
_POLL_MOST_S: Final = 0.5


async def wait_until_settled(gateway: Gateway, owner: str, name: str, timeout_s: float, incarnation: str = "") -> Record:
    """The record once it is ready or failed; with ``incarnation``, of that one only.

    Raises ``wait_timeout``, ``sandbox_gone`` and ``sandbox_not_found``.
    """
    pause_s = _POLL_LEAST_S
    clock = asyncio.get_running_loop().time
    end = clock() + timeout_s
    while True:
        record = await gateway.record(owner, name)
        if incarnation not in ("", record.incarnation):
            message = f"sandbox {name!r} was deleted during its creation"
            raise EndedError("sandbox_gone", message, fault="caller", reason="deleted")
        if record.status != "pending":
            return record
        left = end - clock()
        if left <= 0:
            raise HoldfastError("wait_timeout", f"sandbox {name!r} is still being created")
        await asyncio.sleep(min(pause_s, left))
        pause_s = min(pause_s * 1.5, _POLL_MOST_S)


def failure(record: Record) -> HoldfastError:
    """The error of a failed sandbox."""
    cause = record.cause or Cause("unknown", "infrastructure")
    message = f"sandbox {record.name!r} has failed: {cause.message or cause.reason}"
    if cause.reason == "image-pull":  # the fault distinguishes a missing image from a registry that does not answer
        code = "image_not_found" if cause.fault == "caller" else "image_pull_failed"
        return HoldfastError(code, cause.message or message, fault=cause.fault, reason=cause.reason, retryable=False)  # it stays failed
    if cause.reason in ("timeout", "ready-timeout"):
        return HoldfastError("create_timeout", message, fault=cause.fault, reason=cause.reason)
    code = cause.reason.replace("-", "_")
    if code in ("image_not_found", "unsupported", "invalid_argument"):
        return HoldfastError(code, cause.message or message)
    return HoldfastError("sandbox_failed", message, fault=cause.fault, reason=cause.reason)
