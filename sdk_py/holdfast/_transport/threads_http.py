"""The HTTP client of the blocking face: one request, one answer.

Owns the connection pool. The library is loaded with the first request: who only attaches does not pay for it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from holdfast._options import Options
from holdfast._transport.http import KEEPALIVE, Answer, unreachable

if TYPE_CHECKING:
    import httpx


class Http:
    """Requests to one service, with its key."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._client: httpx.Client | None = None
        self._pid = 0

    def send(self, method: str, path: str, *, timeout_s: float, headers: dict[str, str] | None = None, **more: Any) -> Answer:
        """One exchange; ``more`` is ``json``, ``params`` or ``content``. Raises ``ServiceUnavailableError`` without an answer."""
        import httpx

        if self._pid != os.getpid():
            self._client = None  # a fork must not speak on its parent's connections
        if self._client is None:
            self._pid = os.getpid()
            self._client = httpx.Client(
                base_url=self._options.url,
                headers={"X-API-Key": self._options.api_key, "User-Agent": "holdfast-python"},
                trust_env=False,
                transport=httpx.HTTPTransport(trust_env=False, socket_options=KEEPALIVE),
            )
        timeout = httpx.Timeout(timeout_s, connect=self._options.connect_timeout_s)
        try:
            response = self._client.request(method, path, timeout=timeout, headers=headers, **more)
        except httpx.HTTPError as failure:
            reached = not isinstance(failure, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
            raise unreachable(self._options.url, str(failure) or type(failure).__name__, reached=reached) from None
        return Answer(response.status_code, response.headers, response.content)

    def close(self) -> None:
        """Give the connections back."""
        client, self._client = self._client, None
        if client is not None and self._pid == os.getpid():
            client.close()
