"""Parsing the HTTP request that opens a connection to the agent, and writing responses and the upgrade to a WebSocket (RFC 6455 §4.2).

Owns the limit and the syntax of a request's head. ``connection`` handles the paths, ``adoption`` the only request with a body.
"""

from __future__ import annotations

import binascii

from holdfast_wire.errors import HoldfastError
from holdfast_wire.records import dataclass
from holdfast_wire.websocket_frames import accept_key

HEAD_BYTES = 16 * 1024
_REASONS = {101: "Switching Protocols", 200: "OK", 403: "Forbidden", 404: "Not Found"}


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The names in ``headers`` are in lower case."""

    method: str
    path: str
    headers: dict[str, str]


def read_head(data: bytes) -> tuple[RequestHead, bytes] | None:
    """The head at the start of ``data`` and the bytes after it, None until it is complete. Raises ``HoldfastError``."""
    head, end, rest = data.partition(b"\r\n\r\n")
    if len(head) > HEAD_BYTES:
        raise HoldfastError("request_too_large", f"a request's head must have at most {HEAD_BYTES} bytes")
    if not end:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise HoldfastError("invalid_argument", "the bytes received are not an HTTP request")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return RequestHead(words[0], words[1], headers), rest


def upgrade_headers(head: RequestHead) -> dict[str, str]:
    """The headers of the 101 response. Raises ``HoldfastError`` if the request is not a valid WebSocket upgrade."""
    key = head.headers.get("sec-websocket-key", "")
    try:
        sound = len(binascii.a2b_base64(key.encode(), strict_mode=True)) == 16
    except ValueError:
        sound = False
    options = [option.strip().lower() for option in head.headers.get("connection", "").split(",")]
    if not sound or "upgrade" not in options or head.headers.get("upgrade", "").lower() != "websocket":
        raise HoldfastError("invalid_argument", "the request is not a WebSocket upgrade")
    if head.headers.get("sec-websocket-version") != "13":
        raise HoldfastError("invalid_argument", "the agent supports version 13 of the WebSocket protocol")
    return {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Accept": accept_key(key)}


def answer(status: int, headers: dict[str, str], body: bytes | None = None) -> bytes:
    """A response; one with a body closes the connection."""
    if body is not None:
        headers = {**headers, "Content-Length": str(len(body)), "Connection": "close"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} {_REASONS.get(status, '-')}\r\n{lines}\r\n".encode() + (body or b"")
