"""Clients without a key, of every kind that is bad or slow, at a real service: others are served while they last.

``make test`` runs a sample, ``make test-all`` every kind (``test_unauthenticated_all``).
"""

from __future__ import annotations

import asyncio
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import Iterator

import pytest

from tests.support.bad_clients import SAMPLE
from tests.support.requires import requires
from tests.support.stack import Stack, running_stack

pytestmark = requires("namespaces", "redis")
_ASKED = 300
_BAD, _KEPT_MOST, _NEW_MOST = "127.0.0.2", 8.0, 12.0
"""The address of the bad clients; how many times as long others may wait on an open connection, and for a new one. New connections are
accepted four in each turn, behind those of the bad clients. What one turn may contain is checked by ``test_turns``.
"""
_QUIET_LEAST_S = 0.01
"""A p99 below this is the resolution of a busy machine."""


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Of its own: connections of this machine's address are closed."""
    with running_stack() as running:
        yield running


async def p99_s(port: int) -> tuple[float, float]:
    """Of requests on one connection, and of new connections with one request each, in turn."""
    kept_times: list[float] = []
    new_times: list[float] = []
    kept = await asyncio.open_connection("127.0.0.1", port)
    for number in range(_ASKED):
        begun = time.monotonic()
        reader, writer = kept if number % 2 else await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(60):
            assert b" 200 " in await reader.readuntil(b"}")
        (kept_times if number % 2 else new_times).append(time.monotonic() - begun)
        if not number % 2:
            writer.close()
    kept[1].close()
    kept_s, new_s = (sorted(times)[int(len(times) * 0.99)] for times in (kept_times, new_times))
    return kept_s, new_s


async def check(stack: Stack, kind: str) -> None:
    """Others' p99 while clients of ``kind`` at another address last, compared with a moment before; the best of three rounds counts."""
    port = int(stack.url.rpartition(":")[2])
    ratios = []
    for _ in range(3):
        quiet = [max(found, _QUIET_LEAST_S) for found in await p99_s(port)]
        command = [sys.executable, "-m", "tests.support.bad_clients", kind, "127.0.0.1", str(port), _BAD]
        clients = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
        try:
            assert clients.stdout is not None
            async with asyncio.timeout(60):
                assert await clients.stdout.readline() == b"begun\n"
            kept, new = (found / before for found, before in zip(await p99_s(port), quiet, strict=True))
        finally:
            clients.kill()
            await clients.wait()
        ratios.append((kept, new))
        print(f"{kind}: p99 on an open connection {quiet[0] * 1000:.1f} ms, with bad clients {kept:.2f} times that")
        print(f"{kind}: p99 of new connections {quiet[1] * 1000:.1f} ms, with bad clients {new:.2f} times that")
        if kept <= _KEPT_MOST and new <= _NEW_MOST:
            return
    raise AssertionError(f"{kind}: others waited longer by these factors (open connections, new ones): {ratios}")


@pytest.mark.alone
@pytest.mark.parametrize("kind", SAMPLE)
async def test_others_are_served_while_clients_without_a_key_misbehave(stack: Stack, kind: str) -> None:
    await check(stack, kind)
