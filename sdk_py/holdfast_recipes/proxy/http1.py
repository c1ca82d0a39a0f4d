"""One HTTP/1.1 connection of a client: requests in, answers out, and whether the client has disconnected.

Owns bytes and framing, by h11, over asyncio streams. Independent of the dialects. A client that closes its side before its answer has
disconnected; one that resets the connection after the answer was written had not read all of it.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

import h11

from .refusals import RefusalError

MAX_BODY_BYTES = 64 * 1024 * 1024
_MAX_HEAD_BYTES = 64 * 1024
_PIECE_BYTES = 64 * 1024
_MAX_EARLY_BYTES = 1024 * 1024
_LINGER_S = 2.0


class DisconnectedError(Exception):
    """The client is gone. ``reset``: it dropped what had been written to it."""

    def __init__(self, *, reset: bool = False) -> None:
        super().__init__("the client hung up")
        self.reset = reset


@dataclass(frozen=True, slots=True)
class HttpRequest:
    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case; of several lines with one name the last."""
    body: bytes


class Connection:
    """Use ``request`` and an answer (``respond``, or ``start``, ``send``, ``finish``) in turn until ``request`` gives None."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD_BYTES)
        writer.transport.set_write_buffer_limits(high=0)  # a drain waits until the kernel has all: what was not taken was not read

    async def request(self, admit: Callable[[HttpRequest], None]) -> HttpRequest | None:
        """The next request, None at the end. ``admit`` is called with its head, before any of its body is read, and may refuse it.

        Raises DisconnectedError, and RefusalError for what is no request or was refused; the connection is then to be closed.
        """
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        elif self._http.our_state is not h11.IDLE:
            return None
        try:
            head = await self._next()
            if not isinstance(head, h11.Request):
                return None
            headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in head.headers}
            path = unquote(urlsplit(head.target.decode("latin-1")).path)
            admit(HttpRequest(head.method.decode("latin-1"), path, headers, b""))
            body = bytearray()
            while isinstance(event := await self._next(), h11.Data):
                body += event.data
                if len(body) > MAX_BODY_BYTES:
                    raise RefusalError("too_large", f"a request has at most {MAX_BODY_BYTES} bytes")
        except h11.RemoteProtocolError as error:
            raise RefusalError("invalid", f"not HTTP: {error}") from None
        if not isinstance(event, h11.EndOfMessage):
            return None
        return HttpRequest(head.method.decode("latin-1"), path, headers, _plain(bytes(body), headers.get("content-encoding", "")))

    async def respond(self, status: int, body: bytes, headers: Sequence[tuple[str, str]] = (), *, bodiless: bool = False) -> None:
        """A whole answer. ``bodiless`` for HEAD: the length without the bytes."""
        length = [("Content-Length", str(len(body))), ("Content-Type", "application/json"), *headers]
        data = self._head(status, length) + (b"" if bodiless else self._sent(h11.Data(data=body)))
        await self._write(data + self._sent(h11.EndOfMessage()))

    async def start(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        await self._write(self._head(status, [*headers, ("Transfer-Encoding", "chunked")]))

    async def send(self, data: bytes, *, last: bool = False) -> None:
        """A piece of a body that ``start`` began; with the last one goes the end, so that who reads the one has the other."""
        framed = self._sent(h11.Data(data=data))
        await self._write(framed + (self._sent(h11.EndOfMessage()) if last else b""))

    async def until_disconnected(self) -> None:
        """Return when the client has disconnected. Bytes that it sends before are kept for the next request."""
        early = 0
        while early < _MAX_EARLY_BYTES:
            try:
                data = await self._reader.read(_PIECE_BYTES)
            except OSError:
                return
            if not data:
                return
            early += len(data)
            self._http.receive_data(data)

    @property
    def gone(self) -> bool:
        """Whether the end of the client's side has been read."""
        return self._reader.at_eof() or self._reader.exception() is not None

    async def linger(self) -> None:
        """Read what the client still sends, for a moment: closing before would drop the answer as well."""
        try:
            async with asyncio.timeout(_LINGER_S):
                self._writer.write_eof()
                while await self._reader.read(_PIECE_BYTES):
                    pass
        except (OSError, TimeoutError):
            pass

    async def close(self) -> None:
        """End the connection; what a client that is gone did not take is dropped."""
        if self._writer.transport.get_write_buffer_size():
            self._writer.transport.abort()
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            pass

    async def _next(self) -> h11.Event | type[h11.NEED_DATA | h11.PAUSED]:
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            if self._http.they_are_waiting_for_100_continue:
                await self._write(self._sent(h11.InformationalResponse(status_code=100, headers=[])))
            try:
                self._http.receive_data(await self._reader.read(_PIECE_BYTES))
            except OSError:
                raise DisconnectedError(reset=True) from None

    def _head(self, status: int, headers: Sequence[tuple[str, str]]) -> bytes:
        return self._sent(h11.Response(status_code=status, headers=[(name.encode(), value.encode()) for name, value in headers]))

    def _sent(self, event: h11.Event) -> bytes:
        return self._http.send(event) or b""

    async def _write(self, data: bytes) -> None:
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError:
            raise DisconnectedError(reset=True) from None


def _plain(body: bytes, encoding: str) -> bytes:
    """The body without its content encoding, which bounds what it may become."""
    if encoding.lower() in ("", "identity"):
        return body
    if encoding.lower() not in ("gzip", "x-gzip", "deflate"):
        raise RefusalError("encoding", f"the content encoding {encoding!r} is not supported: gzip and deflate are")
    reader = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        plain = reader.decompress(body, MAX_BODY_BYTES + 1)
    except zlib.error as error:
        raise RefusalError("invalid", f"the body is not {encoding}: {error}") from None
    if len(plain) > MAX_BODY_BYTES:
        raise RefusalError("too_large", f"a request has at most {MAX_BODY_BYTES} bytes")
    if not reader.eof:
        raise RefusalError("invalid", f"the {encoding} body ends in the middle")
    return plain
