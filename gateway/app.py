"""The ASGI application: the table of routes, and the lifespan.

Owns the table, the mapping from exceptions to problem documents, request counting, and the order of start and shutdown.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import AsyncIterator

from holdfast_wire.errors import HoldfastError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from gateway.agents.kept_connections import KeptConnections
from gateway.http import problems
from gateway.memory_reservation import reserving
from gateway.orchard.retry_detection import RetryDetection
from gateway.orchard.terminal import pty
from gateway.routes import admin, changes, commands, files, groups, sandboxes
from gateway.routes.attach import attach
from gateway.service import Gateway

ROUTES: tuple[Route | WebSocketRoute, ...] = (
    WebSocketRoute("/sandboxes/{sandbox_id}/session", attach),
    WebSocketRoute("/sandboxes/{sandbox_id}/exec/pty", pty),
    Route("/sandboxes/{sandbox_id}/exec", commands.execute, methods=["POST"]),
    Route("/sandboxes", sandboxes.create, methods=["POST"]),
    Route("/sandboxes", sandboxes.list_owned, methods=["GET"]),
    Route("/sandboxes/{sandbox_id}", sandboxes.read, methods=["GET"]),
    Route("/sandboxes/{sandbox_id}", sandboxes.delete, methods=["DELETE"]),
    Route("/sandboxes/{sandbox_id}/network", changes.network, methods=["PUT"]),
    Route("/sandboxes/{sandbox_id}/lifetime", changes.lifetime, methods=["PUT"]),
    Route("/sandboxes/{sandbox_id}/wait", sandboxes.wait, methods=["GET"]),
    Route("/sandboxes/{sandbox_id}/heartbeat", sandboxes.heartbeat, methods=["POST"]),
    Route("/groups/{name}/heartbeat", groups.heartbeat, methods=["POST"]),
    Route("/groups/{name}", groups.read, methods=["GET"]),
    Route("/groups/{name}", groups.delete, methods=["DELETE"]),
    Route("/sandboxes/{sandbox_id}/apply_patch", files.apply_patch, methods=["POST"]),
    Route("/sandboxes/{sandbox_id}/files", files.write, methods=["POST"]),
    Route("/sandboxes/{sandbox_id}/files", files.read, methods=["GET"]),
    Route("/sandboxes/{sandbox_id}/files/list", files.list_files, methods=["GET"]),
    Route("/jobs/{job_id}", commands.job, methods=["GET"]),
    Route("/jobs/{job_id}/wait", commands.wait_job, methods=["GET"]),
    Route("/images", admin.list_images, methods=["GET"]),
    Route("/images", admin.import_image, methods=["POST"]),
    Route("/images/pull", admin.pull_image, methods=["POST"]),
    Route("/images/{name:path}", admin.remove_image, methods=["DELETE"]),
    Route("/resources", admin.resources, methods=["GET"]),
    Route("/doctor", admin.doctor, methods=["GET"]),
    Route("/", admin.root, methods=["GET"]),
    Route("/health", admin.health, methods=["GET"]),
    Route("/healthz", admin.health, methods=["GET"]),
    Route("/readyz", admin.ready, methods=["GET"]),
    Route("/metrics", admin.metrics, methods=["GET"]),
    Route("/openapi.json", admin.openapi, methods=["GET"]),
)


async def nowhere(websocket: WebSocket) -> None:
    """A WebSocket to an unknown path: refused with a problem document, as any other request."""
    await websocket.send_denial_response(problems.problem_response(HoldfastError("not_found", "there is no such route")))


class RequestMiddleware:
    """Gives each request an id and counts and times answers by route. Pure ASGI, so that nothing is buffered."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        request_id = f"{random.getrandbits(64):016x}"  # to find it again in the log: a secret would be a system call
        scope["holdfast.request_id"] = request_id
        metrics, begun = scope["app"].state.gateway.metrics, time.monotonic()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
                metrics.count("requests_total", method=scope["method"], route=_path(scope), status=str(message["status"]))
            await send(message)

        with reserving(scope["app"].state.gateway.memory):
            await self._app(scope, receive, counted)
        metrics.observe("request_seconds", time.monotonic() - begun, route=_path(scope))


def _path(scope: Scope) -> str:
    route = scope.get("route")
    return route.path if isinstance(route, Route) else "unknown"


def build_app(gateway: Gateway) -> Starlette:
    """The application around one gateway, whose store and runtime it closes at the end."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        gateway.background.start(gateway.attached.run(), "sweep of attached sessions")
        yield
        gateway.attached.draining = True
        await gateway.background.aclose()
        gateway.agents.close()
        await gateway.runtime.aclose()
        await gateway.store.aclose()

    app = Starlette(
        routes=(*ROUTES, WebSocketRoute("/{path:path}", nowhere)),
        lifespan=lifespan,
        middleware=[Middleware(RequestMiddleware)],
        exception_handlers={HoldfastError: problems.on_error, HTTPException: problems.on_error, Exception: problems.on_error},
    )
    app.router.redirect_slashes = False  # the redirect would repeat whatever Host the request named
    gateway.agents = KeptConnections(gateway.dial, gateway.check, gateway.settings.relay.dial_timeout_s)
    app.state.gateway = gateway
    app.state.retries = RetryDetection()
    return app
