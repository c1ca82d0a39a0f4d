"""One request to a program in a sandbox: forwarded as it comes, answered as the program answers, both streamed at once.

Owns the order and the ends: what happens when the client leaves, the program breaks off, or a kept connection turns out to be closed. At
most one window of bytes waits in each direction (PROTOCOL §5.1), whatever the size of the bodies. Redirects are not followed, nothing is
cached. The placement alone says where the sandbox is. ``upgrades`` continues after a WebSocket was accepted.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from holdfast_wire.errors import HoldfastError
from holdfast_wire.limits import WINDOW_BYTES
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.agents.port_connections import PortConnection
from gateway.faces.table import gateway_of
from gateway.http.bounded_protocol import CONNECTED, CONNECTION, TAKE_OVER
from gateway.http.sent_fields import sent_fields
from gateway.memory_reservation import reserve_memory
from gateway.model.records import Record
from gateway.use_cases import previews
from gateway.use_cases.activity import in_use

from .answers import AnswerReader
from .heads import Asked, answer_fields, asked_of, is_chunked, request_head, upgrade_head
from .targets import COOKIES, Grant, Target, grant_of, record_of, target_of, without_token
from .upgrades import Upgraded

_REPEATED: Final = ("GET", "HEAD", "OPTIONS")
"""Methods of requests that may be sent again if a kept connection was closed before it answered (RFC 9110 §9.2.2)."""
_COUNTED_BYTES: Final = 256 * 1024
"""An answer longer than this counts as a window of memory: its client may read more slowly than the program writes."""
_EVENTS: Final = b"text/event-stream"


async def serve(request: Request) -> ASGIApp:
    """Every row of a port. Raises what refuses a request; ``port_unreachable`` also for an answer that is not HTTP."""
    target, grant = target_of(request), grant_of(request)
    record = await record_of(request, target)
    if grant is not None and grant.token.incarnation != record.incarnation:
        raise HoldfastError("key_invalid", "the preview's link is of an earlier sandbox of this name", hint="make a new link")
    asked = asked_of(request, gateway_of(request).settings)
    if grant is not None and grant.source == "query" and not target.prefix and _is_page(request):
        return _signed_in(request, grant, asked)
    return _Exchange(request, record, target, asked)


async def add_slash(request: Request) -> Response:
    """``…/ports/8000`` is ``…/ports/8000/``: addresses in the program's pages are relative to that."""
    target, query = target_of(request), request.scope["query_string"].decode("latin-1")
    await record_of(request, target)
    return RedirectResponse(f"{target.prefix}/" + (f"?{query}" if query else ""), 308)


def _is_page(request: Request) -> bool:
    return request.method == "GET" and "text/html" in request.headers.get("accept", "") and TAKE_OVER not in request.scope


def _signed_in(request: Request, grant: Grant, asked: Asked) -> Response:
    """The same address without the token, which becomes a cookie of this host: it is in no history, and in no Referer of the program's."""
    query = without_token(request.scope["query_string"]).decode("latin-1")
    place = "/" + request.scope["raw_path"].decode("latin-1").lstrip("/\\")  # which no browser takes for another host
    response = Response(status_code=303, headers={"Referrer-Policy": "no-referrer", "Cache-Control": "no-store"})
    response.headers["Location"] = place + (f"?{query}" if query else "")
    is_secure = asked.scheme == "https"
    left_s = max(int(grant.token.expires_at - time.time()), 1)
    name = COOKIES[0] if is_secure else COOKIES[1]
    response.set_cookie(name, grant.text, max_age=left_s, path="/", httponly=True, samesite="lax", secure=is_secure)
    return response


class _Exchange:
    """A request and its answer. An ASGI application."""

    def __init__(self, request: Request, record: Record, target: Target, asked: Asked) -> None:
        self._request = request
        self._gateway = gateway_of(request)
        self._record = record
        self._target = target
        self._asked = asked
        self._upgrades = TAKE_OVER in request.scope
        self._has_body = is_chunked(request) or sent_fields(request.scope).get(b"content-length", b"0") != b"0"
        self._sent = not self._has_body
        """The whole body was forwarded."""
        self._started = False
        """The head of the answer was sent to the client."""
        self._counted_bytes = 0
        self._left = False
        """The client has disconnected."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        head = request_head(self._request, self._target, self._asked, self._gateway.settings, upgrade=self._upgrades)
        repeats = not self._has_body and scope["method"] in _REPEATED and not self._upgrades
        with in_use(self._gateway, self._record):
            try:
                if repeats:
                    try:
                        await self._attempt(head, receive, send, fresh=False)
                        return
                    except _StaleError:
                        pass
                await self._attempt(head, receive, send, fresh=True)
            except HoldfastError as error:
                if not self._started:
                    raise await previews.explained(self._gateway, self._record, error) from None
                self._request.scope[CONNECTION].abort()
                while (await receive())["type"] != "http.disconnect":
                    pass

    async def _attempt(self, head: bytes, receive: Receive, send: Send, *, fresh: bool) -> None:
        """On a kept connection if there is one, unless ``fresh``. Raises ``_StaleError`` if the program closed that before it answered."""
        connection = await previews.connect(self._gateway, self._record, self._target.port, fresh=fresh)
        reader = AnswerReader(self._request.method)
        try:
            await self._carry(connection, reader, head, receive, send)
        except HoldfastError as error:
            if connection.used_before and not reader.received:
                raise _StaleError from error
            raise
        finally:
            if reader.reusable and self._sent:
                self._gateway.ports.give_back(connection)
            else:
                connection.close()

    async def _carry(self, connection: PortConnection, reader: AnswerReader, head: bytes, receive: Receive, send: Send) -> None:
        """Both directions, until the answer has ended or the client has left."""
        await connection.write(head)
        if self._sent:
            await self._answer_alone(connection, reader, send)
            return
        upload = asyncio.create_task(self._upload(connection, receive), name="preview upload")
        answer = asyncio.create_task(self._answer(connection, reader, send), name="preview answer")
        try:
            await asyncio.wait((upload, answer), return_when=asyncio.FIRST_COMPLETED)
            (answer if answer.done() else upload).result()
        finally:
            upload.cancel()
            answer.cancel()
            await asyncio.gather(upload, answer, return_exceptions=True)

    async def _answer_alone(self, connection: PortConnection, reader: AnswerReader, send: Send) -> None:
        """As ``_carry``, for a request without a body: without the two tasks, which take longer than all else that a small answer needs."""
        task = asyncio.current_task()
        assert task is not None

        def leave() -> None:
            self._left = True
            task.cancel()

        client = self._request.scope[CONNECTION]
        if not self._request.scope[CONNECTED]():
            return
        client.at_disconnect(leave)
        try:
            try:
                await self._answer(connection, reader, send)
            finally:
                client.at_disconnect(None)
                if self._left:
                    await asyncio.sleep(0)  # where a cancellation arrives that came with the end of the answer
        except asyncio.CancelledError:
            if not self._left or task.uncancel():
                raise

    async def _upload(self, connection: PortConnection, receive: Receive) -> None:
        """Forward the body, then wait until the client has left."""
        chunked = is_chunked(self._request)
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            if self._sent:
                continue
            body, more = message.get("body", b""), bool(message.get("more_body"))
            if chunked:
                body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"" if more else b"0\r\n\r\n")
            if body:
                await connection.write(body)
            self._sent = not more

    async def _answer(self, connection: PortConnection, reader: AnswerReader, send: Send) -> None:
        """Forward the answer. Raises ``port_unreachable`` for one that is not HTTP, or incomplete."""
        while not reader.complete:
            data = await connection.read()
            body = reader.feed(data) if data else b""
            if not data:
                reader.end()
            if reader.upgraded:
                await self._upgrade(connection, reader)
                return
            self._count(len(body))
            if reader.head_complete and not self._started:
                await self._start(reader, send)
            if self._started and (body or reader.complete):
                await send({"type": "http.response.body", "body": body, "more_body": not reader.complete})

    async def _start(self, reader: AnswerReader, send: Send) -> None:
        fields = answer_fields(reader.fields, self._target, self._asked, reader.status)
        for name, value in fields:
            if name == b"content-type" and value.startswith(_EVENTS):
                client = self._request.scope[CONNECTION]
                client.at_shutdown(client.abort)  # events have no end; the client asks again, and another replica serves it
        self._started = True
        await send({"type": "http.response.start", "status": reader.status, "headers": fields})

    async def _upgrade(self, connection: PortConnection, reader: AnswerReader) -> None:
        if not self._upgrades:
            raise HoldfastError("port_unreachable", "the program in the sandbox changed the protocol without being asked to")
        fields = answer_fields(reader.fields, self._target, self._asked, reader.status)
        await Upgraded(connection).run(self._request.scope[TAKE_OVER], upgrade_head(fields), reader.rest)

    def _count(self, size: int) -> None:
        """Raises ``overloaded`` when too many long answers are under way."""
        before, self._counted_bytes = self._counted_bytes, self._counted_bytes + size
        if before <= _COUNTED_BYTES < self._counted_bytes:
            reserve_memory(WINDOW_BYTES)


class _StaleError(Exception):
    """A kept connection was closed by the program as it was used again."""
