"""ASGI middleware that makes a span of each request. Only gateways that trace have it.

Owns what a span says of a request: method, route, status, its id and its sandbox, and not its path, query or headers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.tracing import TracedSpans

from .middleware import REQUEST_ID, ROUTE, STATUS

_CONTEXT = (b"traceparent", b"tracestate")


class Traced:
    """See the module."""

    def __init__(self, app: ASGIApp, spans: TracedSpans) -> None:
        self._app = app
        self._spans = spans

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in _CONTEXT}
        with self._spans.request(headers, _Facts(scope)):
            await self._app(scope, receive, send)


class _Facts(Mapping[str, Any]):
    """What is known of a request so far."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def _now(self) -> dict[str, Any]:
        scope = self._scope
        found = {"method": scope.get("method", "GET"), "route": scope.get(ROUTE, "unknown"), "request_id": scope.get(REQUEST_ID, "")}
        if STATUS in scope:
            found["status"] = scope[STATUS]
        if sandbox := scope.get("path_params", {}).get("sandbox_id"):
            found["sandbox"] = str(sandbox)[:128]
        return found

    def __getitem__(self, name: str) -> Any:
        return self._now()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())
