"""HTTP/1.1 messages without I/O: heads of requests and answers, written and read, and the bodies of answers (RFC 9112).

Pure. Owns the syntax of heads, framing (lengths, chunks, answers that end with their connection) and when a connection may carry the next
request. Does not own sockets, nor what a message means. Used by the SDK (requests, the handshake of sessions, tunnels of proxies), by the
session agent and by the controller's listener for metrics. The gateway's own requests are read by httptools, those of the recipes' proxy by
h11 (decision 0064).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping

from .fast_dataclass import dataclass

LAST_CHUNK = b"0\r\n\r\n"
_HEAD_BYTES = 64 * 1024
_LINE_BYTES = 4096
_DIGITS = frozenset(b"0123456789")
_HEX = frozenset(b"0123456789abcdefABCDEF")
_TOKEN = frozenset(b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
_NO_BODY = frozenset({101, 204, 304})
_SINGLE = frozenset({"content-length", "host"})
"""Fields that must not have two values."""
_REASONS = {101: "Switching Protocols", 200: "OK", 400: "Bad Request", 403: "Forbidden", 404: "Not Found"}


class HttpError(ValueError):
    """The bytes received are not an HTTP/1.1 message."""


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The names in ``headers`` are in lower case; the values of repeated ones are joined by commas."""

    method: str
    target: str
    headers: dict[str, str]

    def content_length(self) -> int | None:
        """The size of the body; None if it is not stated, or stated in another way. Raises ``HttpError`` for a malformed one."""
        return None if "transfer-encoding" in self.headers else _content_length(self.headers)


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """As ``RequestHead``. ``keeps``: whether the connection may carry another request after a body of a known length."""

    status: int
    reason: str
    headers: dict[str, str]
    keeps: bool


def request_head(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    """The head of a request. Raises ``ValueError`` for a value that contains a line end or another forbidden character."""
    lines = [f"{method} {target} HTTP/1.1", *[f"{name}: {value}" for name, value in headers.items()]]
    text = "".join(lines)
    if not text.isascii() or not text.isprintable() or " " in target:
        raise ValueError("a header or path contains characters that HTTP does not allow")
    return "\r\n".join([*lines, "", ""]).encode("ascii")


def answer(status: int, headers: Mapping[str, str], body: bytes | None = None) -> bytes:
    """A response; one with a body closes the connection."""
    if body is not None:
        headers = {**headers, "Content-Length": str(len(body)), "Connection": "close"}
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    return f"HTTP/1.1 {status} {_REASONS.get(status, '-')}\r\n{lines}\r\n".encode() + (body or b"")


def chunk(piece: bytes) -> bytes:
    """A chunk of a body of unknown length. It must not be empty, because an empty chunk ends the body."""
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def read_request_head(data: bytes) -> RequestHead:
    """The head of a request, from its bytes up to the empty line, exclusively. Raises ``HttpError``."""
    first, *lines = data.split(b"\r\n")
    words = first.split(b" ")
    if len(words) != 3 or words[2] not in (b"HTTP/1.1", b"HTTP/1.0") or not words[0] or not set(words[0]) <= _TOKEN:
        raise HttpError("not an HTTP/1.1 request")
    target = words[1].decode("latin-1")
    if not target or not target.isascii() or not target.isprintable():
        raise HttpError("a malformed path")
    return RequestHead(words[0].decode(), target, _read_headers(data, lines))


def read_answer_head(data: bytes) -> AnswerHead:
    """The head of an answer, from its bytes up to the empty line, exclusively. Raises ``HttpError``."""
    first, *lines = data.split(b"\r\n")
    version, _, rest = first.partition(b" ")
    status = rest[:3]
    if version not in (b"HTTP/1.1", b"HTTP/1.0") or len(status) != 3 or not set(status) <= _DIGITS or rest[3:4] not in (b"", b" "):
        raise HttpError("the response is not HTTP/1.1")
    headers = _read_headers(data, lines)
    options = {word.strip().lower() for word in headers.get("connection", "").split(",")}
    keeps = "close" not in options and (version == b"HTTP/1.1" or "keep-alive" in options)
    if status == b"101" and version == b"HTTP/1.0":
        raise HttpError("HTTP/1.0 cannot change the protocol")
    return AnswerHead(int(status), rest[4:].decode("latin-1"), headers, keeps)


def _read_headers(head: bytes, lines: list[bytes]) -> dict[str, str]:
    """The fields in ``lines``, which are those of ``head`` after the first."""
    if b"\0" in head or head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines):
        raise HttpError("a malformed head")
    headers: dict[str, str] = {}
    for line in lines:
        raw, colon, rest = line.partition(b":")
        if not colon or not raw or not set(raw) <= _TOKEN:
            raise HttpError("a malformed header")
        name, value = raw.decode().lower(), rest.decode("latin-1").strip(" \t")
        if name not in headers:
            headers[name] = value
        elif name not in _SINGLE:
            headers[name] += f", {value}"
        elif headers[name] != value or name == "host":
            raise HttpError(f"two values of {name}")
    return headers


def _content_length(headers: Mapping[str, str]) -> int | None:
    length = headers.get("content-length")
    if length is None:
        return None
    if not length or not set(length.encode()) <= _DIGITS or len(length) > 18:
        raise HttpError("a malformed length")
    return int(length)


class AnswerReader:
    """Reads one answer: feed it the received bytes until it is ``done``. Raises ``HttpError``."""

    def __init__(self, *, upgrades: bool = False, tunnels: bool = False) -> None:
        """``upgrades``: the request asked for another protocol, so status 101 is expected (RFC 9110 §7.8).

        ``tunnels``: it was a CONNECT, so that a good answer has no body (RFC 9110 §9.3.6).
        """
        self._upgrades = upgrades
        self._tunnels = tunnels
        self.status = 0
        self.reason = ""
        self.headers: dict[str, str] = {}
        self.done = False
        self.begun = False
        """Whether any byte of the answer has arrived."""
        self._keeps = False
        self._buffer = bytearray()
        self._body: list[bytes] = []
        self._parts = self._parse()
        next(self._parts)
        self._ended = False

    @property
    def body(self) -> bytes:
        return b"".join(self._body)

    def take_body(self) -> bytes:
        """The part of the body that has arrived, which ``body`` then does not contain."""
        body = self.body
        self._body.clear()
        return body

    @property
    def rest(self) -> bytes:
        """The bytes after the answer."""
        return bytes(self._buffer) if self.done else b""

    @property
    def reusable(self) -> bool:
        """Whether the connection may carry another request: the answer is complete, and no bytes follow it."""
        return self.done and self._keeps and not self._buffer

    def feed(self, data: bytes) -> None:
        """Add received bytes; an empty value is the end of the connection."""
        if self.done:
            self._buffer += data
            return
        self.begun |= bool(data)
        self._ended = not data
        self._buffer += data
        try:
            next(self._parts)
        except StopIteration:
            self.done = True
            return
        if self._ended:
            raise HttpError("the connection ended in the middle of the answer" if self.begun else "the connection ended without an answer")

    def _parse(self) -> Iterator[None]:
        yield
        while True:
            yield from self._head()
            if self.status >= 200 or (self._upgrades and self.status == 101):
                break
        if self.status in _NO_BODY or (self._tunnels and self.status < 300):
            return
        coding = self.headers.get("transfer-encoding", "").strip().lower()
        length = _content_length(self.headers)
        if coding == "chunked":
            yield from self._chunks()
        elif coding:
            raise HttpError(f"the answer is coded as {coding:.40}")
        elif length is not None:
            yield from self._take(length)
        else:
            self._keeps = False
            while not self._ended:
                self._move(len(self._buffer))
                yield
            self._move(len(self._buffer))

    def _head(self) -> Iterator[None]:
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if len(self._buffer) > _HEAD_BYTES or not self._buffer.startswith(b"HTTP/1."[: len(self._buffer)]):
                raise HttpError("the response is not HTTP/1.1")
            yield
        head = read_answer_head(bytes(self._buffer[:end]))
        del self._buffer[: end + 4]
        self.status, self.reason, self.headers, self._keeps = head.status, head.reason, head.headers, head.keeps

    def _chunks(self) -> Iterator[None]:
        while True:
            line = yield from self._line()
            size = line.partition(b";")[0].strip()
            if not size or not set(size) <= _HEX or len(size) > 15:
                raise HttpError("the answer has a malformed chunk")
            if not int(size, 16):
                break
            yield from self._take(int(size, 16))
            if (yield from self._line()):
                raise HttpError("the answer has a malformed chunk")
        while (yield from self._line()):
            pass  # trailers are ignored

    def _line(self) -> Generator[None, None, bytes]:
        while (end := self._buffer.find(b"\r\n")) < 0:
            if len(self._buffer) > _LINE_BYTES:
                raise HttpError("the answer has a malformed chunk")
            yield
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def _take(self, size: int) -> Iterator[None]:
        while size > len(self._buffer):
            size -= self._move(len(self._buffer))
            yield
        self._move(size)

    def _move(self, size: int) -> int:
        """Move bytes of the body out of the buffer."""
        if size:
            self._body.append(bytes(memoryview(self._buffer)[:size]))
            del self._buffer[:size]
        return size
