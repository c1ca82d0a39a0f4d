"""Images pulled in advance on a real cluster: how a missing image is reported, and how long a pull takes.

Run by `make test-cluster` with KUBECONFIG and HOLDFAST_BUNDLE_IMAGE set; tests/kubernetes/cluster.py lists further variables.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import pytest_asyncio
from holdfast import ImageNotFoundError, ImagePullError, SandboxClient
from holdfast_wire.errors import HoldfastError

from gateway.runtimes.kubernetes.cluster.images import ClusterImages
from gateway.runtimes.kubernetes.names import PREPULL_SELECTOR
from gateway.runtimes.kubernetes.runtime import KubernetesRuntime
from gateway.runtimes.kubernetes.settings import KubernetesSettings
from tests.kubernetes.real.cluster import DEBIAN, IMAGE, namespace, require_image_volumes
from tests.kubernetes.stack import cluster_stack
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = [pytest.mark.cluster, requires("cluster"), pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def settings() -> AsyncIterator[KubernetesSettings]:
    async with namespace() as made:
        yield made


@pytest.mark.parametrize("injection", ["image", "init"])
async def test_pulled_listed_and_removed(settings: KubernetesSettings, injection: Literal["image", "init"]) -> None:
    if injection == "image":
        await require_image_volumes(settings)
    runtime = KubernetesRuntime(replace(settings, bundle_injection=injection), "test-replica")
    images = runtime.images
    assert images is not None
    try:
        for name in (IMAGE, DEBIAN):
            began = time.monotonic()
            image = await images.pull(name)
            print(f"\n{name} ({injection}) on {image.ready} of {image.wanted} nodes after {time.monotonic() - began:.1f} s")
            assert image.ready == image.wanted
            assert image.ready
        assert {one.name for one in await images.list_all()} == {IMAGE, DEBIAN}
        body = await runtime.api.get(runtime.pods, {"labelSelector": PREPULL_SELECTOR})
        exit_codes = [pod["status"]["initContainerStatuses"][-1]["state"]["terminated"]["exitCode"] for pod in body["items"]]
        assert exit_codes == [0] * len(exit_codes)
        assert len(exit_codes) >= 2
        for name in (IMAGE, DEBIAN):
            await images.remove(name)
        await until_async(lambda: _none(runtime), deadline_s=60, what="their pods to be gone")
    finally:
        await runtime.aclose()


async def _none(runtime: KubernetesRuntime) -> bool:
    return not (await runtime.api.get(runtime.pods, {"labelSelector": PREPULL_SELECTOR})).get("items")


@pytest.mark.parametrize(
    ("name", "more", "code", "within_s"),
    [
        ("Not/A:Valid:Name", {}, "image_not_found", 15.0),
        ("127.0.0.1:1/none:1", {"pull_policy": "Never"}, "image_not_found", 15.0),
        ("127.0.0.1:1/none:1", {}, "image_pull_failed", 30.0),
    ],
)
async def test_failures_are_typed_and_prompt(
    settings: KubernetesSettings, name: str, more: dict[str, str], code: str, within_s: float
) -> None:
    runtime = KubernetesRuntime(replace(settings, **more), "test-replica")  # type: ignore[arg-type]
    images = ClusterImages(runtime.api, runtime.settings, runtime.injection)
    began = time.monotonic()
    try:
        with pytest.raises(HoldfastError) as caught:
            await images.pull(name)
        print(f"\n{code}: {caught.value.message} ({time.monotonic() - began:.1f} s)")
        assert time.monotonic() - began < within_s
        assert (caught.value.code, caught.value.reason) == (code, "image-pull")
        assert await images.list_all() == []
    finally:
        await runtime.aclose()


@requires("redis")
async def test_through_the_sdk(settings: KubernetesSettings, tmp_path: Path) -> None:
    def use() -> None:
        with cluster_stack(tmp_path, settings) as stack, SandboxClient(stack.url, stack.key) as client:
            with pytest.raises(ImageNotFoundError):
                client.images.pull("127.0.0.1:1/Not/Valid:1")
            with pytest.raises(ImagePullError):
                client.images.pull("127.0.0.1:1/none:1")
            image = client.images.pull(IMAGE)
            assert image.nodes_ready == image.nodes_wanted
            assert image.nodes_ready
            assert client.images.list() == [image]
            client.images.remove(IMAGE)
            assert client.images.list() == []

    await asyncio.to_thread(use)
