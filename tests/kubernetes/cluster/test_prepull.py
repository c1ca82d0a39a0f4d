"""Images of the pools file: every node has them as long as the file names them, under any leader and after removal by hand."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from holdfast_wire.errors import HoldfastError

from gateway.controller.loop import Controller
from gateway.controller.pool_refill import Prepull
from gateway.metrics import Metrics
from gateway.placement.store import PlacementStore
from gateway.pools import PoolsError, PoolsFile, read_pools, read_prepull
from gateway.runtimes.kubernetes.names import prepull_name
from gateway.runtimes.kubernetes.runtime import KubernetesRuntime
from gateway.settings import ControllerSettings, PlacementSettings
from tests.gateway.controllers import at_work
from tests.support.kube.daemons import Daemons
from tests.support.kube.objects import RefusedError
from tests.support.kube.server import FakeApi
from tests.support.requires import requires
from tests.support.until import until_async

SOON_S = 15.0
QUICK = ControllerSettings(lease_renew_s=0.05, reconcile_interval_s=0.5, prepull_interval_s=0.05)


@pytest_asyncio.fixture
async def daemons(api: FakeApi) -> AsyncIterator[Daemons]:
    async with Daemons(api).run() as running:
        running.join("node-2")
        yield running


def daemon_sets(api: FakeApi) -> set[str]:
    return set(api.stores["daemonsets"].names())


@contextlib.asynccontextmanager
async def leading(redis_url: str, runtime: KubernetesRuntime, path: Path, metrics: Metrics) -> AsyncIterator[None]:
    store = PlacementStore(PlacementSettings(redis_url=redis_url, step_timeout_s=60.0, connect_timeout_s=60.0))
    prepull = Prepull(store, runtime, PoolsFile(path).prepull, metrics)
    try:
        async with at_work(Controller(store, runtime, "c1", QUICK, metrics=metrics, prepull=prepull)):
            yield
    finally:
        await store.aclose()


@requires("redis")
async def test_nodes_have_the_images_that_the_file_names(
    redis_url: str, runtime: KubernetesRuntime, daemons: Daemons, api: FakeApi, tmp_path: Path
) -> None:
    path, metrics = tmp_path / "pools.yaml", Metrics()
    path.write_text("{pools: [], prepull: ['debian:13', 'unknown-image', 'debian:13']}")
    assert runtime.images is not None
    await runtime.images.pull("by-hand:1")
    debian, unknown, by_hand, busybox = (prepull_name(name) for name in ("debian:13", "unknown-image", "by-hand:1", "busybox:1"))
    async with leading(redis_url, runtime, path, metrics):
        await until_async(lambda: daemon_sets(api) == {debian, unknown, by_hand}, deadline_s=SOON_S, what="a daemon set for each image")
        counted = 'holdfast_prepull_nodes_ready{image="debian:13"} 2'
        await until_async(lambda: counted in metrics.render(), deadline_s=SOON_S, what="both nodes to have it")
        assert 'holdfast_prepull_nodes_ready{image="unknown-image"} 0' in metrics.render()
        daemons.join("node-3")
        await until_async(lambda: f"{counted[:-1]}3" in metrics.render(), deadline_s=SOON_S, what="a new node to have it")
        await runtime.images.remove("debian:13")
        await until_async(lambda: debian in daemon_sets(api), deadline_s=SOON_S, what="a removed image to be back")
        api.refuse += [("list daemonsets", RefusedError(500, "InternalError", "etcdserver: leader changed"))] * 2
        path.write_text("{pools: [], prepull: ['busybox:1']}")
        await until_async(lambda: daemon_sets(api) == {busybox, by_hand}, deadline_s=SOON_S, what="the edit to take effect")
    path.write_text("[]")
    async with leading(redis_url, runtime, path, metrics):  # also by a controller that started later
        await until_async(lambda: daemon_sets(api) == {by_hand}, deadline_s=SOON_S, what="the image that is no longer named to be dropped")


@requires("redis")
async def test_an_unusable_file_changes_nothing(
    redis_url: str, runtime: KubernetesRuntime, daemons: Daemons, api: FakeApi, tmp_path: Path
) -> None:
    path = tmp_path / "pools.yaml"
    path.write_text("{prepull: ['debian:13']}")
    file = PoolsFile(path)
    assert (file.prepull(), file.read()) == (("debian:13",), {})
    path.write_text("{prepull: [7], pools: []}")
    assert file.prepull() == ("debian:13",)
    path.unlink()
    assert file.prepull() == ("debian:13",)


async def test_without_prepull_images_the_cluster_is_queried_once(runtime: KubernetesRuntime, api: FakeApi) -> None:
    class AnyTerm:
        async def check_term(self, term: int) -> None:
            pass

    prepull = Prepull(AnyTerm(), runtime, tuple, Metrics())  # type: ignore[arg-type]
    for _ in range(3):
        await prepull.keep(1)
    assert api.requests["list daemonsets"] == 1


def test_reading_the_prepull_list() -> None:
    assert read_prepull("[]") == ()
    assert read_prepull("{pools: []}") == ()
    assert read_prepull("{prepull: [a, 'r.example/b@sha256:c', a]}") == ("a", "r.example/b@sha256:c")
    assert read_pools("{prepull: [a]}") == {}
    for text in (
        "{prepull: a}",
        "{prepull: [1]}",
        "{prepull: ['']}",
        "{prepull: ['a b']}",
        "{prepul: []}",
        f"{{prepull: {list(range(33))}}}",
    ):
        with pytest.raises(PoolsError) as caught:
            read_prepull(text)
        assert not isinstance(caught.value, HoldfastError)
