"""HTTP/1.1 without I/O, as far as requests to one service need it: writing a request, and reading one answer from received bytes.

Pure. Owns framing (lengths, chunks, answers that end with their connection) and when a connection may carry the next request. Does not own
sockets (``threads.net``, ``aio.net``) nor what an answer means (``rest.answer``, ``session.websocket``). Reference: RFC 9112.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping

HEAD_BYTES = 64 * 1024
LAST_CHUNK = b"0\r\n\r\n"
_LINE_BYTES = 4096
_DIGITS = frozenset(b"0123456789")
_HEX = frozenset(b"0123456789abcdefABCDEF")
_NO_BODY = frozenset({101, 204, 304})


class AnswerError(ValueError):
    """The bytes received are not an HTTP response."""


def request_head(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    """The head of a request. Raises ``ValueError`` for a value that contains a line end or another forbidden character."""
    lines = [f"{method} {target} HTTP/1.1", *[f"{name}: {value}" for name, value in headers.items()]]
    text = "".join(lines)
    if not text.isascii() or not text.isprintable() or " " in target:
        raise ValueError("a header or path contains characters that HTTP does not allow")
    return "\r\n".join([*lines, "", ""]).encode("ascii")


def chunk(piece: bytes) -> bytes:
    """A chunk of a body of unknown length. It must not be empty, because an empty chunk ends the body."""
    return b"%x\r\n%b\r\n" % (len(piece), piece)


class AnswerReader:
    """Reads one answer: feed it the received bytes until it is ``done``. Raises ``AnswerError``."""

    def __init__(self, *, upgrades: bool = False) -> None:
        """``upgrades``: the request asked for another protocol, so status 101 is expected (RFC 9110 §7.8)."""
        self._upgrades = upgrades
        self.status = 0
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
            raise AnswerError(
                "the connection ended in the middle of the answer" if self.begun else "the connection ended without an answer"
            )

    def _parse(self) -> Iterator[None]:
        yield
        while True:
            yield from self._head()
            if self.status >= 200 or (self._upgrades and self.status == 101):
                break
        if self.status in _NO_BODY:
            return
        coding = self.headers.get("transfer-encoding", "").strip().lower()
        length = self.headers.get("content-length")
        if coding == "chunked":
            yield from self._chunks()
        elif coding:
            raise AnswerError(f"the answer is coded as {coding:.40}")
        elif length is not None:
            if not length or not set(length.encode()) <= _DIGITS or len(length) > 18:
                raise AnswerError("the answer has a malformed length")
            yield from self._take(int(length))
        else:
            self._keeps = False
            while not self._ended:
                self._move(len(self._buffer))
                yield
            self._move(len(self._buffer))

    def _head(self) -> Iterator[None]:
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if len(self._buffer) > HEAD_BYTES or not self._buffer.startswith(b"HTTP/1."[: len(self._buffer)]):
                raise AnswerError("the response is not HTTP/1.1")
            yield
        first, *lines = bytes(self._buffer[:end]).split(b"\r\n")
        del self._buffer[: end + 4]
        version, _, rest = first.partition(b" ")
        status = rest[:3]
        if version not in (b"HTTP/1.1", b"HTTP/1.0") or len(status) != 3 or not set(status) <= _DIGITS or rest[3:4] not in (b"", b" "):
            raise AnswerError("the response is not HTTP/1.1")
        self.status = int(status)
        if self.status == 101 and version == b"HTTP/1.0":
            raise AnswerError("HTTP/1.0 cannot change the protocol")
        self.headers = {}
        for line in lines:
            name, colon, value = line.decode("latin-1").partition(":")
            if not colon or name.split() != [name]:
                raise AnswerError("the answer has a malformed header")
            name, value = name.lower(), value.strip(" \t")
            if name in self.headers and name == "content-length" and self.headers[name] != value:
                raise AnswerError("the answer has two lengths")
            self.headers[name] = f"{self.headers[name]}, {value}" if name in self.headers and name != "content-length" else value
        options = {word.strip().lower() for word in self.headers.get("connection", "").split(",")}
        self._keeps = "close" not in options and (version == b"HTTP/1.1" or "keep-alive" in options)

    def _chunks(self) -> Iterator[None]:
        while True:
            line = yield from self._line()
            size = line.partition(b";")[0].strip()
            if not size or not set(size) <= _HEX or len(size) > 15:
                raise AnswerError("the answer has a malformed chunk")
            if not int(size, 16):
                break
            yield from self._take(int(size, 16))
            if (yield from self._line()):
                raise AnswerError("the answer has a malformed chunk")
        while (yield from self._line()):
            pass  # trailers are ignored

    def _line(self) -> Generator[None, None, bytes]:
        while (end := self._buffer.find(b"\r\n")) < 0:
            if len(self._buffer) > _LINE_BYTES:
                raise AnswerError("the answer has a malformed chunk")
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
