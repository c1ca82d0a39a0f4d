"""One request to a sandbox's agent that is not a command: a channel from its Open to its Closed.

Owns its time limit, and the confirmation of an end that the agent reports. Called by ``files``, and for these two by ``execute``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import Closed, Failed, Output

from gateway.agents.agent_socket import AgentCallError, ReportedEndError
from gateway.model.records import Record

from .activity import in_use
from .agent_reports import fact_error
from .service import Gateway

CALL_S: Final = 30.0
"""Time limit of a request that is not a command."""
REASON_S: Final = 5.0
"""How long to wait for the reason of an agent's end: the runtime reports it within moments, and the controller records it."""
REASON_POLL_S: Final = 0.2


async def request(
    gateway: Gateway,
    record: Record,
    kind: str,
    params: dict[str, Any],
    *,
    data: bytes | None = None,
    take: Callable[[bytes], None] | None = None,
    timeout_s: float | None = None,
) -> dict[str, Any]:
    """One channel from Open to Closed; its result. ``data`` is sent to the agent, and ``take`` gets what it sends.

    Raises what the agent answers, and ``wait_timeout``.
    """
    try:
        with in_use(gateway, record):
            async with gateway.agents.call(record) as call, limit(CALL_S if timeout_s is None else timeout_s):
                call.open(kind, params)
                if data is not None:
                    await call.write(data, eof=True)
                async for fact in call.facts():
                    if isinstance(fact, Failed):
                        raise fact_error(fact)
                    if isinstance(fact, Output) and take is not None:
                        take(fact.data)
                    if isinstance(fact, Closed):
                        call.acknowledge()
                        result: dict[str, Any] = fact.result
                        return result
    except ReportedEndError as error:
        raise await confirmed(gateway, record, error) from None
    raise AgentCallError("agent_unreachable", "the sandbox's agent did not answer")


async def confirmed(gateway: Gateway, record: Record, error: ReportedEndError) -> HoldfastError:
    """The recorded or announced end of a sandbox whose agent reports its end; ``error`` if there is none."""
    clock = asyncio.get_running_loop().time
    end = clock() + REASON_S
    while True:
        try:
            found = await gateway.ready(record.owner, record.name)
        except HoldfastError as gone:
            return gone
        if found.leaving is not None:
            cause = found.leaving.cause
            message = f"sandbox {record.name!r} will end soon: {cause.message or cause.reason}"
            return HoldfastError("sandbox_gone", message, fault=cause.fault, reason=cause.reason, detail=error.detail)
        if clock() > end:
            return error
        await asyncio.sleep(REASON_POLL_S)


@contextlib.asynccontextmanager
async def limit(timeout_s: float) -> AsyncIterator[None]:
    """Raises ``wait_timeout`` when the block takes longer."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        raise HoldfastError("wait_timeout", f"the sandbox did not answer within {timeout_s:g} s") from None
