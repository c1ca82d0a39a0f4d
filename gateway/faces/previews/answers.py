"""The reading of a program's answer: its head, and its body however it is framed. Pure; the bytes are those of an attacker.

Owns the limits of a head, and whether an answer is complete. llhttp, by ``httptools``, is the parser, in its strict form: lengths that
contradict each other, malformed fields and control characters are errors. Called by ``proxy``.
"""

from __future__ import annotations

from typing import Final

import httptools
from holdfast_wire.errors import HoldfastError

HEAD_BYTES: Final = 64 * 1024
"""Most bytes of a head, with those of the interim answers before it."""
_FIELDS: Final = 256


class AnswerReader:
    """One answer. ``feed`` it until ``complete``."""

    def __init__(self, method: str) -> None:
        self._without_body = method == "HEAD"
        self._parser = httptools.HttpResponseParser(self)
        self._received = False
        self._pending_bytes = 0
        """Bytes since the last part of the body: of a head, a trailer, a chunk's extension."""
        self._field_bytes = 0
        self._fault = ""
        self._until_end = True
        self.status = 0
        self.fields: list[tuple[bytes, bytes]] = []
        """Names in small letters."""
        self.head_complete = False
        self.complete = False
        self.upgraded = False
        """The answer is 101; ``rest`` are the bytes after it, of the other protocol."""
        self.rest = b""
        self.keeps_alive = False
        """Whether the connection may carry another request after this answer."""
        self._body: list[bytes] = []
        self._excess = False
        """More came than the answer: the next answer on this connection could be a forged one."""

    def feed(self, data: bytes) -> bytes:
        """The bytes of the body that ``data``, the next bytes of the connection, completes. Raises ``port_unreachable``."""
        self._received = True
        self._pending_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self.rest = data[upgrade.args[0] :]
        except httptools.HttpParserError as error:
            if not self.complete:
                raise _malformed(self._fault or "is not HTTP/1.1") from error
            self._excess = True
        if self._pending_bytes > HEAD_BYTES and not self.complete:
            raise _malformed("has too long a head, trailer or chunk extension")
        body, self._body = self._body, []
        return b"".join(body)

    def end(self) -> None:
        """The connection has ended. Raises ``port_unreachable`` if the answer is incomplete."""
        if self.head_complete and self._until_end:
            self.complete = True
        if not self.complete:
            raise _malformed("ended before it was complete" if self._received else "did not come: it closed the connection")

    @property
    def received(self) -> bool:
        """Whether anything came."""
        return self._received

    @property
    def reusable(self) -> bool:
        return self.complete and self.keeps_alive and not self._excess

    # What the parser reports ----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.complete:
            self._excess = True
        self.fields = [] if not self.complete else self.fields

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.head_complete:
            return  # a trailer
        self.fields.append((name.lower(), value))
        self._field_bytes += len(name) + len(value)
        if len(self.fields) > _FIELDS or self._field_bytes > HEAD_BYTES:
            self._fault = "has too long a head"
            raise ValueError(self._fault)

    def on_headers_complete(self) -> None:
        if self.complete:
            return
        status = self._parser.get_status_code()
        if not 100 <= status <= 599:
            self._fault = "has no valid status"
            raise ValueError(self._fault)
        if status < 200 and status != 101:
            return  # an interim answer, which a proxy need not forward (RFC 9110 §15.2)
        self.status, self.head_complete = status, True
        self._pending_bytes = 0
        self.upgraded = status == 101
        self.keeps_alive = self._parser.should_keep_alive()
        names = {name for name, _ in self.fields}
        self._until_end = not names & {b"content-length", b"transfer-encoding"}
        if self._without_body or self.upgraded:
            self.complete, self._until_end = True, False

    def on_body(self, body: bytes) -> None:
        self._pending_bytes = 0
        if self.complete:
            self._excess = True
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        if self.head_complete and not self.complete:
            self.complete = True


def _malformed(what: str) -> HoldfastError:
    message = f"the answer of the program in the sandbox {what}"
    return HoldfastError("port_unreachable", message, hint="check that it serves HTTP/1.1 on this port, and its log")
