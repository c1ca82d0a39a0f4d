"""``GET /events``: the events of the owner's sandboxes, server-sent.

Owns their form on the wire (WHATWG HTML §9.2), the pulse that shows that the stream lives, and the end when the service stops: the client
connects again with ``Last-Event-ID``, to any replica.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

import orjson
from holdfast_wire.errors import HoldfastError
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gateway.faces.table import parts, use_of
from gateway.http.bounded_protocol import CONNECTION
from gateway.http.request_fields import Fields
from gateway.identity.principal import Principal, Scope
from gateway.use_cases import events
from gateway.use_cases.events import Events, Filter
from gateway.use_cases.followed import Activity

from .sandboxes import selector_of

_PULSE_S: Final = 15.0
_RETRY_MS: Final = 1000
_MOST_SANDBOXES: Final = 1000
_ID_CHARACTERS: Final = 4096


async def follow(request: Request) -> Response:
    """``GET /events?sandbox=&group=&label=k=v&kind=&since=60&activity=true&usage_s=&files=&pulls=true``.

    Several of ``sandbox``, ``label`` and ``kind`` are possible.
    """
    gateway, principal = parts(request)
    query = request.query_params
    last_id = request.headers.get("last-event-id") or query.get("last_event_id") or ""
    sandboxes = query.getlist("sandbox")
    if len(sandboxes) > _MOST_SANDBOXES or len(last_id) > _ID_CHARACTERS:
        raise HoldfastError("invalid_argument", f"at most {_MOST_SANDBOXES} sandboxes, and an id of {_ID_CHARACTERS} characters")
    kinds = frozenset(query.getlist("kind"))
    if unknown := kinds - events.KINDS:
        raise HoldfastError("invalid_argument", f"there are no events of kind {min(unknown)[:100]!r}")
    labels = selector_of(request)
    wanted = Filter(frozenset(sandboxes), query.get("group") or "", labels, kinds)
    activity = _activity(request, principal)
    if activity is not None and activity.sandboxes:
        use_of(request).scope = Scope.EXEC  # without it the stream ends
    stream = events.follow(gateway, principal, wanted, last_id, _since(query.get("since")), activity)
    first = await anext(stream)
    client = request.scope[CONNECTION]
    client.at_shutdown(client.abort)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_written(first, stream), headers=headers, media_type="text/event-stream")


async def _written(first: Events, stream: AsyncIterator[Events]) -> AsyncIterator[bytes]:
    following: asyncio.Task[Events] | None = None
    try:
        yield b"retry: %d\n" % _RETRY_MS + _lines(first)
        while True:
            following = following or asyncio.ensure_future(anext(stream))
            done, _ = await asyncio.wait((following,), timeout=_PULSE_S)
            if not done:
                yield b":\n\n"
                continue
            found, following = following.result(), None
            yield _lines(found)
    finally:
        if following is not None:
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following
        await stream.aclose()  # type: ignore[attr-defined]


def _lines(found: Events) -> bytes:
    """The position is the id of the last event: what came before it is part of the same change of position.

    Whether the store answers is a comment, which clients that do not know it ignore.
    """
    if found.answers is not None:
        return b": the placement store answers again\n\n" if found.answers else b": the placement store does not answer\n\n"
    parts = [b"event: %s\ndata: %s\n" % (name.encode(), orjson.dumps(facts)) for name, facts in found.events]
    parts = parts or [b"event: position\ndata: {}\n"]
    return b"\n".join(parts) + b"id: %s\n\n" % found.position.encode()


def _activity(request: Request, principal: Principal) -> Activity | None:
    """What the stream wants besides the lives of sandboxes; None for nothing. It shows commands, so it needs the scope ``exec``."""
    query = Fields(dict(request.query_params))
    wants, pulls = request.query_params.get("activity"), request.query_params.get("pulls")
    if not {wants, pulls} <= {None, "true", "false", "1", "0"}:
        raise HoldfastError("invalid_argument", "activity and pulls must be true or false")
    files = query.text("files", "", most=4096) or ""
    usage_s = query.seconds("usage_s")
    if usage_s is not None and not events.LEAST_USAGE_S <= usage_s <= events.MOST_SINCE_S:
        raise HoldfastError("invalid_argument", f"usage_s must be {events.LEAST_USAGE_S:g} to {events.MOST_SINCE_S:g} seconds")
    follows = wants in ("true", "1")
    if not follows and (files or usage_s is not None):
        raise HoldfastError("invalid_argument", "files and usage_s need activity=true")
    if follows:
        principal.require(Scope.EXEC)
    return Activity(follows, usage_s, files, pulls in ("true", "1")) if follows or pulls in ("true", "1") else None


def _since(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= events.MOST_SINCE_S:
        raise HoldfastError("invalid_argument", f"since must be a number of seconds from 0 to {events.MOST_SINCE_S:g}")
    return seconds
