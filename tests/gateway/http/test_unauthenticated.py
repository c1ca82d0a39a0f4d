"""Clients without a key, of every kind that is bad or slow, at a real service: others are served while they last.

``make test`` runs a sample, ``make test-all`` every kind (``test_unauthenticated_all``).
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.support.bad_clients import FLOODS, SAMPLE
from tests.support.requires import requires
from tests.support.stack import Stack, running_stack

pytestmark = requires("namespaces", "redis")
_ASKED = 300
FLOOD_MOST = 20.0
"""For ``FLOODS``; without turns others waited a thousand times as long."""
_QUIET_LEAST_S = 0.01
"""A p99 below this is the resolution of a busy machine."""


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Of its own: connections of this machine's address are closed."""
    with running_stack() as running:
        yield running


async def p99_s(port: int) -> float:
    """Of requests on one connection, and on new ones in turn."""
    times = []
    kept = await asyncio.open_connection("127.0.0.1", port)
    for number in range(_ASKED):
        begun = time.monotonic()
        reader, writer = kept if number % 2 else await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(60):
            assert b" 200 " in await reader.readuntil(b"}")
        times.append(time.monotonic() - begun)
        if not number % 2:
            writer.close()
    kept[1].close()
    return sorted(times)[int(_ASKED * 0.99)]


async def check(stack: Stack, kind: str, most: float) -> None:
    """Others' p99 while clients of ``kind`` last is at most ``most`` times as long as without them; the best of three rounds counts."""
    port = int(stack.url.rpartition(":")[2])
    ratios = []
    for _ in range(3):
        quiet = max(await p99_s(port), _QUIET_LEAST_S)
        command = [sys.executable, "-m", "tests.support.bad_clients", kind, "127.0.0.1", str(port)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as clients:
            assert clients.stdin is not None
            assert clients.stdout is not None
            assert await asyncio.to_thread(clients.stdout.readline) == b"begun\n"
            ratios.append(await p99_s(port) / quiet)
            clients.kill()
        print(f"{kind}: p99 without {quiet * 1000:.1f} ms, with {ratios[-1]:.2f} times that")
        if ratios[-1] <= most:
            return
    raise AssertionError(f"{kind}: others waited {min(ratios):.1f} times as long")


@pytest.mark.alone
@pytest.mark.parametrize("kind", SAMPLE)
async def test_others_are_served_while_clients_without_a_key_misbehave(stack: Stack, kind: str) -> None:
    await check(stack, kind, FLOOD_MOST if kind in FLOODS else 5.0)
