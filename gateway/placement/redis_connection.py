"""The only module that connects to Redis: connections, time limits, scripts, and the classification of its errors.

Owns the client, the rule that every step ends within its time limit, and the pause after a failed connection, which keeps an outage
from becoming a retry storm. Does not know what the steps mean. Called by ``redis_steps``.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from redis import asyncio as redis_asyncio
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as BrokenConnectionError

from gateway.settings import PlacementSettings

from .errors import PlacementUnavailableError, UnreadableError

Argument = str | bytes | int | float

_REFUSALS: tuple[tuple[type[ResponseError], str], ...] = (
    (OutOfMemoryError, "OOM"),
    (ReadOnlyError, "READONLY"),
    (NoPermissionError, "NOPERM"),
    (MasterDownError, "MASTERDOWN"),
    (ClusterDownError, "CLUSTERDOWN"),
    (TryAgainError, "TRYAGAIN"),
)
"""Refusals of a Redis that answers but does not carry a step out, as Redis 7 reports them from scripts. The client strips the codes."""
_REFUSED = re.compile(r"\b(OOM|READONLY|NOREPLICAS|MISCONF|MASTERDOWN|CLUSTERDOWN|LOADING|BUSY|TRYAGAIN|NOPERM)\b")
"""The same in the text of other errors: before 7.0 a refusal inside a script is a plain error of the script."""
_PIPELINE = 500
"""Most commands in one pipeline: bounds the memory of a reply."""


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua step with the shared functions in front."""

    name: str
    source: str
    sha: str


def load_script(name: str) -> Script:
    """Read ``scripts/<name>.lua``."""
    here = resources.files(__package__) / "scripts"
    source = here.joinpath("common.lua").read_text() + "\n" + here.joinpath(f"{name}.lua").read_text()
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


class RedisConnection:
    """A client whose every call answers in time or raises ``PlacementUnavailableError``."""

    def __init__(self, settings: PlacementSettings) -> None:
        self._settings = settings
        self._client = _client(settings)
        self._clustered = isinstance(self._client, RedisCluster)
        self._retry_at = 0.0
        self._readers: list[Any] = []
        """Connections of ``read`` that no step uses."""
        self._reading = 0

    async def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
        """Run one step."""

        async def step() -> Any:
            try:
                return await self._client.evalsha(script.sha, len(keys), *keys, *arguments)
            except NoScriptError:
                return await self._client.eval(script.source, len(keys), *keys, *arguments)

        return await self._guard(step)

    async def run_many(self, script: Script, calls: Sequence[tuple[Sequence[str], Sequence[Argument]]]) -> list[Any]:
        """Run one step for many sandboxes; the answers keep the order."""
        if not calls:
            return []
        if not self._clustered:
            # A script that EVAL has seen is known to EVALSHA, so the first call loads it for the pipeline.
            first = await self.run(script, *calls[0])
            rest = await self.many([("EVALSHA", script.sha, len(keys), *keys, *arguments) for keys, arguments in calls[1:]])
            return [first, *rest]
        return [await self.run(script, keys, arguments) for keys, arguments in calls]

    async def command(self, *parts: Argument) -> Any:
        """Run one plain command."""
        return await self._guard(lambda: self._client.execute_command(*parts))

    async def read(self, *parts: Argument) -> Any:
        """Run one plain command that changes nothing, on a connection of its own: a third of what a connection of the pool costs.

        The pool checks, locks and counts each use of a connection. One of these that broke since its last use is connected again.
        """
        return await self._guard(lambda: self._read(parts))

    async def _read(self, parts: tuple[Argument, ...]) -> Any:
        if self._clustered or self._reading >= _readers(self._settings):
            return await self._client.execute_command(*parts)
        self._reading += 1
        reader = self._readers.pop() if self._readers else self._client.connection_pool.make_connection()
        try:
            while True:
                may_be_stale = reader.is_connected
                try:
                    await reader.send_packed_command(reader.pack_command(*parts), check_health=False)
                    return await reader.read_response()
                except ResponseError:
                    raise
                except BaseException as error:
                    await reader.disconnect(nowait=True)  # an answer may still come over it
                    if not may_be_stale or not isinstance(error, BrokenConnectionError | OSError):
                        raise
        finally:
            self._readers.append(reader)
            self._reading -= 1

    async def many(self, commands: Sequence[tuple[Argument, ...]]) -> list[Any]:
        """Run plain commands in as few round trips as possible."""
        answers: list[Any] = []
        for start in range(0, len(commands), _PIPELINE):
            part = commands[start : start + _PIPELINE]

            async def batch(part: Iterable[tuple[Argument, ...]] = part) -> list[Any]:
                if self._clustered:
                    return [await self._client.execute_command(*parts) for parts in part]
                pipeline = self._client.pipeline(transaction=False)
                for parts in part:
                    pipeline.execute_command(*parts)
                return list(await pipeline.execute())

            answers += await self._guard(batch)
        return answers

    async def aclose(self) -> None:
        for reader in self._readers:
            await reader.disconnect(nowait=True)
        await self._client.aclose()

    async def _guard(self, step: Callable[[], Awaitable[Any]]) -> Any:
        clock = asyncio.get_running_loop().time
        if clock() < self._retry_at:
            raise PlacementUnavailableError
        try:
            async with asyncio.timeout(self._settings.step_timeout_s):
                return await step()
        except (RedisError, RedisClusterException, OSError, TimeoutError) as error:
            if isinstance(error, ResponseError) and not isinstance(error, AskError):  # a redirection that led nowhere is an outage
                if "WRONGTYPE" in str(error):
                    raise UnreadableError from error
                refusal = _refusal(error)
                if refusal is None:
                    raise  # a wrong script is our bug, not an outage
                raise PlacementUnavailableError(f"the placement store refuses to be written to: {refusal}") from error
            self._retry_at = clock() + self._settings.rest_after_failure_s
            raise PlacementUnavailableError from error


def _refusal(error: ResponseError) -> str | None:
    for kind, code in _REFUSALS:
        if isinstance(error, kind):
            return code
    found = _REFUSED.search(str(error))
    return found[1] if found else None


def _readers(settings: PlacementSettings) -> int:
    """How many of the connections are for ``read``."""
    return settings.connections // 4


def _client(settings: PlacementSettings) -> Any:
    # No time limit of the client's own per command: it would use asyncio.wait_for, which on Python 3.11 can swallow a cancellation
    # that comes in the moment the inner call ends (python/cpython#86296). `_guard` limits the whole step instead.
    options: dict[str, Any] = {
        "socket_timeout": None,
        "socket_connect_timeout": settings.connect_timeout_s,
        "retry": Retry(NoBackoff(), 0),
    }
    scheme, clustered, rest = settings.redis_url.partition("+cluster://")
    if clustered:
        return RedisCluster.from_url(f"{scheme}://{rest}", **options)
    pool = redis_asyncio.BlockingConnectionPool.from_url(
        settings.redis_url, max_connections=settings.connections - _readers(settings), timeout=settings.step_timeout_s, **options
    )
    return redis_asyncio.Redis.from_pool(pool)
