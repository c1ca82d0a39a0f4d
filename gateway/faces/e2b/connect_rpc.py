"""The Connect protocol with its JSON codec, as far as E2B's SDKs use it: unary procedures and streams of one direction.

Owns the envelopes of streams (a byte of flags, four bytes of length, JSON), their end with an error, the sign of life, and what happens
when the client leaves. Compression is refused, which these SDKs never use. Messages are the JSON form of protobuf: names in camel case,
bytes as base64. Facts from connectrpc.com/docs/protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, Final

import orjson
from holdfast_wire.errors import HoldfastError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http.bounded_protocol import CONNECTION
from gateway.http.request_fields import body_chunk, read_body
from gateway.http.responses import json_response
from gateway.memory_reservation import reserve_memory

from .errors import SandboxEndedError, connect_error, connect_status
from .targets import ended, sandbox_of

Message = dict[str, Any]

_UNARY: Final = "application/json"
_STREAM: Final = "application/connect+json"
_END: Final = 0x02
_COMPRESSED: Final = 0x01
_HEAD: Final = struct.Struct(">BI")
MESSAGE_BYTES: Final = 8 * 1024 * 1024
"""Largest message of a request."""
_PULSE_S: Final = 90.0
_LEAST_PULSE_S: Final = 1.0


def unary(procedure: Callable[[Request, Message], Awaitable[Message]]) -> Callable[[Request], Awaitable[Response]]:
    """The handler of a procedure that takes one message and returns one."""

    async def handler(request: Request) -> Response:
        sandbox_of(request)
        try:
            _check_type(request, _UNARY)
            return json_response(await procedure(request, _message(await read_body(request, MESSAGE_BYTES))))
        except HoldfastError as error:
            answer = connect_error(ended(error))
            return json_response(answer, connect_status(answer["code"]))

    return handler


def server_stream(
    procedure: Callable[[Request, Message], AsyncGenerator[Message]], pulse: Message
) -> Callable[[Request], Awaitable[ASGIApp]]:
    """The handler of a procedure that takes one message and sends many. ``pulse`` is sent when there is nothing else for a while."""

    async def handler(request: Request) -> ASGIApp:
        sandbox_of(request)
        try:
            _check_type(request, _STREAM)
            messages = procedure(request, await _only_message(request))
        except HoldfastError as error:
            return _Refused(error)
        return _Stream(messages, pulse, _pulse_s(request))

    return handler


def client_stream(procedure: Callable[[Request, AsyncIterator[Message]], Awaitable[Message]]) -> Callable[[Request], Awaitable[Response]]:
    """The handler of a procedure that takes many messages and returns one."""

    async def handler(request: Request) -> Response:
        sandbox_of(request)
        try:
            _check_type(request, _STREAM)
            body = _envelope(0, await procedure(request, _messages(request))) + _envelope(_END, {})
        except HoldfastError as error:
            body = _envelope(_END, {"error": connect_error(ended(error))})
        return Response(body, media_type=_STREAM)

    return handler


class _Stream:
    """The answer of a procedure that sends many messages. An ASGI application. Whatever ends it closes the generator of messages."""

    def __init__(self, messages: AsyncGenerator[Message], pulse: Message, pulse_s: float) -> None:
        self._messages = messages
        self._pulse = pulse
        self._pulse_s = pulse_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope[CONNECTION]
        client.at_shutdown(client.abort)  # such a stream has no end; the client connects again, to another replica
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", _STREAM.encode())]})
        sending = asyncio.create_task(self._send(send), name="stream of messages")
        leaving = asyncio.create_task(_left(receive), name="end of the client")
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        async def put(body: bytes, *, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": body, "more_body": more})

        following: asyncio.Future[Message] | None = None
        end: Message = {}
        try:
            while True:
                following = following or asyncio.ensure_future(anext(self._messages))
                done, _ = await asyncio.wait((following,), timeout=self._pulse_s)
                if not done:
                    await put(_envelope(0, self._pulse))
                    continue
                message, following = following.result(), None
                await put(_envelope(0, message))
        except StopAsyncIteration:
            pass
        except HoldfastError as error:
            end = {"error": connect_error(ended(error))}
        finally:
            if following is not None:
                following.cancel()
                with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration, HoldfastError):
                    await following
            await self._messages.aclose()
        await put(_envelope(_END, end), more=False)


class _Refused:
    """The answer of a stream that did not begin: one end with an error, as Connect has it, or a status where the sandbox has ended."""

    def __init__(self, error: HoldfastError) -> None:
        self._error = ended(error)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if isinstance(self._error, SandboxEndedError):
            answer = connect_error(self._error)
            await json_response(answer, connect_status(answer["code"]))(scope, receive, send)
            return
        await Response(_envelope(_END, {"error": connect_error(self._error)}), media_type=_STREAM)(scope, receive, send)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _check_type(request: Request, wanted: str) -> None:
    sent = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if sent != wanted:
        hint = "use Connect's JSON codec, as the E2B SDKs do"
        raise HoldfastError("unsupported", f"this procedure takes {wanted}, not {sent[:100]!r}", hint=hint)
    for name in ("content-encoding", "connect-content-encoding"):
        if request.headers.get(name, "identity") != "identity":
            raise HoldfastError("unsupported", "compressed messages are not supported", hint="send them without compression")


async def _only_message(request: Request) -> Message:
    body = await read_body(request, MESSAGE_BYTES)
    if len(body) < _HEAD.size:
        raise HoldfastError("invalid_json", "the body is no envelope: five bytes and a message")
    flags, size = _HEAD.unpack_from(body)
    if flags & _COMPRESSED or _HEAD.size + size != len(body):
        raise HoldfastError("invalid_json", "the body is not one uncompressed envelope")
    return _message(body[_HEAD.size :])


async def _messages(request: Request) -> AsyncIterator[Message]:
    """The messages of a request as they come. Raises what ``body_chunk`` raises."""
    held, more = bytearray(), True
    while more:
        chunk, more = await body_chunk(request)
        reserve_memory(len(chunk))
        held += chunk
        while len(held) >= _HEAD.size:
            flags, size = _HEAD.unpack_from(held)
            if size > MESSAGE_BYTES or flags & _COMPRESSED:
                raise HoldfastError("request_too_large", f"a message has at most {MESSAGE_BYTES} bytes, and is not compressed")
            if len(held) < _HEAD.size + size:
                break
            body = bytes(held[_HEAD.size : _HEAD.size + size])
            del held[: _HEAD.size + size]
            reserve_memory(-len(body) - _HEAD.size)
            if not flags & _END:
                yield _message(body)
    if held:
        raise HoldfastError("invalid_json", "the body ends inside an envelope")


def _message(body: bytes) -> Message:
    try:
        message = orjson.loads(body or b"{}")
    except orjson.JSONDecodeError as error:
        raise HoldfastError("invalid_json", f"the message is not JSON: {error.msg}") from None
    if not isinstance(message, dict):
        raise HoldfastError("invalid_json", "the message is not a JSON object")
    return message


def _envelope(flags: int, message: Message) -> bytes:
    body = orjson.dumps(message)
    return _HEAD.pack(flags, len(body)) + body


def _pulse_s(request: Request) -> float:
    text = request.headers.get("keepalive-ping-interval", "")
    return max(float(text), _LEAST_PULSE_S) if text.isascii() and text.isdecimal() and len(text) < 6 else _PULSE_S
