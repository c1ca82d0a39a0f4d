"""One HTTP request to the service: its address and head, and the error of a failed connection.

Shared by both APIs: ``_async.http`` calls it, and the drivers of sessions. ``http1`` owns framing.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from holdfast._errors import HoldfastError, certificate_refused
from holdfast._options import Options
from holdfast._transport.http1 import request_head
from holdfast._transport.rest.answer import UnreachableError
from holdfast._urls import ServiceAddress, address_of, query_of

if TYPE_CHECKING:
    from ssl import SSLContext


class Service:
    """The address of one service, and the headers that every request to it has."""

    def __init__(self, options: Options) -> None:
        self.address = address_of(options.url)
        self._headers = {
            "Host": self.address.authority,
            "Accept": "*/*",
            "X-API-Key": options.api_key,
            "User-Agent": "holdfast-python",
        }

    @cached_property
    def tls_context(self) -> SSLContext | None:
        """The context that verifies the service's certificate; None without TLS."""
        if not self.address.tls:
            return None
        import ssl

        return ssl.create_default_context()

    def head(self, method: str, path: str, headers: dict[str, str] | None, about: dict[str, str], params: Any) -> bytes:
        """The head of a request; ``about`` describes the body. Raises ``ValueError`` for characters that a head cannot contain."""
        target = f"{self.address.path}{path}"
        if params:
            target += "?" + query_of(params.items() if isinstance(params, dict) else params)
        return request_head(method, target, {**self._headers, **about, **(headers or {})})


def body_of(method: str, more: dict[str, Any]) -> tuple[Any, dict[str, str]]:
    """The body for ``json`` or ``content``, as bytes or as an iterator of unknown length, and the headers that describe it."""
    if "json" in more:
        import json

        data = json.dumps(more["json"], ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        return data, {"Content-Type": "application/json", "Content-Length": str(len(data))}
    content = more.get("content")
    if content is None:
        return b"", {} if method in ("GET", "DELETE") else {"Content-Length": "0"}
    if isinstance(content, bytes):
        return content, {"Content-Length": str(len(content))}
    return content, {"Transfer-Encoding": "chunked"}


class LocalFailureError(Exception):
    """The content to send could not be read on this machine."""

    def __init__(self, why: OSError) -> None:
        super().__init__()
        self.why = why


def no_answer(failure: Exception, options: Options, timeout_s: float, *, reached: bool) -> Exception:
    """The error for a request that got no answer because of ``failure``."""
    if isinstance(failure, LocalFailureError):
        return failure.why
    why = getattr(failure, "verify_message", None) or getattr(failure, "strerror", None) or str(failure) or type(failure).__name__
    if isinstance(failure, TimeoutError):
        why = f"no answer within {timeout_s:g} s" if reached else f"no connection within {options.connect_timeout_s:g} s"
    lost = UnreachableError("service_unreachable", f"cannot reach {options.url}: {why}")
    lost.reached = reached
    return lost


def not_connected(failure: Exception, address: ServiceAddress, limit_s: float) -> tuple[str, HoldfastError | None]:
    """Why a session could not connect, and an error if further attempts would fail too. ``limit_s`` was the time limit."""
    if isinstance(failure, TimeoutError):
        return f"no answer from {address.host}:{address.port} within {limit_s:.2g} s", None
    refused = getattr(failure, "verify_message", None)
    why = f"cannot connect to {address.host}:{address.port}: {getattr(failure, 'strerror', None) or type(failure).__name__}"
    return why, None if refused is None else certificate_refused(refused)
