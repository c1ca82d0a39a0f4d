"""ASGI middleware around every face: an id and a measurement for each request, and an answer for each error.

Owns the header ``X-Request-Id``, the metrics of requests, and what becomes of an exception. It sees every response as ASGI messages, but
not the bytes of a connection that its handler took over. ``gateway.app`` names the order; tracing or compression would stand in it too.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import Final

from holdfast_wire.errors import HoldfastError
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.metrics import Metrics

log = logging.getLogger("gateway")

ROUTE: Final = "holdfast.route"
"""In the scope of a request: the path of its row, for metrics; missing if no row matches."""
REQUEST_ID: Final = "holdfast.request_id"
"""In the scope of an HTTP request: its id."""
COMMAND: Final = "holdfast.command"
"""In the scope of a request: the id of the command that it ran."""
STATUS: Final = "holdfast.status"
"""In the scope of a request: the status of its response, once that has begun."""


class Observed:
    """Gives each HTTP request an id, and counts and times it by route. A connection that was taken over has no response to count."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics
        self._counters: dict[tuple[str, str, int], Callable[[], None]] = {}
        self._histograms: dict[str, Callable[[float], None]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = time.monotonic()
        request_id = scope[REQUEST_ID] = f"{random.getrandbits(64):016x}"

        async def observed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
                status = scope[STATUS] = message["status"]
                self._count(scope["method"], scope.get(ROUTE, "unknown"), status)
            await send(message)

        await self._app(scope, receive, observed)
        if STATUS in scope:
            self._observe(scope.get(ROUTE, "unknown"), time.monotonic() - begun)

    def _count(self, method: str, route: str, status: int) -> None:
        counts = self._counters.get((method, route, status))
        if counts is None:
            counts = self._metrics.counter("requests_total", method=method, route=route, status=str(status))
            self._counters[method, route, status] = counts
        counts()

    def _observe(self, route: str, seconds: float) -> None:
        observes = self._histograms.get(route)
        if observes is None:
            observes = self._histograms[route] = self._metrics.histogram("request_seconds", route=route)
        observes(seconds)


class Problems:
    """Answers a request whose handling raised an error, with what ``answer`` returns for it; an error inside a response is raised again."""

    def __init__(self, app: ASGIApp, answer: Callable[[Scope, HoldfastError], ASGIApp | Response]) -> None:
        self._app = app
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error: HoldfastError
        try:
            await self._app(scope, receive, send)
            return
        except HoldfastError as refusal:
            if STATUS in scope:
                raise
            error = refusal
        except Exception:
            if STATUS in scope:
                raise
            log.exception("request %s failed", scope.get(REQUEST_ID, "of a WebSocket"))
            error = HoldfastError("internal", "the gateway failed to serve this request")
        await self._answer(scope, error)(scope, receive, send)
