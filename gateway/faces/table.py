"""The rows of a face: which handler answers which request, and the scope that a key must have for it.

Owns the form of rows and faces, and what a handler is given. A row without a scope cannot be made, so a route that checks no key is one
that says ``PUBLIC``. ``gateway.app`` makes the routes; the handlers are in the faces.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from holdfast_wire.errors import HoldfastError
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from gateway.http.responses import problem_response
from gateway.http.sent_fields import sent_fields
from gateway.identity.keys import key_of
from gateway.identity.principal import Principal, Scope
from gateway.tenants.uses import Use
from gateway.use_cases.service import Gateway

PUBLIC: Final = "public"
"""The scope of a row that needs no key."""
WEBSOCKET: Final = "WEBSOCKET"
"""The method of a row whose WebSocket is served message by message, by an ASGI application."""
PRINCIPAL: Final = "holdfast.principal"
"""In the scope of a request, once its key was checked."""

PROGRAM_HEADER: Final = "X-Holdfast-Program"
OWNER_HEADER: Final = b"x-holdfast-owner"
"""The owner for whom the request is made, with an operator's key or one of another member of the same project."""
PROJECT_HEADER: Final = b"x-holdfast-project"
"""The project in which the request is made, with a key that is limited to none."""
USE: Final = "holdfast.use"
"""In the scope of a request, once its key was checked: what may end it (``tenants.uses``)."""
_PROGRAM_CHARACTERS: Final = 64

HTTP_METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


async def no_grant(connection: HTTPConnection) -> Principal | None:
    """Of a row that only a key permits."""
    return None


def header_key(connection: HTTPConnection) -> str | None:
    """The key in a request's headers."""
    return key_of(sent_fields(connection.scope))


@dataclass(frozen=True, slots=True)
class Row:
    """One route. GET also answers HEAD."""

    method: str
    path: str
    """Starlette's form, below the face's prefix: ``/sandboxes/{sandbox_id}``, ``/images/{name:path}``."""
    scope: Scope | Literal["public"]
    handler: Callable[[Any], Awaitable[ASGIApp | None]]
    """Takes a ``Request`` and returns the response (any ASGI application), or None after a take-over of the connection. That of a
    WEBSOCKET row takes a ``WebSocket`` and returns None."""
    unlimited: bool = False
    """Whether its requests are not counted as requests: those that show limits, or keep sandboxes alive."""
    upgrades: bool = False
    """Whether the handler accepts an upgrade, so that the page that requests it must be of an allowed origin."""
    key: Callable[[HTTPConnection], str | None] = header_key
    """Where the request carries its key."""
    grant: Callable[[HTTPConnection], Awaitable[Principal | None]] = no_grant
    """The principal of a request that carries something else in place of a key, such as a signed link; None if it needs its key."""

    def __post_init__(self) -> None:
        if self.scope != PUBLIC and not isinstance(self.scope, Scope):
            raise ValueError(f"the row {self.method} {self.path} needs a scope, or {PUBLIC!r} if it needs no key")
        if self.method not in (*HTTP_METHODS, WEBSOCKET) or not self.path.startswith("/"):
            raise ValueError(f"{self.method} {self.path} is not a method and a path")


async def close_websocket(websocket: WebSocket, error: HoldfastError) -> None:
    """The refusal of a WebSocket: it is accepted and closed with the error's code."""
    await websocket.accept()
    await websocket.close(error.kind.close_code or 4400)


@dataclass(frozen=True, slots=True)
class Face:
    """A table of rows, below one host or path prefix if it names one, and the form of its refusals."""

    name: str
    rows: tuple[Row, ...]
    host: str = ""
    """Starlette's form: ``{name}.example.org``."""
    prefix: str = ""
    refuse: Callable[[HoldfastError], Response] = problem_response
    refuse_websocket: Callable[[WebSocket, HoldfastError], Awaitable[None]] = close_websocket
    page: Callable[[HTTPConnection, HoldfastError], Response | None] = lambda connection, error: None
    """A refusal that is a page, for a person with a browser; None for other requests, which get ``refuse``."""
    prepare: Callable[[Gateway], None] = lambda gateway: None
    """Called once, before the first request."""
    home: str = ""
    """The path of the face's page for people, where a browser that opens ``/`` is sent; "" if it has none."""


def gateway_of(connection: HTTPConnection) -> Gateway:
    gateway: Gateway = connection.scope["app"].gateway
    return gateway


def principal_of(connection: HTTPConnection) -> Principal:
    """The principal of a request to a row with a scope."""
    principal: Principal = connection.scope[PRINCIPAL]
    return principal


def use_of(connection: HTTPConnection) -> Use:
    """What ends a request to a row with a scope when its key permits it no more."""
    use: Use = connection.scope[USE]
    return use


def note(connection: HTTPConnection, **facts: Any) -> None:
    """Add facts to the request's entry in the audit log."""
    use: Use | None = connection.scope.get(USE)
    if use is not None:
        use.facts.update(facts)


def program_of(connection: HTTPConnection) -> str:
    """The random id by which a program names itself in its requests; "" if it does not."""
    return connection.headers.get(PROGRAM_HEADER, "")[:_PROGRAM_CHARACTERS]


def parts(connection: HTTPConnection) -> tuple[Gateway, Principal]:
    """What a handler passes to its use case."""
    return gateway_of(connection), principal_of(connection)
