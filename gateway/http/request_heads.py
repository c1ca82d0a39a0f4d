"""The checks of a request's head that HTTP requires of a server (RFC 9112 §2.3, §3.2, §6.1) and the parser does not make.

Pure. Owns which heads are refused, and with which status. Called by ``bounded_protocol`` for each head.
"""

from __future__ import annotations

import re
from typing import Final

from holdfast_wire.errors import HoldfastError

HEAD_FIELDS: Final = 256
"""Most fields of a head and its trailers together."""
FIELDS_TOO_LARGE: Final = 431
_VERSION_NOT_SUPPORTED: Final = 505
_HOST: Final = re.compile(rb"[A-Za-z0-9._~%!$&'()*+,;=:\[\]-]*")
"""What a ``Host`` field may consist of (RFC 3986 §3.2.2)."""


def checked_head(version: str, fields: list[tuple[bytes, bytes]]) -> tuple[tuple[int, HoldfastError] | None, int]:
    """The status and error for a head that must be refused, None for one that is served; and the bytes of its body, 0 if not stated.

    ``fields`` have names in small letters.
    """
    hosts = codings = body_bytes = 0
    for name, value in fields:
        if name == b"host":
            hosts += 1 if _HOST.fullmatch(value) else 2
        elif name == b"transfer-encoding":
            codings += 1 if value.lower() == b"chunked" else 2
        elif name == b"content-length":
            body_bytes = int(value)
    if hosts == 1 and not codings and version == "1.1" and len(fields) <= HEAD_FIELDS:
        return None, body_bytes
    return _fault(version, len(fields), hosts, codings), body_bytes


def _fault(version: str, fields: int, hosts: int, codings: int) -> tuple[int, HoldfastError] | None:
    if fields > HEAD_FIELDS:
        return FIELDS_TOO_LARGE, HoldfastError("request_too_large", f"the request has over {HEAD_FIELDS} header fields")
    if version not in ("1.1", "1.0"):
        hint = "send HTTP/1.1; a proxy in front of the gateway can accept other versions"
        return _VERSION_NOT_SUPPORTED, HoldfastError("protocol_error", f"HTTP/{version} is not supported", hint=hint)
    if hosts > 1 or (not hosts and version == "1.1"):
        return 400, HoldfastError("protocol_error", "a request must have one valid Host field", hint="see RFC 9112 §3.2")
    if codings > 1:
        return 501, HoldfastError("unsupported", "the only supported transfer coding is chunked", hint="send the body without others")
    if codings and version == "1.0":
        return 400, HoldfastError("protocol_error", "HTTP/1.0 has no Transfer-Encoding", hint="send HTTP/1.1, or a Content-Length")
    return None
