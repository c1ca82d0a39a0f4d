"""Requests to agents whose commands are part of a trace.

Owns where a command gets its context and where its result gives its times; ``gateway.tracing`` has the spans. Only gateways that trace
have these connections, so that a command of the others takes the same path as without.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from holdfast_wire.frames import Exited, Fact

from gateway.model.records import Record
from gateway.tracing import CommandSpan, TracedSpans

from .agent_call import AgentCall
from .kept_connections import KeptConnections


class TracedCalls(KeptConnections):
    """Connections whose requests for commands are traced."""

    def __init__(self, spans: TracedSpans, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._spans = spans

    async def begin(self, record: Record, *, own: bool = False) -> tuple[AgentCall, Callable[[], None]]:
        call, end = await super().begin(record, own=own)
        traced = _TracedCall(call, self._spans, record.name)

        def ended() -> None:
            traced.stop()
            end()

        return traced, ended  # type: ignore[return-value]


class _TracedCall:
    """An ``AgentCall``."""

    def __init__(self, call: AgentCall, spans: TracedSpans, sandbox: str) -> None:
        self._call = call
        self._spans = spans
        self._sandbox = sandbox
        self._span: CommandSpan | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)

    def begin(self, kind: str, params: dict[str, Any]) -> bytes:
        if kind == "command":
            self._span = self._spans.begin_command(self._sandbox, str(params.get("id", "")))
            params = self._span.params(params)
        return self._call.begin(kind, params)

    async def facts(self) -> AsyncIterator[Fact]:
        async for fact in self._call.facts():
            if isinstance(fact, Exited) and self._span is not None:
                self._span.ended(fact.result)
            yield fact

    def stop(self) -> None:
        if self._span is not None:
            self._span.end()
