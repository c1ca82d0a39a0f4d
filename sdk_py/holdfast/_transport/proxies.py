"""The HTTP proxy through which the service is reached, if the environment names one, and its CONNECT request.

Owns the reading of ``HTTPS_PROXY``, ``HTTP_PROXY``, ``ALL_PROXY`` and ``NO_PROXY``, by ``urllib`` as in other Python programs, and the
proxy's answer. Requests and sessions both pass as a tunnel, so that a proxy need not know WebSockets. Does not own sockets: ``aio.net`` and
``threads.net`` connect.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from holdfast_wire.fast_dataclass import dataclass
from holdfast_wire.http1 import AnswerReader, HttpError, request_head

from holdfast._errors import ConfigurationError
from holdfast._urls import ServiceAddress

ANSWER_BYTES = 16 * 1024
_LOOPBACK = ("localhost", "127.", "::1", "[::1]")
"""These names mean this machine, which a proxy cannot reach."""


ADVICE = "check HTTPS_PROXY, HTTP_PROXY and ALL_PROXY, or name the service's host in NO_PROXY"


class ProxyError(ConnectionError):
    """The proxy cannot be reached, or did not open the tunnel."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.strerror = why


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy. ``authorization`` is the value of ``Proxy-Authorization``, empty without a user."""

    host: str
    port: int
    authorization: str = ""

    def request(self, address: ServiceAddress) -> bytes:
        """The request for a tunnel to the service (RFC 9110 §9.3.6)."""
        host = address.host if address.host.isascii() else address.host.encode("idna").decode()
        target = f"[{host}]:{address.port}" if ":" in host else f"{host}:{address.port}"
        about = {"Proxy-Authorization": self.authorization} if self.authorization else {}
        return request_head("CONNECT", target, {"Host": target, "User-Agent": "holdfast-python", **about})

    def answered(self, received: bytes) -> bool:
        """Whether the tunnel is open; False while more of the answer has to come. Raises ``ProxyError``."""
        reader = AnswerReader(tunnels=True)
        try:
            if len(received) > ANSWER_BYTES:
                raise HttpError("too long")
            if received:
                reader.feed(received)
        except HttpError:
            raise ProxyError(f"the proxy {self} does not speak HTTP") from None
        if reader.status >= 300 or reader.rest:
            raise ProxyError(f"the proxy {self} refuses the tunnel: {reader.status} {reader.reason[:80]}")
        return reader.done

    def ended(self) -> ProxyError:
        """The error of a connection that ended before its answer."""
        return ProxyError(f"the proxy {self} closed the connection")

    def unreachable(self, why: OSError) -> ProxyError:
        """The error of a connection to the proxy that failed, or had no answer in time."""
        if isinstance(why, ProxyError):
            return why
        cause = "no answer in time" if isinstance(why, TimeoutError) else why.strerror or type(why).__name__
        return ProxyError(f"the proxy {self} cannot be reached: {cause}")

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def proxy_for(address: ServiceAddress, is_local: Callable[[str], bool] | None = None) -> Proxy | None:
    """The proxy for a service; None if it is reached directly, as this machine always is. Raises ``ConfigurationError``."""
    if (is_local or is_loopback)(address.host) or not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

    proxies = getproxies_environment()
    url = proxies.get("https" if address.tls else "http") or proxies.get("all")
    if not url or proxy_bypass_environment(f"{address.host}:{address.port}", proxies):
        return None
    return _read(url)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine."""
    return host.startswith(_LOOPBACK) and (host in _LOOPBACK or host.replace(".", "").isdecimal())


def _read(url: str) -> Proxy:
    from urllib.parse import unquote, urlsplit

    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port or 80
    except ValueError:
        host, port = None, 0
    if not host or parts.scheme != "http":
        hint = "set HTTPS_PROXY or HTTP_PROXY to http://host:port, or NO_PROXY to the service's host"
        raise ConfigurationError("only HTTP proxies (http://host:port) are supported, and the environment names another", hint=hint)
    authorization = ""
    if parts.username is not None:
        from base64 import b64encode

        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = f"Basic {b64encode(pair.encode()).decode()}"
    return Proxy(host, port, authorization)
