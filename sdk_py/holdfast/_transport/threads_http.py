"""The HTTP client of the blocking face: one request, one answer.

Owns the connection pool. The library is loaded with the first request: who only attaches does not pay for it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from holdfast._options import Options
from holdfast._transport.http import KEEPALIVE, KEPT, Answer, unreachable
from holdfast._transport.threads_gates import Lock

if TYPE_CHECKING:
    import httpx


class Http:
    """Requests to one service, with its key."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._client: httpx.Client | None = None
        self._pid = 0
        self._lock = Lock()

    def send(self, method: str, path: str, *, timeout_s: float, headers: dict[str, str] | None = None, **more: Any) -> Answer:
        """One exchange; ``more`` is ``json``, ``params`` or ``content``. Raises ``ServiceUnavailableError`` without an answer."""
        import httpx

        client = self._client
        if client is None or self._pid != os.getpid():
            client = self._opened()
        timeout = httpx.Timeout(timeout_s, connect=self._options.connect_timeout_s)
        try:
            response = client.request(method, path, timeout=timeout, headers=headers, **more)
        except httpx.HTTPError as failure:
            reached = not isinstance(failure, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
            raise unreachable(self._options.url, str(failure) or type(failure).__name__, reached=reached) from None
        return Answer(response.status_code, response.headers, response.content)

    def _opened(self) -> httpx.Client:
        """The client of this process: a fork must not speak on its parent's connections."""
        import httpx

        with self._lock.own:
            client = self._client
            if client is None or self._pid != os.getpid():
                transport = httpx.HTTPTransport(
                    trust_env=False, socket_options=KEEPALIVE, limits=httpx.Limits(max_keepalive_connections=KEPT)
                )
                headers = {"X-API-Key": self._options.api_key, "User-Agent": "holdfast-python"}
                client = httpx.Client(base_url=self._options.url, headers=headers, trust_env=False, transport=transport)
                self._client, self._pid = client, os.getpid()
            return client

    def close(self) -> None:
        """Give the connections back."""
        client, self._client = self._client, None
        if client is not None and self._pid == os.getpid():
            client.close()
