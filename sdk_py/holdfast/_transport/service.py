"""The service that a client speaks to: its address, the head of each request to it, and the error of a connection that failed.

Pure. Requests (``rest``, ``_async.http``) and the handshakes of sessions (``session``) use it; ``http1`` owns framing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from holdfast_wire.http1 import request_head

from holdfast._errors import HoldfastError, error
from holdfast._options import Options
from holdfast._transport.proxies import ADVICE, ProxyError, proxy_for
from holdfast._urls import address_of, query_of, quoted

if TYPE_CHECKING:
    from ssl import SSLContext

_PATH_SIGNS = "/:@!$&'()*+,;=~%-._"


@cache
def _program() -> str:
    """A random id of this program, the same in processes that it forks. The service compares it with that of who deleted a sandbox."""
    return os.urandom(12).hex()


class Service:
    """The address of one service, and the headers that every request to it has."""

    def __init__(self, options: Options) -> None:
        self.address = address_of(options.url)
        self.proxy = proxy_for(self.address)
        """The proxy through which it is reached."""
        self._key = options.api_key
        acting = {"X-Holdfast-Owner": options.owner, "X-Holdfast-Project": options.project}
        self._acting = {name: text for name, text in acting.items() if text}

    @cached_property
    def tls_context(self) -> SSLContext | None:
        """The context that verifies the service's certificate; None without TLS."""
        if not self.address.tls:
            return None
        import ssl

        return ssl.create_default_context()

    @cached_property
    def _headers(self) -> dict[str, str]:
        host = self.address.authority
        if not host.isascii():
            host = f"{self.address.host.encode('idna').decode()}:{self.address.port}"
        return {
            "Host": host,
            "Accept": "*/*",
            "X-API-Key": self._key,
            "User-Agent": "holdfast-python",
            "X-Holdfast-Program": _program(),
            **self._acting,
        }

    @cached_property
    def _path(self) -> str:
        return quoted(self.address.path, _PATH_SIGNS) if self.address.path else ""

    def head(self, method: str, path: str, headers: Mapping[str, str]) -> bytes:
        """The head of a request. Raises ``ValueError`` for characters that a head cannot contain."""
        return request_head(method, self._path + path, {**self._headers, **headers})

    def request(
        self, method: str, path: str, headers: Mapping[str, str], *, params: Any = None, json: Any = None, content: Any = None
    ) -> tuple[bytes, Any]:
        """Head and body of a request.

        The body is bytes, or ``content`` itself if that is an iterator of unknown length. Raises ``ValueError``.
        """
        about = {} if method in ("GET", "DELETE") else {"Content-Length": "0"}
        if json is not None:
            from json import dumps

            content = dumps(json, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
            about = {"Content-Type": "application/json"}
        if isinstance(content, bytes):
            about["Content-Length"] = str(len(content))
        elif content is not None:
            about = {"Transfer-Encoding": "chunked"}
        if params:
            path += "?" + query_of(params.items() if isinstance(params, dict) else params)
        return self.head(method, path, {**about, **headers}), content or b""

    def not_connected(self, failure: Exception, limit_s: float) -> tuple[str, HoldfastError | None]:
        """Why a session could not connect, and an error if further attempts would fail too. ``limit_s`` was the time limit."""
        host, port = (self.address.host, self.address.port) if self.proxy is None else (self.proxy.host, self.proxy.port)
        if isinstance(failure, ProxyError):
            return f"{failure}; {ADVICE}", None
        if isinstance(failure, TimeoutError):
            through = "" if self.proxy is None else "the proxy "
            return f"no answer from {through}{host}:{port} within {limit_s:.2g} s", None
        why = f"cannot connect to {host}:{port}: {getattr(failure, 'strerror', None) or type(failure).__name__}"
        refused = getattr(failure, "verify_message", None)
        if refused is None:
            return why, None
        message = f"the service's certificate is refused: {refused}"
        hint = "check HOLDFAST_URL, or let this machine trust the issuer of the certificate"
        return why, error("agent_identity", message, hint=hint, fault="caller", retryable=False)
