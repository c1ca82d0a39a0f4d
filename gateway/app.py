"""The ASGI application: the routes of all faces, what is checked before a handler runs, and the lifespan.

Owns the order of middleware, the match of a request with a row, the check of its key and scope (deny by default: only a row that says
``PUBLIC`` is served without), and the order of start and shutdown. The tables of rows are in ``gateway.faces``.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast_wire.errors import HoldfastError
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.routing import BaseRoute, Host, Match, Mount, Route, Router, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from gateway.audited_requests import is_audited, record_request
from gateway.faces.table import HTTP_METHODS, OWNER_HEADER, PRINCIPAL, PROJECT_HEADER, PUBLIC, USE, WEBSOCKET, Face, Row, program_of
from gateway.http.access import check_origin
from gateway.http.bounded_protocol import AUTHENTICATED, CONNECTION
from gateway.http.counted import counted
from gateway.http.logged import Logged
from gateway.http.middleware import ROUTE, STATUS, Observed, Problems
from gateway.http.responses import problem_response
from gateway.http.sent_fields import sent_fields
from gateway.http.traced import Traced
from gateway.identity.limits import limits_for
from gateway.identity.principal import Scope as KeyScope
from gateway.identity.principal import project_of
from gateway.loop_lag import measure_lag
from gateway.memory_reservation import RequestReservation, reserve_for
from gateway.tenants.uses import Use, ended_error
from gateway.tracing import TracedSpans
from gateway.use_cases import create
from gateway.use_cases.service import Gateway, for_reader

_FACE: Final = "holdfast.face"
"""In the scope of a request: the face of its row."""
_MOST_SEGMENTS: Final = 8
"""Segments of a path that are counted; a longer path counts as this many."""


class Application:
    """The ASGI application around one gateway, which it closes at the end. Of two rows that match a request the first one serves it."""

    def __init__(self, gateway: Gateway, faces: Sequence[Face]) -> None:
        self.gateway = gateway
        self.faces = tuple(faces)
        self.home = next((face.home for face in self.faces if face.home), "")
        """Where a browser that opens ``/`` is sent."""
        self._rows = _router(gateway, self.faces)
        self._lifespan = Router(lifespan=self._run)
        self._app: ASGIApp = Observed(Problems(self._route, self._answer), gateway.metrics)
        if gateway.settings.log_format == "json":
            self._app = Logged(self._app, gateway.spans)
        if isinstance(gateway.spans, TracedSpans):
            self._app = Traced(self._app, gateway.spans)
        for face in self.faces:
            face.prepare(gateway)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        if scope["type"] == "http":
            with RequestReservation(self.gateway.memory):
                await self._app(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan.lifespan(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def serves_messages(self, scope: Scope) -> bool:
        """Whether a request to upgrade to WebSocket is served message by message, by a WEBSOCKET row."""
        return _matches(self._rows, {**scope, "type": "websocket"})

    @contextlib.asynccontextmanager
    async def _run(self, app: Application) -> AsyncIterator[None]:
        gateway = self.gateway
        gateway.background.start(gateway.attached.run(), "sweep of attached sessions")
        gateway.background.start(measure_lag(gateway.metrics), "measurement of the event loop's lag")
        gateway.background.start(gateway.tenants.run(), "comparison of projects and keys with Redis")
        if gateway.audit.is_on:
            gateway.background.start(gateway.audit.run(), "writing of the audit log")
        gateway.background.start(gateway.feed.run(), "changes for streams of events")
        gateway.background.start(gateway.recorder.run(), "leases of recordings")
        gateway.background.start(gateway.recorder.write(), "writing of recordings")
        gateway.background.start(create.renew(gateway), "activity of the sandboxes in creation")
        yield
        await gateway.aclose()

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].endswith("\n"):  # which the end of a path's pattern would match
            raise _no_route(scope)
        try:
            await self._rows(scope, receive, send)
        except HTTPException as error:
            if error.status_code != 405:
                raise
            raise HoldfastError("method_not_allowed", f"the route {scope['path'][:200]!r} does not accept {scope['method'][:20]}") from None

    def _answer(self, scope: Scope, error: HoldfastError) -> ASGIApp:
        """The answer to a request whose handling raised an error, in the form of its face."""
        error = for_reader(error, program_of(HTTPConnection(scope)))
        face: Face | None = scope.get(_FACE)
        if scope["type"] == "websocket":
            return _refused_websocket(face or self.faces[0], error)
        response = (face.page(HTTPConnection(scope), error) or face.refuse(error)) if face else problem_response(error)
        if error.code == "method_not_allowed":
            methods = {method for method in HTTP_METHODS if _matches(self._rows, {**scope, "method": method})}
            response.headers["Allow"] = ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))  # RFC 9110 §15.5.6
        return response


class _Resource:
    """The rows of one path. An ASGI application, called by Starlette's route for the methods of its rows."""

    def __init__(self, gateway: Gateway, face: Face, rows: Sequence[Row]) -> None:
        self._gateway = gateway
        self._face = face
        self._rows = {row.method: row for row in rows}
        self._path = face.prefix + rows[0].path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[_FACE] = self._face
        scope[ROUTE] = self._path
        if scope["type"] == "websocket":
            connection: HTTPConnection = WebSocket(scope, receive, send)
            row = self._rows[WEBSOCKET]
        else:
            method = scope["method"]
            connection = Request(scope, receive, send)
            row = self._rows["GET" if method == "HEAD" else method]
        audit = self._gateway.audit
        if not audit.is_on or (row.scope == PUBLIC and not is_audited(row)):
            await self._admitted(row, connection, receive, send)
            return
        begun = time.monotonic()
        code = ""
        try:
            await self._admitted(row, connection, receive, send)
        except HoldfastError as error:
            code = error.code
            raise
        except BaseException as error:
            code = "cancelled" if isinstance(error, asyncio.CancelledError) else "internal"
            raise
        finally:
            record_request(audit, row, self._path, scope, code, time.monotonic() - begun)

    async def _admitted(self, row: Row, connection: HTTPConnection, receive: Receive, send: Send) -> None:
        scope = connection.scope
        use = await self._admit(row, connection)
        if use is None:
            await _serve(row, connection, receive, send)
            return
        if is_audited(row):
            self._gateway.audit.check()
            if self._gateway.audit.is_on and (row.upgrades or row.method == WEBSOCKET):
                record_request(self._gateway.audit, row, self._path, scope, "", None)
        uses = self._gateway.tenants.uses
        uses.add(use)
        if use.limits:
            receive, send = counted(use.limits, self._gateway.rates, receive, send)
            connection = WebSocket(scope, receive, send) if isinstance(connection, WebSocket) else Request(scope, receive, send)
        try:
            await _serve(row, connection, receive, send)
        except asyncio.CancelledError:
            if not use.ended:
                raise
            await _end(use, scope)
        finally:
            uses.discard(use)

    async def _admit(self, row: Row, connection: HTTPConnection) -> Use | None:
        """Set the request's principal, and return its use of a key. Raises the refusal of a request that the row does not permit."""
        if row.upgrades or row.method == WEBSOCKET:
            check_origin(connection, self._gateway.settings.allowed_origins)
        if row.scope == PUBLIC:
            return None
        tenants, scope = self._gateway.tenants, row.scope
        principal = await row.grant(connection) or await tenants.principal_of(row.key(connection))
        if (authenticated := connection.scope.get(AUTHENTICATED)) is not None:
            authenticated()
        owner, project = _acts_for(connection.scope)
        acting = tenants.admitted(principal, scope, owner, project)
        if principal.bound:  # the key that made the link or token may be another owner's
            owner, project = principal.member, principal.project
            principal = tenants.current(principal.credential) or principal
        reserve_for(acting.member)
        connection.scope[PRINCIPAL] = acting
        use = connection.scope[USE] = Use(principal, scope, owner, project)
        if limits := tenants.tenants.limits:
            whose = principal if KeyScope.ADMIN in principal.scopes else acting  # an operator's help does not count for whom it is
            use.limits = limits_for(limits, whose.member, project_of(whose.owner), whose.key_id)
            if not row.unlimited:
                await self._gateway.rates.request(use.limits)
        return use


def _acts_for(scope: Scope) -> tuple[str | None, str | None]:
    """The owner and the project for whom the client acts, where it names them."""
    sent = sent_fields(scope)
    owner, project = sent.get(OWNER_HEADER), sent.get(PROJECT_HEADER)
    return (None if owner is None else owner.decode("latin-1")), (None if project is None else project.decode("latin-1"))


async def _serve(row: Row, connection: HTTPConnection, receive: Receive, send: Send) -> None:
    response = await row.handler(connection)
    if response is not None:  # else the handler has taken the connection over, or served its messages
        await response(connection.scope, receive, send)


async def _end(use: Use, scope: Scope) -> None:
    """The end of a request whose key no longer permits it: an error, or if its answer has begun, the end of its connection."""
    if use.task is not None:
        use.task.uncancel()
    protocol = scope.get(CONNECTION)
    if STATUS not in scope and (protocol is None or not protocol.cycle.response_started):
        raise ended_error()
    if protocol is not None:
        protocol.abort()
    await asyncio.sleep(0)  # the end of the connection is reported first


def _router(gateway: Gateway, faces: Sequence[Face]) -> Router:
    """Starlette's router of all rows: faces with a host first, then those with a prefix, then the others."""
    routes: list[BaseRoute] = []
    for face in sorted(faces, key=lambda face: (not face.host, not face.prefix)):
        own = _routes(gateway, face)
        if face.prefix:
            own = [Mount(face.prefix, app=_FaceRouter(face, own))]
        if face.host:
            own = [_AnyCaseHost(face.host, app=_FaceRouter(face, own))]
        routes += own
    return _IndexedRouter(routes)


class _IndexedRouter(Router):
    """Starlette's router, which tries only the routes whose host may be a request's, and whose path has as many segments as its own and
    the same first and third where they are fixed: of some hundred routes one or two.
    """

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        super().__init__(routes, redirect_slashes=False, default=_default)
        self._shapes = [(route, _shape_of(route)) for route in routes]
        self._words = frozenset(word for _, shape in self._shapes for word in (shape.first, shape.third) if word)
        self._domains = [route.domain for route in routes if isinstance(route, _AnyCaseHost)]
        self._found: dict[tuple[str, str, int, bool], Router] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.near(scope).app(scope, receive, send)

    def near(self, scope: Scope) -> Router:
        """A router of the routes that may match the request."""
        segments = scope["path"].removeprefix(scope.get("root_path", "")).split("/", _MOST_SEGMENTS)
        count = len(segments) - 1
        first = segments[1] if count and segments[1] in self._words else ""
        third = segments[3] if count > 2 and segments[3] in self._words else ""
        hosted = bool(self._domains) and self._may_be_hosted(scope)
        router = self._found.get((first, third, count, hosted))
        if router is None:
            near = [route for route, shape in self._shapes if shape.may_match(first, third, count)]
            routes = [route for route in near if hosted or not isinstance(route, Host)]
            router = self._found[first, third, count, hosted] = Router(routes, redirect_slashes=False, default=_default)
        return router

    def _may_be_hosted(self, scope: Scope) -> bool:
        for name, value in scope["headers"]:
            if name == b"host":
                host = value.lower()
                return any(domain in host for domain in self._domains)
        return False


@dataclass(frozen=True, slots=True)
class _Shape:
    """What is known of the paths of a route: the first and the third segment, "" where they are not fixed, and how many there are."""

    first: str = ""
    third: str = ""
    least: int = 0
    most: int = _MOST_SEGMENTS

    def may_match(self, first: str, third: str, count: int) -> bool:
        return self.first in ("", first) and self.third in ("", third) and self.least <= count <= self.most


def _shape_of(route: BaseRoute) -> _Shape:
    if isinstance(route, Mount):
        return _Shape(route.path.split("/")[1], least=1)
    if not isinstance(route, Route | WebSocketRoute):
        return _Shape()
    segments = route.path.split("/")[1:]
    fixed: list[str] = []
    for segment in segments:
        if "{" in segment and ":" in segment:  # it may contain slashes
            break
        fixed.append("" if "{" in segment else segment)
    most = len(segments) if len(fixed) == len(segments) < _MOST_SEGMENTS else _MOST_SEGMENTS
    first, _, third = (*fixed, "", "", "")[:3]
    return _Shape(first, third, min(len(segments), _MOST_SEGMENTS), most)


class _FaceRouter(_IndexedRouter):
    """The rows below a face's host or prefix. A request that none of them matches is refused in the face's form too."""

    def __init__(self, face: Face, routes: Sequence[BaseRoute]) -> None:
        super().__init__(routes)
        self._face = face

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[_FACE] = self._face
        await super().__call__(scope, receive, send)


def _routes(gateway: Gateway, face: Face) -> list[BaseRoute]:
    by_path: dict[tuple[str, bool], list[Row]] = {}
    for row in face.rows:
        rows = by_path.setdefault((row.path, row.method == WEBSOCKET), [])
        if any(row.method == other.method for other in rows):
            raise ValueError(f"the face {face.name} has two rows {row.method} {row.path}")
        rows.append(row)
    routes: list[BaseRoute] = []
    for (path, messages), rows in by_path.items():
        resource = _Resource(gateway, face, rows)
        routes.append(WebSocketRoute(path, resource) if messages else Route(path, resource, methods=[row.method for row in rows]))
    return routes


def _matches(router: ASGIApp, scope: Scope) -> bool:
    """Whether a row serves a request, looked up through hosts and prefixes."""
    assert isinstance(router, _IndexedRouter)
    for route in router.near(scope).routes:
        match, child_scope = route.matches(scope)
        if match is Match.FULL:  # a request that a host or prefix matches has none of the rows after it
            return not isinstance(route, Host | Mount) or _matches(route.app, {**scope, **child_scope})
    return False


class _AnyCaseHost(Host):
    """A host in any of its forms: names have no case, and may end with the dot of the root (RFC 4343, RFC 1034 §3.1)."""

    def __init__(self, host: str, app: ASGIApp) -> None:
        super().__init__(host, app)
        self.domain: Final = host.rpartition("}")[2].encode()
        """What is fixed at the end of the host."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        fields = [(name, value.lower().partition(b":")[0].rstrip(b".")) for name, value in scope["headers"] if name == b"host"]
        match, child = super().matches({**scope, "headers": fields})
        return match, child


async def _default(scope: Scope, receive: Receive, send: Send) -> None:
    raise _no_route(scope)


def _no_route(scope: Scope) -> HoldfastError:
    return HoldfastError("not_found", f"there is no route {scope['path'][:200]!r}")


def _refused_websocket(face: Face, error: HoldfastError) -> ASGIApp:
    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # it has disconnected
            await face.refuse_websocket(WebSocket(scope, receive, send), error)

    return refuse
