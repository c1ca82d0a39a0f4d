"""Commands and terminals of a sandbox whose output is passed on as it comes, and files of any size.

Owns the channels of these requests, which hold one window of bytes at a time (PROTOCOL §5.1), and the confirmation of an end that the agent
reports. A command continues when its reader leaves; its output is kept, as far as the sandbox has room, for the next one. Called by faces.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final

from holdfast_wire.frames import Closed, Exited, Fact, Failed, Gap, Opened, Output, Resize, Signal, Started

from gateway.agents.agent_call import AgentCall
from gateway.agents.agent_socket import AgentCallError, ReportedEndError
from gateway.model.records import Record

from .activity import in_use
from .agent_channel import CALL_S, confirmed, limit
from .agent_reports import fact_error
from .service import Gateway

_END_OF_ALL: Final = 2**53


@contextlib.asynccontextmanager
async def called(gateway: Gateway, record: Record, *, own: bool = False) -> AsyncIterator[AgentCall]:
    """A channel to the sandbox's agent, during which the sandbox counts as used. Raises the recorded end if the agent reports one."""
    try:
        with in_use(gateway, record):
            async with gateway.agents.call(record, own=own) as call:
                yield call
    except ReportedEndError as error:
        raise await confirmed(gateway, record, error) from None


async def begun(gateway: Gateway, record: Record, kind: str, params: dict[str, Any]) -> AsyncGenerator[Started | Output | Gap | Exited]:
    """Start a command or terminal, or attach to one, and pass on its facts up to its end. When the generator is closed it continues.

    Raises what the agent answers, and ``agent_unreachable`` when the connection to it broke; the command then continues, too.
    """
    async with called(gateway, record, own=True) as call:
        rest = call.begin(kind, params)
        if rest:
            async with limit(CALL_S):
                await call.write(rest)
        async for fact in call.facts():
            if isinstance(fact, Failed) or (isinstance(fact, Exited) and "error" in fact.result):
                raise fact_error(fact)
            if isinstance(fact, Started | Output | Gap | Exited):
                yield fact
                if isinstance(fact, Exited):
                    call.acknowledge()
                    return
    raise AgentCallError("agent_unreachable", "the sandbox's agent ended the command's channel")


async def tell(gateway: Gateway, record: Record, attach: tuple[str, dict[str, Any]], item: bytes | str | tuple[int, int] | None) -> None:
    """Send one thing to a command or terminal, to which ``attach``, a kind of channel and its params, attaches.

    Bytes are input, None is its end, a text is the name of a signal, two numbers are rows and columns. Raises ``command_not_found``.
    """
    async with called(gateway, record) as call, limit(CALL_S):
        call.open(*attach)
        if isinstance(item, str):
            call.send(Signal(call.number, item))
        elif isinstance(item, tuple):
            call.send(Resize(call.number, *item))
        else:
            await call.write(item or b"", eof=item is None)
        _raise_failure(await call.settled())
        call.detach()


async def feed(gateway: Gateway, record: Record, attach: tuple[str, dict[str, Any]], pieces: AsyncIterator[bytes]) -> None:
    """Send input, in the order of ``pieces``, over one channel. Raises as ``tell``."""
    async with called(gateway, record, own=True) as call:
        call.open(*attach)
        async for piece in pieces:
            await call.write(piece)
        async with limit(CALL_S):
            _raise_failure(await call.settled())
        call.detach()


def following(command_id: str) -> tuple[str, dict[str, Any]]:
    """What ``tell`` attaches to a command by; it reads no output."""
    return "follow", {"id": command_id, "output": False, "from": {1: _END_OF_ALL, 2: _END_OF_ALL}}


def _raise_failure(facts: list[Fact]) -> None:
    for fact in facts:
        if isinstance(fact, Failed):
            raise fact_error(fact)


class Reading:
    """A file that is being read: ``info`` is what the agent reports of it, ``pieces`` its content."""

    def __init__(self, call: AgentCall) -> None:
        self.info: dict[str, Any] = {}
        self._facts = call.facts()
        self._call = call

    async def open(self) -> None:
        async with limit(CALL_S):
            async for fact in self._facts:
                if isinstance(fact, Failed):
                    raise fact_error(fact)
                if isinstance(fact, Opened):
                    self.info = fact.info
                    return
        raise AgentCallError("agent_unreachable", "the sandbox's agent did not open the file")

    async def pieces(self) -> AsyncIterator[bytes]:
        async for fact in self._facts:
            if isinstance(fact, Failed):
                raise fact_error(fact)
            if isinstance(fact, Output):
                yield fact.data
            elif isinstance(fact, Closed):
                self._call.acknowledge()
                return
        raise AgentCallError("agent_unreachable", "the sandbox's agent ended the file before its last byte")


@contextlib.asynccontextmanager
async def reading(gateway: Gateway, record: Record, params: dict[str, Any], *, kind: str = "read") -> AsyncIterator[Reading]:
    """Open a file for reading, or with ``download`` a file or folder as a tar archive. Raises what the agent answers."""
    async with called(gateway, record, own=True) as call:
        call.open(kind, params)
        found = Reading(call)
        await found.open()
        yield found


async def write(
    gateway: Gateway, record: Record, params: dict[str, Any], pieces: AsyncIterator[bytes], *, kind: str = "write"
) -> dict[str, Any]:
    """Write a file from ``pieces``, or with ``upload`` unpack a tar archive; the agent's result.

    What raises in ``pieces`` cancels the write."""
    async with called(gateway, record, own=True) as call:
        call.open(kind, params)
        async for piece in pieces:
            await call.write(piece)
            if call.ended:
                break  # it has failed: the rest is not needed
        if not call.ended:
            await call.write(b"", eof=True)
        async with limit(CALL_S):
            async for fact in call.facts():
                if isinstance(fact, Failed):
                    raise fact_error(fact)
                if isinstance(fact, Closed):
                    call.acknowledge()
                    result: dict[str, Any] = fact.result
                    return result
    raise AgentCallError("agent_unreachable", "the sandbox's agent did not confirm the file")
