"""A fault proxy: forwards between any two parts and delays, splits, cuts or drops the traffic, driven by a seed.

Owns a thread with its own event loop, so that it works for synchronous and asynchronous clients alike and is not affected by
them. Endpoints are ``tcp://host:port`` or ``unix:///path`` on either side; with several targets it is a plain balancer, round
robin. Every fault is counted in ``faults``; a test that fails prints the seed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Self

_CHUNK = 64 * 1024


@dataclass(frozen=True, slots=True)
class Weather:
    """The faults that are injected. ``cut_every_bytes`` is the mean number of bytes between cuts of one connection (0: none).

    ``split`` sends every chunk in small pieces, ``delay_s`` is the longest pause before a piece, ``rate_bytes_s`` a ceiling (0: none).
    ``linger`` is the share of cuts that the far side notices late (it sees silence first). ``lose`` is the share of chunks from the
    far side that are lost together with their connection, so that an answer never arrives at the near side.
    """

    cut_every_bytes: int = 0
    split: bool = False
    delay_s: float = 0.0
    rate_bytes_s: int = 0
    linger: float = 0.0
    lose: float = 0.0


@dataclass
class Faults:
    """How many faults were injected so far."""

    connections: int = 0
    cuts: int = 0
    refusals: int = 0
    frozen: int = 0
    bytes: int = 0

    @property
    def total(self) -> int:
        return self.cuts + self.refusals + self.frozen


class FaultProxy:
    """``with FaultProxy("tcp://127.0.0.1:8765", seed=7) as proxy: … proxy.port``"""

    def __init__(self, *targets: str, seed: int = 0, weather: Weather | None = None, listen_unix: str = "") -> None:
        self.targets = targets
        self.weather = weather or Weather()
        self.faults = Faults()
        self.port = 0
        self._listen_unix = listen_unix
        self._rng = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="fault-proxy", daemon=True)
        self._pairs: set[_Pair] = set()
        self._plan: deque[int] = deque()
        self._refusing = False
        self._turn = 0
        self._server: asyncio.Server | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._start)
        return self

    def __exit__(self, *exc: object) -> None:
        self._call(self._stop)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=60)
        self._loop.close()

    @property
    def url(self) -> str:
        """The URL that clients use instead of the target's."""
        return f"unix://{self._listen_unix}" if self._listen_unix else f"http://127.0.0.1:{self.port}"

    def cut_all(self) -> int:
        """Cut every connection now, mid-byte; returns how many there were."""

        async def cut() -> int:
            count = len(self._pairs)
            for pair in list(self._pairs):
                self._cut(pair)
            return count

        return int(self._call(cut))

    def refuse(self, on: bool) -> None:
        """Close every new connection at once, or stop doing so."""

        async def switch() -> None:
            self._refusing = on

        self._call(switch)

    def freeze(self) -> int:
        """A black hole: existing connections transmit nothing any more and are not closed. New ones work."""

        async def freeze() -> int:
            count = len(self._pairs)
            for pair in self._pairs:
                pair.flows.clear()
            self.faults.frozen += count
            return count

        return int(self._call(freeze))

    def thaw(self) -> None:
        """End the black hole: frozen connections transmit again, including the data that was held back."""

        async def thaw() -> None:
            for pair in self._pairs:
                pair.flows.set()

        self._call(thaw)

    def cut_next(self, *budgets: int) -> None:
        """Cut the next connection after the first number of bytes sent by the near side, the one after it after the second, …"""

        async def plan() -> None:
            self._plan.extend(budgets)

        self._call(plan)

    def retarget(self, *targets: str) -> None:
        """Send new connections to other targets."""
        self.targets = targets

    # Inside the loop --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _call(self, function: Callable[[], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            return await function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(timeout=60)

    async def _start(self) -> None:
        if self._listen_unix:
            self._server = await asyncio.start_unix_server(self._serve, self._listen_unix)
        else:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for pair in list(self._pairs):
            pair.abort()
        tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            self.faults.refusals += 1
            writer.transport.abort()
            return
        self.faults.connections += 1
        near_budget = [self._plan.popleft()] if self._plan else None
        far = await self._reach()
        if far is None:
            writer.transport.abort()
            return
        pair = _Pair(writer, far[1])
        self._pairs.add(pair)
        budget = self._distance()
        try:
            up = self._pump(reader, far[1], pair, near_budget or budget, 0.0)
            with contextlib.suppress(asyncio.CancelledError):  # the proxy stops; streams would report it as an error
                await asyncio.gather(up, self._pump(far[0], writer, pair, budget, self.weather.lose))
        finally:
            self._pairs.discard(pair)
            pair.abort()

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Connect to the next target that accepts; None if no target does."""
        targets = self.targets
        for _ in targets:
            scheme, _, rest = targets[self._turn % len(targets)].partition("://")
            self._turn += 1
            try:
                if scheme == "unix":
                    return await asyncio.open_unix_connection(rest)
                host, _, port = rest.rpartition(":")
                return await asyncio.open_connection(host, int(port))
            except OSError:
                continue
        return None

    def _distance(self) -> list[int]:
        mean = self.weather.cut_every_bytes
        return [int(self._rng.expovariate(1 / mean)) + 1 if mean else 1 << 62]

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pair: _Pair, budget: list[int], lose: float) -> None:
        try:
            while data := await reader.read(_CHUNK):
                if lose and self._rng.random() < lose:
                    self._cut(pair)
                    return
                for piece in self._pieces(data):
                    await pair.flows.wait()
                    if self.weather.delay_s:
                        await asyncio.sleep(self._rng.random() * self.weather.delay_s)
                    if self.weather.rate_bytes_s:
                        await asyncio.sleep(len(piece) / self.weather.rate_bytes_s)
                    passed = piece[: budget[0]]
                    budget[0] -= len(passed)
                    self.faults.bytes += len(passed)
                    writer.write(passed)
                    if budget[0] <= 0:
                        self._cut(pair)
                        return
                    await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()
        except (OSError, asyncio.IncompleteReadError):
            pair.abort()  # a reset on one side resets the other, as in any balancer

    def _pieces(self, data: bytes) -> list[bytes]:
        if not self.weather.split:
            return [data]
        pieces = []
        while data:
            size = self._rng.choice([1, 2, 7, 100, 1500, len(data)])
            pieces.append(data[:size])
            data = data[size:]
        return pieces

    def _cut(self, pair: _Pair) -> None:
        if pair not in self._pairs:
            return
        self._pairs.discard(pair)
        self.faults.cuts += 1
        if self._rng.random() < self.weather.linger:
            pair.near.transport.abort()  # the far side sees silence for a while
            self._loop.call_later(self._rng.random() * 2, pair.abort)
        else:
            pair.abort()


@dataclass(eq=False)
class _Pair:
    near: asyncio.StreamWriter
    far: asyncio.StreamWriter
    flows: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.flows.set()

    def abort(self) -> None:
        for writer in (self.near, self.far):
            sock = writer.get_extra_info("socket")
            if sock is not None and sock.family != socket.AF_UNIX:
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            writer.transport.abort()
