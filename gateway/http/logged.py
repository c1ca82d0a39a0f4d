"""ASGI middleware of gateways that log JSON: ids for the lines that are logged while a request is served, and a line for each request.

Owns what such a line has: ids, route, status and time, and not the path, query, headers or body. A session is named by the id of the
request that attached it; its line comes when it ends.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from holdfast_wire.logs import fields
from holdfast_wire.trace import trace_id_of
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.tracing import Spans

from .middleware import COMMAND, REQUEST_ID, ROUTE, STATUS

log = logging.getLogger("gateway.requests")


class Logged:
    """See the module."""

    def __init__(self, app: ASGIApp, spans: Spans) -> None:
        self._app = app
        self._spans = spans

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = time.monotonic()
        trace = self._spans.trace_id() or trace_id_of(_header(scope, b"traceparent"))

        def known() -> Mapping[str, object]:
            request, route = scope.get(REQUEST_ID, ""), scope.get(ROUTE, "unknown")
            upgraded = STATUS not in scope and route.endswith("/session")
            return {
                "request": request,
                "session": request if upgraded else "",
                "sandbox": str(scope.get("path_params", {}).get("sandbox_id", ""))[:128],
                "command": scope.get(COMMAND, ""),
                "trace": trace,
                "method": scope.get("method", "WEBSOCKET"),
                "route": route,
                "status": scope.get(STATUS),
            }

        token = fields.set(known)
        try:
            await self._app(scope, receive, send)
        finally:
            log.info("served", extra={"took_s": round(time.monotonic() - begun, 4)})
            fields.reset(token)


def _header(scope: Scope, wanted: bytes) -> str:
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == wanted), "")
