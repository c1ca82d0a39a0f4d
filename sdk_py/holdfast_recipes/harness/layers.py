"""Runs an action under one layer of limits: a time limit for each try, a pause between tries, and a typed fault after the last.

Owns waiting and the cause of a failure. The numbers are in ``limits``. The caller decides which errors may be tried again, because only an
action that certainly had no effect may be repeated. Time is that of the running loop, so that tests need not wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from holdfast import (
    AuthenticationError,
    ConfigurationError,
    HoldfastError,
    InvalidArgumentError,
    NotFoundError,
    SandboxLostError,
    UnsupportedError,
)

from holdfast_recipes.core.scored import Blame

from .limits import Layer, Limit

T = TypeVar("T")

MOST_ASKED_S = 60.0
"""The longest pause that an endpoint's Retry-After is followed for."""


class FaultError(Exception):
    """A rollout cannot go on, or a layer has used up its tries. Raised inside a rollout; outside, it is a value (``blame``, ``reason``).

    ``oom``: the sandbox ran out of memory, the only fault after which the next try gets more.
    """

    def __init__(self, layer: Layer, blame: Blame, reason: str, message: str = "", *, oom: bool = False) -> None:
        super().__init__(f"{layer}: {reason}: {message}" if message else f"{layer}: {reason}")
        self.layer, self.blame, self.reason, self.message, self.oom = layer, blame, reason, message, oom


async def attempt(
    layer: Layer,
    limit: Limit,
    action: Callable[[], Awaitable[T]],
    *,
    draw: random.Random,
    again: Callable[[Exception], bool] = lambda error: True,
    before_s: Callable[[], float] = lambda: 0.0,
    gate: Callable[[], AbstractAsyncContextManager[None]] = contextlib.nullcontext,
) -> T:
    """The result of ``action``, which is called once for each try and cancelled when the time of that try is over.

    ``again`` decides which errors may be tried again; a time-out always may. ``before_s`` gives seconds to wait before
    each try, beside the pause after a failure; ``gate`` is entered for each try before its time begins. Raises FaultError when the tries
    are used up.
    """
    failed = 0
    while True:
        if (wait_s := before_s()) > 0:
            await asyncio.sleep(wait_s)
        try:
            async with gate():
                return await timed(layer, limit.timeout_s, action())
        except FaultError as fault:
            cause, final = fault, fault.reason != f"{layer}_timeout"
        except Exception as error:  # noqa: BLE001  sorted by `again`; what is raised in the end names it
            cause, final = fault_of(layer, error), not again(error)
            cause.__cause__ = error
        failed += 1
        pause_s = None if final else limit.pause_s(failed, draw)
        if pause_s is None:
            raise cause
        asked_s = getattr(cause.__cause__, "retry_after_s", None) or 0.0
        await asyncio.sleep(max(pause_s, min(asked_s, MOST_ASKED_S)))


async def timed(layer: Layer, timeout_s: float, action: Awaitable[T]) -> T:
    """The result of one try. Raises FaultError with the reason ``<layer>_timeout`` when the time is over, and what the try raises."""
    try:
        async with asyncio.timeout(timeout_s) as scope:
            return await action
    except TimeoutError:
        if scope.expired():
            raise FaultError(layer, Blame.INFRASTRUCTURE, f"{layer}_timeout", f"after {timeout_s:g} s") from None
        raise


async def completed(action: Coroutine[Any, Any, T]) -> T:
    """The result of what must run to its end, such as a deletion: a cancellation waits for that, and is then raised."""
    running = asyncio.ensure_future(action)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        if not running.cancelled():
            running.exception()
        raise


def fault_of(layer: Layer, error: Exception) -> FaultError:
    """The FaultError for an exception. An exception that is not Holdfast's is a defect in a recipe, not a fault of the policy."""
    if isinstance(error, FaultError):
        return error
    if not isinstance(error, HoldfastError):
        return FaultError(layer, Blame.INFRASTRUCTURE, type(error).__name__, str(error)[:300])
    oom = isinstance(error, SandboxLostError) and error.reason == "oom"
    blame = Blame.WORKLOAD if error.fault == "workload" else Blame.INFRASTRUCTURE
    return FaultError(layer, blame, error.reason or error.code, error.message, oom=oom)


def may_create_again(error: Exception) -> bool:
    """Whether another creation could succeed: not where the request itself is wrong or refused. Nothing runs in a sandbox yet, so a
    creation can always be repeated without harm."""
    if isinstance(error, HoldfastError):
        wrong = (AuthenticationError, ConfigurationError, InvalidArgumentError, NotFoundError, UnsupportedError)
        return not isinstance(error, wrong)
    return isinstance(error, OSError)
