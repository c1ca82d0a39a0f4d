"""Previews with large bodies and many at once: the gateway's memory does not grow with them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import httpx
import pytest
from holdfast import Sandbox

from tests.support.preview_app import SOURCE
from tests.support.stack import Stack
from tests.support.until import until

PORT = 8081
SIZE_BYTES = 200 << 20
GROWTH_BYTES = 24 << 20
"""Windows and buffers of one transfer, and what the allocator keeps of them."""


@pytest.fixture(scope="module")
def place(sandbox: Sandbox) -> Iterator[str]:
    with sandbox.start(["python3", "-c", SOURCE, str(PORT)], stdin=False):
        until(lambda: PORT in [one.port for one in sandbox.ports()], deadline_s=60, what="the program to listen")
        yield f"/sandboxes/{sandbox.id}/ports/{PORT}"


class Peak:
    """The largest resident memory of a process while the block runs."""

    def __init__(self, pid: int) -> None:
        self._status = Path(f"/proc/{pid}/status")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.before = self.most = self._now()

    def _now(self) -> int:
        return int(self._status.read_text().partition("VmRSS:")[2].split()[0]) * 1024

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            self.most = max(self.most, self._now())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def test_two_hundred_megabytes_each_way_in_flat_memory(stack: Stack, rest: httpx.Client, place: str) -> None:
    rest.get(f"{place}/source?{8 << 20}").raise_for_status()
    piece = bytes(1 << 20)
    with Peak(stack.pid("gateway")) as peak:
        received = 0
        with rest.stream("GET", f"{place}/source?{SIZE_BYTES}") as answer:
            for data in answer.iter_raw():
                received += len(data)
        assert received == SIZE_BYTES
        sent = rest.post(f"{place}/x", content=(piece for _ in range(SIZE_BYTES // len(piece))))
        assert sent.json()["bytes"] == SIZE_BYTES
    assert peak.most - peak.before < GROWTH_BYTES


def test_a_client_that_reads_slowly_stops_the_program(stack: Stack, rest: httpx.Client, sandbox: Sandbox, place: str) -> None:
    """Back-pressure: what the client does not read stays in the sandbox."""

    def waits() -> bool:
        """Whether the program has bytes that its kernel cannot pass on."""
        rows = [line.split() for line in sandbox.exec(["cat", "/proc/net/tcp"]).stdout.splitlines()[1:]]
        return any(row[1].endswith(f":{PORT:04X}") and row[3] == "01" and int(row[4].partition(":")[0], 16) > 0 for row in rows)

    with Peak(stack.pid("gateway")) as peak, rest.stream("GET", f"{place}/source?{SIZE_BYTES}") as answer:
        pieces = answer.iter_raw()
        next(pieces)
        for _ in range(3):  # it would have sent all of it by then
            until(waits, deadline_s=60, what="the program to wait for the client")
    assert peak.most - peak.before < GROWTH_BYTES


def test_a_hundred_previews_at_once(stack: Stack, place: str) -> None:
    headers = {"X-API-Key": stack.key}
    many = httpx.Client(base_url=stack.url, headers=headers, timeout=120, limits=httpx.Limits(max_connections=100))
    with many, ThreadPoolExecutor(100) as threads:
        found = list(threads.map(lambda number: many.get(f"{place}/n?{number}").json()["target"], range(400)))
    assert found == [f"/n?{number}" for number in range(400)]
