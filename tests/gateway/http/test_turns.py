"""Connections without a valid key share what one turn of the event loop may do, and addresses are served in rotation."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter

import pytest

from gateway.http.bounded_protocol import BoundedHttpProtocol
from gateway.turns import STEPS, turns
from tests.gateway.harness import ADA, DEADLINE_S, Served

_GET = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
_FLOODING = 100
_HEADS_MOST = 12
"""Of connections without a key, in one turn: two budgets, because a turn of the test's clock may see the end of one and the next."""
_BEFORE_MOST = 4 * _HEADS_MOST
"""Of them, before the request of another connection that was sent in the same turn; less than ``_FLOODING``."""
_FLOOD, _OTHER = "127.0.0.2", "127.0.0.1"


class _Watched:
    """The heads that were parsed, in order: the turn of the event loop, and the address or "key" on a connection with a valid key."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Before the first connection, whose parser keeps the callbacks it was made with."""
        self.heads: list[tuple[int, str]] = []
        self._turn = 0
        self._loop = asyncio.get_running_loop()
        parsed = BoundedHttpProtocol.on_headers_complete

        def on_headers_complete(protocol: BoundedHttpProtocol) -> None:
            assert protocol.client is not None
            self.heads.append((self._turn, "key" if protocol._with_key else protocol.client[0]))
            parsed(protocol)

        monkeypatch.setattr(BoundedHttpProtocol, "on_headers_complete", on_headers_complete)
        self._handle = self._loop.call_soon(self._tick)

    def stop(self) -> None:
        self._handle.cancel()

    def _tick(self) -> None:
        self._turn += 1
        self._handle = self._loop.call_soon(self._tick)


async def _connected(served: Served, source: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    port = int(served.url.rpartition(":")[2])
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))


async def _close(*opened: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
    for _, writer in opened:
        writer.transport.abort()
    for _, writer in opened:
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def test_a_flood_without_a_key_is_parsed_a_few_heads_a_turn_and_delays_no_other_address(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = _Watched(monkeypatch)
    flood = [await _connected(served, _FLOOD) for _ in range(_FLOODING)]
    reader, writer = await _connected(served, _OTHER)
    for _, flooding in flood:
        flooding.write(_GET * 20)
    writer.write(_GET)  # behind the flood, in the same turn
    async with asyncio.timeout(DEADLINE_S):
        assert b" 200 " in await reader.readuntil(b"}")
        before = [address for _, address in watched.heads].index(_OTHER)
        for flooded, _ in flood:
            await flooded.readuntil(b"}")
    watched.stop()
    await _close(*flood, (reader, writer))
    assert before <= _BEFORE_MOST
    assert max(Counter(turn for turn, _ in watched.heads).values()) <= _HEADS_MOST


async def test_a_connection_with_a_key_does_not_wait_for_those_without(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with_key = b"GET /sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: %s\r\n\r\n" % ADA.encode()
    watched = _Watched(monkeypatch)
    reader, writer = await _connected(served, _OTHER)
    flood = [await _connected(served, _OTHER) for _ in range(_FLOODING)]
    async with asyncio.timeout(DEADLINE_S):
        writer.write(with_key)
        await reader.readuntil(b"}")
        watched.heads.clear()
        for _, flooding in flood:
            flooding.write(_GET * 20)
        writer.write(with_key.replace(b"/sandboxes", b"/nowhere"))
        await reader.readuntil(b" 404 ")
    watched.stop()
    await _close(*flood, (reader, writer))
    assert [address for _, address in watched.heads].index("key") <= _BEFORE_MOST


async def test_addresses_take_turns_within_the_steps_of_a_turn() -> None:
    order: list[str] = []
    done = asyncio.Event()

    def work(name: str) -> None:
        order.append(name)
        turns().spend(STEPS // 2)
        if len(order) == 9:
            done.set()

    for number in range(6):
        turns().add_without_key("many", lambda number=number: work(f"many {number}"))  # type: ignore[misc]
    turns().add_without_key("few", lambda: work("few"))
    turns().add(lambda: order.append("with a key"))
    turns().add(lambda: order.append("another with a key"))
    assert not turns().has_room()
    async with asyncio.timeout(DEADLINE_S):
        await done.wait()
    assert order[:6] == ["with a key", "many 0", "few", "another with a key", "many 1", "many 2"]
