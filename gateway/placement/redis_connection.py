"""The only module that talks to Redis: connections, time limits, scripts, and the classification of its errors.

Owns the rule that every step ends within its time limit; that a connection to a former primary is made again; and the pause after a
failed connection, which keeps an outage from becoming a retry storm. Does not know what the steps mean, nor the forms of a URL
(``redis_address``). Called by ``redis_steps``.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from types import TracebackType
from typing import Any

from hiredis import pack_command
from redis.exceptions import (
    AskError,
    AuthenticationError,
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

from .errors import NO_ANSWER, FencedError, PlacementUnavailableError, UnreadableError
from .redis_address import RedisAddress

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
_NOT_PRIMARY = ("READONLY", "MASTERDOWN", "NOREPLICAS")
"""Refusals of a server that was the primary before a failover, or that its replicas have left: the address may lead elsewhere by now."""
_QUEUE_S = 5.0
"""How long a step waits for a connection that others use."""
_PIPELINE = 500
"""Most commands in one pipeline: bounds the memory of a reply."""
_PARTS = 8
"""Of a time limit."""


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
    """Connections to Redis whose every use answers in time or raises ``PlacementUnavailableError``. Answers are texts, numbers and lists.

    A cluster is left to the client's own pools. Otherwise the connections are kept here: the client's pool checks, locks and counts each
    use of one, which costs more than the command (decision 0084).
    """

    def __init__(self, settings: PlacementSettings) -> None:
        self._settings = settings
        self._address = RedisAddress(settings.redis_url, settings.connect_timeout_s)
        self._cluster = self._address.cluster
        self._retry_at = 0.0
        self._why = ""
        """Why the store did not answer last."""
        self._idle: list[_Kept] = []
        self._era = 0
        """Rises when the address may lead to another server than before: connections of an earlier era are made again before their use."""
        self._free = asyncio.Semaphore(settings.connections)
        self.steps = 0
        """Rises when a step begins and when it has ended, so that what was read between two equal numbers was changed by none of these."""

    async def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
        """Run one step."""
        self.steps += 1
        try:
            return (await self._answers([("EVALSHA", script.sha, len(keys), *keys, *arguments)]))[0]
        except NoScriptError:
            return (await self._answers([("EVAL", script.source, len(keys), *keys, *arguments)]))[0]
        finally:
            self.steps += 1

    async def run_many(self, script: Script, calls: Sequence[tuple[Sequence[str], Sequence[Argument]]]) -> list[Any]:
        """Run one step for many sandboxes; the answers keep the order. On one server all are carried out even if one fails."""
        if self._cluster is not None:
            return [await self.run(script, keys, arguments) for keys, arguments in calls]
        commands: list[tuple[Argument, ...]] = [("EVALSHA", script.sha, len(keys), *keys, *arguments) for keys, arguments in calls]
        try:
            return await self.many(commands)
        except NoScriptError:
            await self.command("SCRIPT", "LOAD", script.source)
            return await self.many(commands)

    async def command(self, *parts: Argument) -> Any:
        """Run one plain command."""
        return (await self._answers([parts]))[0]

    async def many(self, commands: Sequence[tuple[Argument, ...]]) -> list[Any]:
        """Run plain commands in as few round trips as possible."""
        answers: list[Any] = []
        for start in range(0, len(commands), _PIPELINE):
            answers += await self._answers(commands[start : start + _PIPELINE])
        return answers

    async def aclose(self) -> None:
        for kept in self._idle:
            await kept.connection.disconnect(nowait=True)
        await self._address.aclose()

    async def _answers(self, commands: Sequence[tuple[Argument, ...]]) -> list[Any]:
        """The answers to commands that are sent at once, within the time limit of a step once a connection is free.

        Raises the first error among them.
        """
        clock = asyncio.get_running_loop().time
        kept: _Kept | None = None
        if clock() < self._retry_at:
            raise PlacementUnavailableError(f"{NO_ANSWER}{self._why}")
        try:
            if self._cluster is not None:
                async with TurnLimit(self._settings.step_timeout_s):
                    return [await self._cluster.execute_command(*parts) for parts in commands]
            await self._wait_for_connection()
            try:
                if clock() < self._retry_at:  # the step that used the connection before has found that the store is down
                    raise PlacementUnavailableError(f"{NO_ANSWER}{self._why}")
                kept = self._idle.pop() if self._idle else _Kept(self._address.make_connection())
                try:
                    async with TurnLimit(self._settings.step_timeout_s):
                        return await self._exchange(kept, b"".join([pack_command(parts) for parts in commands]), len(commands))  # type: ignore[arg-type]
                finally:
                    self._idle.append(kept)
            finally:
                self._free.release()
        except NoScriptError:
            raise
        except (RedisError, RedisClusterException, OSError, TimeoutError) as error:
            if isinstance(error, ResponseError) and not isinstance(error, AskError):  # a redirection that led nowhere is an outage
                if "FENCED" in str(error):
                    raise FencedError from error
                if "WRONGTYPE" in str(error):
                    raise UnreadableError from error
                refusal = _refusal(error)
                if refusal is None:
                    raise  # a wrong script is our bug, not an outage
                raise PlacementUnavailableError(f"the placement store refuses to be written to: {refusal}") from error
            self._retry_at = clock() + self._settings.rest_after_failure_s
            self._era += 1  # a server that vanished breaks no connection: each of them would use up a time limit
            self._why = _why(error, connecting=kept is not None and kept.connecting)
            raise PlacementUnavailableError(f"{NO_ANSWER}{self._why}") from error

    async def _wait_for_connection(self) -> None:
        """Wait until a connection is free. Raises ``PlacementUnavailableError`` if all of them are in use for too long."""
        if not self._free.locked():
            await self._free.acquire()
            return
        try:
            async with TurnLimit(_QUEUE_S):
                await self._free.acquire()
        except TimeoutError:
            raise PlacementUnavailableError(f"the placement store is too slow: no connection was free for {_QUEUE_S:g} s") from None

    async def _exchange(self, kept: _Kept, packed: bytes, count: int) -> list[Any]:
        """Send packed commands and read their answers.

        A connection that broke since its last use, or whose server is no primary any more, is made again and the commands are repeated:
        all of them may be (``errors``). A server that was connected to just now is not tried again.
        """
        connection = kept.connection
        if kept.era != self._era:
            await connection.disconnect(nowait=True)
        while True:
            was_open = connection.is_connected
            try:
                if not was_open:
                    kept.era, kept.connecting = self._era, True
                    await connection.connect()  # sending would connect, but not ask the Sentinels
                    kept.connecting = False
                answers, refused = await _answers_of(connection, packed, count)
            except BaseException as error:
                await connection.disconnect(nowait=True)  # an answer may still arrive on it
                if not was_open or not isinstance(error, BrokenConnectionError | OSError):
                    raise
                continue
            if refused is None:
                return answers
            if _refusal(refused) not in _NOT_PRIMARY:
                raise refused
            if kept.era == self._era:
                self._era += 1
            await connection.disconnect(nowait=True)
            if not was_open:
                raise refused


class _Kept:
    """A connection, the era in which it was opened, and whether it is being opened or could not be."""

    __slots__ = ("connecting", "connection", "era")

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.era = 0
        self.connecting = False


async def _answers_of(connection: Any, packed: bytes, count: int) -> tuple[list[Any], ResponseError | None]:
    """The answers to packed commands, and the first error among them."""
    answers: list[Any] = []
    failed: ResponseError | None = None
    await connection.send_packed_command(packed, check_health=False)
    for _ in range(count):
        try:
            answers.append(await connection.read_response())
        except ResponseError as error:
            failed = failed or error
    return answers, failed


def _why(error: BaseException, *, connecting: bool) -> str:
    """What an operator has to look at, without addresses: clients of the service read it, too."""
    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, socket.gaierror):
            return ": its name cannot be resolved (DNS)"
        if isinstance(chain, ConnectionRefusedError):
            return ": it refuses connections"
        if isinstance(chain, AuthenticationError):
            return ": it does not accept the password"
        if isinstance(chain, ssl.SSLError):
            return ": TLS fails"
        chain = chain.__cause__ or chain.__context__
    if not isinstance(error, TimeoutError):
        return ""
    return (
        ": no connection to it within the time limit; its name may not be resolved (DNS)" if connecting else ": it exceeds the time limit"
    )


def _refusal(error: ResponseError) -> str | None:
    for kind, code in _REFUSALS:
        if isinstance(error, kind):
            return code
    found = _REFUSED.search(str(error))
    return found[1] if found else None


class TurnLimit:
    """As ``asyncio.timeout(limit_s)``, counted in eight parts, each of which ends in another iteration of the event loop.

    An iteration of any length uses up one part at most, and each iteration reads the bytes that have arrived. Otherwise a thousand requests
    that arrive together, which keep the loop busy for longer than a step may take, would be reported as an outage of the store. Raises
    ``TimeoutError``.
    """

    __slots__ = ("_left", "_limit", "_loop", "_part_s", "_timer")

    def __init__(self, limit_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._limit = asyncio.timeout(None)
        self._part_s = limit_s / _PARTS
        self._left = _PARTS

    async def __aenter__(self) -> None:
        await self._limit.__aenter__()
        self._timer = self._loop.call_later(self._part_s, self._part_ended)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._timer.cancel()
        await self._limit.__aexit__(kind, error, trace)

    def _part_ended(self) -> None:
        self._left -= 1
        if self._left:
            self._timer = self._loop.call_later(self._part_s, self._part_ended)
        else:
            self._limit.reschedule(self._loop.time())
