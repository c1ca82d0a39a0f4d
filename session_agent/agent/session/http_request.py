"""The HTTP request that opens a connection to the agent: the limit of its head, and its upgrade to a WebSocket (RFC 6455 §4.2).

``holdfast_wire.http1`` owns the syntax. ``connection`` handles the paths, ``adoption`` the only request with a body.
"""

from __future__ import annotations

import binascii

from holdfast_wire.errors import HoldfastError
from holdfast_wire.http1 import HttpError, RequestHead, read_request_head
from holdfast_wire.websocket_frames import accept_key

HEAD_BYTES = 16 * 1024


def read_head(data: bytes) -> tuple[RequestHead, bytes] | None:
    """The head at the start of ``data`` and the bytes after it, None until it is complete. Raises ``HoldfastError``."""
    head, end, rest = data.partition(b"\r\n\r\n")
    if len(head) > HEAD_BYTES:
        raise HoldfastError("request_too_large", f"a request's head must have at most {HEAD_BYTES} bytes")
    if not end:
        return None
    try:
        return read_request_head(head), rest
    except HttpError as wrong:
        raise HoldfastError("invalid_argument", f"the bytes received are not an HTTP request: {wrong}") from None


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
