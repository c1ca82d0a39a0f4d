"""What a Redis URL leads to: one server, the primary that Sentinels name, or a cluster.

Owns the forms of the URL and the options of every connection. Does not connect and knows no time limit of a step. Called by
``redis_connection``.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from redis import asyncio as redis_asyncio
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

_SENTINEL_PORT = 26379
_SENTINEL_FORM = "redis+sentinel://:PASSWORD@HOST:26379,HOST:26379/SERVICE"
# No time limit of the client's own per command: it would use asyncio.wait_for, which on Python 3.11 can swallow a cancellation
# that comes in the moment the inner call ends (python/cpython#86296). `RedisConnection` limits the whole step instead.
_OPTIONS: dict[str, Any] = {
    "socket_timeout": None,
    "decode_responses": True,
    "encoding_errors": "replace",
    "protocol": 2,
}


class RedisAddress:
    """Makes connections, with ``make_connection``, or has the client of a ``cluster``.

    Raises ValueError if the URL has none of the forms; the message does not contain the URL, which may have a password in it.
    """

    def __init__(self, url: str, connect_timeout_s: float) -> None:
        self.cluster: RedisCluster | None = None
        self._sentinel: Sentinel | None = None
        self._pool: redis_asyncio.ConnectionPool | None = None
        options = {**_OPTIONS, "retry": Retry(NoBackoff(), 0)}
        scheme, _, rest = url.partition("://")
        if scheme in ("redis+cluster", "rediss+cluster"):
            # the limit of one connection: another server of the cluster may still answer within that of the step
            plain = f"{scheme.removesuffix('+cluster')}://{rest}"
            self.cluster = RedisCluster.from_url(plain, socket_connect_timeout=connect_timeout_s, **options)
            for command in ("HGETALL", "ZSCAN", "ZPOPMIN"):
                self.cluster.set_response_callback(command, lambda answer, **_: answer)  # type: ignore[arg-type]  # as one server
        elif scheme in ("redis+sentinel", "rediss+sentinel"):
            self._sentinel, self._pool = _sentinel(url, options, connect_timeout_s)
        else:
            try:
                self._pool = redis_asyncio.ConnectionPool.from_url(url, **options)
            except ValueError as error:
                raise ValueError(f"HOLDFAST_REDIS_URL: {error}") from None

    def make_connection(self) -> Any:
        """A connection that is opened at its first use, and led by the Sentinels, where there are some, each time that it is opened."""
        assert self._pool is not None, "a cluster has connections of its own"
        return self._pool.make_connection()  # type: ignore[no-untyped-call]

    async def aclose(self) -> None:
        if self.cluster is not None:
            await self.cluster.aclose()
        if self._sentinel is not None:
            for one in self._sentinel.sentinels:
                await one.aclose()


def _sentinel(url: str, options: dict[str, Any], connect_timeout_s: float) -> tuple[Sentinel, redis_asyncio.ConnectionPool]:
    parts = urlsplit(url)
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    service, _, database = parts.path.strip("/").partition("/")
    try:
        addresses = [_host_and_port(one) for one in hosts.split(",")]
        number = int(database or "0")
    except ValueError:
        addresses, number = [], -1
    if not addresses or not service or number < 0:
        raise ValueError(f"HOLDFAST_REDIS_URL: a URL of Sentinels has the form {_SENTINEL_FORM}")
    query = parse_qs(parts.query)
    encryption: dict[str, Any] = {"ssl": True} if parts.scheme.startswith("rediss") else {}
    # One that does not answer must leave time for the next ones within the time limit of a step.
    wait_s = connect_timeout_s / (len(addresses) + 1)
    asked: dict[str, Any] = {**options, **encryption, "socket_timeout": wait_s, "socket_connect_timeout": wait_s}
    for name in ("username", "password"):
        if given := query.get(f"sentinel_{name}"):
            asked[name] = given[0]
    sentinel = Sentinel(addresses, sentinel_kwargs=asked)  # type: ignore[no-untyped-call]
    login_options: dict[str, Any] = {"username": unquote(user) or None, "password": unquote(password) or None}
    client = sentinel.master_for(service, db=number, **options, **encryption, **login_options)
    return sentinel, client.connection_pool


def _host_and_port(text: str) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError("there is no host")
    return parts.hostname, parts.port or _SENTINEL_PORT
