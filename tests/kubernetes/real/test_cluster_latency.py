"""The time of a command in a living shell (figure P1) in a pod and on the embedded runtime, measured alternately in one run.

Run by `make test-cluster`. Other load on the machine affects both alike because they alternate.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from holdfast import AsyncSandboxClient, AsyncShell

from tests.kubernetes.real.cluster import DEBIAN
from tests.kubernetes.real.test_cluster_sessions import stack as cluster
from tests.kubernetes.stack import ClusterStack
from tests.support.requires import requires
from tests.support.stack import Stack

pytestmark = [pytest.mark.cluster, requires("cluster", "redis", "namespaces"), pytest.mark.timeout(300)]

ROUNDS, RUNS = 20, 50
FACTOR = 1.5

__all__ = ["cluster"]


@pytest_asyncio.fixture
async def shells(cluster: ClusterStack, stack: Stack) -> AsyncIterator[dict[str, AsyncShell]]:
    async with contextlib.AsyncExitStack() as resources:
        shells = {}
        for name, url, key, image in (("pod", cluster.url, cluster.key, DEBIAN), ("embedded", stack.url, stack.key, "host")):
            client = await resources.enter_async_context(AsyncSandboxClient(url, key))
            sandbox = await resources.enter_async_context(await client.create_sandbox(image, cpu=2, memory="256Mi"))
            shells[name] = await resources.enter_async_context(await sandbox.shell(shell="bash"))
        yield shells


async def test_a_command_on_a_pod_costs_about_what_it_costs_on_one_machine(shells: dict[str, AsyncShell]) -> None:
    taken: dict[str, list[float]] = {name: [] for name in shells}
    for _ in range(ROUNDS):
        for name, shell in shells.items():
            for _ in range(RUNS):
                began = time.perf_counter()
                await shell.run("true")
                taken[name].append(time.perf_counter() - began)
    for name, times in taken.items():
        times.sort()
        print(f"\n{name}: p50 {1e3 * times[len(times) // 2]:.2f} ms, p95 {1e3 * times[len(times) * 95 // 100]:.2f} ms")
    assert statistics.median(taken["pod"]) <= FACTOR * statistics.median(taken["embedded"])
