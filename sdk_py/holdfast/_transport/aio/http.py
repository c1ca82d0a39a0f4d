"""The HTTP client of the asynchronous API: one request, one answer.

Owns the connection pool. The library is loaded with the first request: a program that only attaches does not load it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from holdfast._options import Options
from holdfast._transport.rest.answer import KEEPALIVE, KEPT, Answer, unreachable

if TYPE_CHECKING:
    import httpx


class Http:
    """Requests to one service, with its key."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._client: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def connected(self) -> bool:
        """Whether there is a pool to give back."""
        return self._client is not None

    async def send(self, method: str, path: str, *, timeout_s: float, headers: dict[str, str] | None = None, **more: Any) -> Answer:
        """One exchange; ``more`` is ``json``, ``params`` or ``content``. Raises ``ServiceUnavailableError`` without an answer."""
        import httpx

        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._client = None  # its connections are the other loop's
        client = self._client
        if client is None:
            self._loop = loop
            client = self._client = httpx.AsyncClient(
                base_url=self._options.url,
                headers={"X-API-Key": self._options.api_key, "User-Agent": "holdfast-python"},
                trust_env=False,
                transport=httpx.AsyncHTTPTransport(
                    trust_env=False, socket_options=KEEPALIVE, limits=httpx.Limits(max_keepalive_connections=KEPT)
                ),
            )
        timeout = httpx.Timeout(timeout_s, connect=self._options.connect_timeout_s)
        try:
            response = await client.request(method, path, timeout=timeout, headers=headers, **more)
        except httpx.HTTPError as failure:
            reached = not isinstance(failure, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
            raise unreachable(self._options.url, str(failure) or type(failure).__name__, reached=reached) from None
        return Answer(response.status_code, response.headers, response.content)

    async def close(self) -> None:
        """Give the connections back."""
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.aclose()
