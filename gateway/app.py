"""The ASGI application: the table of routes, and the lifespan.

Owns the table, the mapping from exceptions to problem documents, request counting, and the order of start and shutdown. It calls the
endpoint itself: each layer of middleware and routing between would be entered again whenever the request waits.
"""

from __future__ import annotations

import contextlib
import logging
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from holdfast_wire.errors import HoldfastError
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Router
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from gateway.agents.kept_connections import KeptConnections
from gateway.http.bounded_protocol import ANSWER
from gateway.http.responses import problem_response
from gateway.lifecycle import creation
from gateway.memory_reservation import RequestReservation
from gateway.routes import admin, changes, commands, files, groups, sandboxes
from gateway.routes.attach import attach
from gateway.service import Gateway, for_reader

log = logging.getLogger("gateway")

Endpoint = Callable[[Request], Awaitable[Response | None]]

ROUTES: dict[str, dict[str, Endpoint]] = {
    "/sandboxes/{sandbox_id}/session": {"GET": attach},
    "/sandboxes/{sandbox_id}/exec": {"POST": commands.execute},
    "/sandboxes": {"POST": sandboxes.create, "GET": sandboxes.list_owned},
    "/sandboxes/{sandbox_id}": {"GET": sandboxes.read, "DELETE": sandboxes.delete},
    "/sandboxes/{sandbox_id}/network": {"PUT": changes.network},
    "/sandboxes/{sandbox_id}/lifetime": {"PUT": changes.lifetime},
    "/sandboxes/{sandbox_id}/wait": {"GET": sandboxes.wait},
    "/sandboxes/{sandbox_id}/heartbeat": {"POST": sandboxes.heartbeat},
    "/groups/{name}/heartbeat": {"POST": groups.heartbeat},
    "/groups/{name}": {"GET": groups.read, "DELETE": groups.delete},
    "/sandboxes/{sandbox_id}/apply_patch": {"POST": files.apply_patch},
    "/sandboxes/{sandbox_id}/files": {"POST": files.write, "GET": files.read},
    "/sandboxes/{sandbox_id}/files/list": {"GET": files.list_files},
    "/jobs/{job_id}": {"GET": commands.job},
    "/jobs/{job_id}/wait": {"GET": commands.wait_job},
    "/images": {"GET": admin.list_images, "POST": admin.import_image},
    "/images/pull": {"POST": admin.pull_image},
    "/images/{name:path}": {"DELETE": admin.remove_image},
    "/resources": {"GET": admin.resources},
    "/doctor": {"GET": admin.doctor},
    "/": {"GET": admin.root},
    "/health": {"GET": admin.health},
    "/healthz": {"GET": admin.health},
    "/readyz": {"GET": admin.ready},
    "/metrics": {"GET": admin.metrics},
    "/openapi.json": {"GET": admin.openapi},
}
"""Endpoints by path and method. A parameter is the second part of its path, or with ``:path`` all that follows the first."""


def _shape(path: str) -> str:
    """The path with its parameter replaced: ``/sandboxes/*/exec``; for a parameter that may hold slashes ``/images/**``."""
    first, _, rest = path[1:].partition("/")
    name, slash, rest = rest.partition("/")
    return f"/{first}/**" if name.endswith(":path}") else f"/{first}/*{slash}{rest}"


_EXACT: Final = frozenset(path for path in ROUTES if "{" not in path)
_BY_SHAPE: Final = {_shape(path): (path, re.split("[{}:]", path)[1]) for path in ROUTES if "{" in path}


def _matching(path: str) -> list[tuple[str, dict[str, str]]]:
    """The routes of a path with their parameters, the most specific first."""
    found: list[tuple[str, dict[str, str]]] = [(path, {})] if path in _EXACT else []
    first, _, rest = path[1:].partition("/")
    for shape, value in ((_shape(path), rest.partition("/")[0]), (f"/{first}/**", rest)):
        if value and shape in _BY_SHAPE:
            template, name = _BY_SHAPE[shape]
            found.append((template, {name: value}))
    return found


class Application:
    """The ASGI application around one gateway, whose store and runtime it closes at the end."""

    def __init__(self, gateway: Gateway) -> None:
        gateway.agents = KeptConnections(gateway.dial, gateway.ready, gateway.settings.relay.dial_timeout_s)
        self.gateway = gateway
        self.exec_id: commands.ExecId = commands.new_exec_id
        self.websocket: Callable[[WebSocket], Awaitable[None]] | None = None
        """Serves the WebSockets that the HTTP protocol leaves to uvicorn: ``http.bounded_protocol`` leaves none."""
        self._router = Router(lifespan=self._lifespan)

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Application) -> AsyncIterator[None]:
        gateway = self.gateway
        gateway.background.start(gateway.attached.run(), "sweep of attached sessions")
        gateway.background.start(creation.renew(gateway), "activity of the sandboxes in creation")
        yield
        gateway.attached.draining = True
        await gateway.background.aclose()
        gateway.agents.close()
        await gateway.runtime.aclose()
        await gateway.store.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        if scope["type"] == "http":
            with RequestReservation(self.gateway.memory):
                await self._answer(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._router.lifespan(scope, receive, send)
        elif self.websocket is not None:
            await self.websocket(WebSocket(scope, receive, send))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, give the answer an id, and count and time it by route."""
        metrics, begun = self.gateway.metrics, time.monotonic()
        request_id = f"{random.getrandbits(64):016x}"
        method, matching = scope["method"], _matching(scope["path"])
        wanted = "GET" if method == "HEAD" else method
        template, scope["path_params"] = next(iter([one for one in matching if wanted in ROUTES[one[0]]]), ("unknown", {}))
        response: Response | None
        try:
            if template == "unknown":
                raise _refusal(matching, method, scope["path"])
            response = await ROUTES[template][wanted](Request(scope, receive))
        except HoldfastError as error:
            response = problem_response(for_reader(error, HTTPConnection(scope)))
            if error.code == "method_not_allowed":
                response.headers["Allow"] = _allowed(matching)
        except Exception:
            log.exception("request %s failed", request_id)
            response = problem_response(HoldfastError("internal", "the gateway failed to serve this request"))
        if response is None:
            return  # the endpoint has taken the connection over
        response.raw_headers.append((b"x-request-id", request_id.encode()))
        metrics.count("requests_total", method=method, route=template, status=str(response.status_code))
        if isinstance(response, StreamingResponse):
            await response(scope, receive, send)
        else:
            await scope[ANSWER](response.status_code, response.raw_headers, response.body)
        metrics.observe("request_seconds", time.monotonic() - begun, route=template)


def _refusal(matching: list[tuple[str, dict[str, str]]], method: str, path: str) -> HoldfastError:
    if matching:
        return HoldfastError("method_not_allowed", f"the route {path[:200]!r} does not accept {method[:20]}")
    return HoldfastError("not_found", f"there is no route {path[:200]!r}")


def _allowed(matching: list[tuple[str, dict[str, str]]]) -> str:
    """The methods of all the routes of a path (RFC 9110 §15.5.6)."""
    methods = {method for template, _ in matching for method in ROUTES[template]}
    return ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))
