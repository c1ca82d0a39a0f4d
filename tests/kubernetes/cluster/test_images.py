"""Images pulled in advance: the manifest, the number of nodes that have them, the errors and the cleanup of failed pulls."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import kubernetes_validate
import pytest
import pytest_asyncio
from holdfast_wire.bundle import agent_command
from holdfast_wire.errors import HoldfastError

from gateway.runtimes.base import ImageArchives, Images, KeptImages, RuntimeUnavailableError
from gateway.runtimes.kubernetes.cluster import images as images_module
from gateway.runtimes.kubernetes.cluster.images import ClusterImages, daemon_set
from gateway.runtimes.kubernetes.names import SELECTOR
from gateway.runtimes.kubernetes.pods.manifest import Injection
from gateway.runtimes.kubernetes.runtime import KubernetesRuntime
from gateway.runtimes.kubernetes.settings import Profile
from tests.conformance.runtimes import CREATE_S, order
from tests.kubernetes.conftest import settings_for
from tests.kubernetes.pods.test_manifest import GOLDEN, PLAIN, RICH
from tests.support.kube.daemons import Daemons
from tests.support.kube.objects import RefusedError
from tests.support.kube.rules import check_pod
from tests.support.kube.server import FakeApi
from tests.support.until import until_async

SOON_S = 30.0
NAMED: tuple[tuple[str, Injection, Profile], ...] = (
    ("prepull-image", "image", "userns"),
    ("prepull-init", "init", "userns"),
    ("prepull-restricted", "init", "restricted"),
)


@pytest_asyncio.fixture
async def daemons(api: FakeApi) -> AsyncIterator[Daemons]:
    async with Daemons(api).run() as running:
        running.join("node-2")
        yield running


@pytest.fixture
def images(runtime: KubernetesRuntime, daemons: Daemons) -> Images:
    assert runtime.images is not None
    return runtime.images


# The manifest --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "injection", "profile"), NAMED)
def test_golden(name: str, injection: Injection, profile: Profile) -> None:
    settings = replace(PLAIN if injection == "image" else RICH, sandbox_profile=profile)
    made = daemon_set("registry.example/ml/train:7", settings, injection)
    path = GOLDEN / f"{name}.json"
    text = json.dumps(made, indent=2, sort_keys=True) + "\n"
    if os.environ.get("HOLDFAST_GOLDEN") == "write":
        path.write_text(text)
    assert path.read_text() == text
    template = made["spec"]["template"]
    check_pod({"metadata": {"name": "x", **template["metadata"]}, "spec": template["spec"]}, restricted=True)
    kubernetes_validate.validate(made, "1.36", strict=True)


def test_a_pulled_image_runs_no_code_of_its_own_and_gets_no_secrets() -> None:
    spec = daemon_set("evil:1", PLAIN, "image")["spec"]["template"]["spec"]
    (only,) = spec["initContainers"]
    assert only["command"][0] == agent_command()[0]
    assert "env" not in only
    assert spec["automountServiceAccountToken"] is False
    assert [one["image"] for one in spec["containers"]] == [PLAIN.bundle_image]


# Pulls ---------------------------------------------------------------------------------------------------------------


async def test_a_pull_ends_when_all_nodes_have_the_image(images: Images, daemons: Daemons, api: FakeApi) -> None:
    daemons.held = True
    pull = asyncio.create_task(images.pull("debian:13"))
    await until_async(lambda: _wanted(images, 2), deadline_s=SOON_S, what="a pod for each node")
    assert not pull.done()
    assert [(one.name, one.ready, one.wanted) for one in await images.list_all()] == [("debian:13", 0, 2)]
    daemons.release()
    image = await pull
    assert (image.name, image.ready, image.wanted) == ("debian:13", 2, 2)
    daemons.join("node-3")
    assert [(one.ready, one.wanted) for one in await images.list_all()] == [(3, 3)]
    made = api.stores["daemonsets"].names()
    assert (await images.pull("debian:13")).ready == 3
    assert api.stores["daemonsets"].names() == made


async def _wanted(images: Images, nodes: int) -> bool:
    return [one.wanted for one in await images.list_all()] == [nodes]


async def test_pods_of_a_pull_are_not_listed_as_sandboxes(images: Images, runtime: KubernetesRuntime, api: FakeApi) -> None:
    await images.pull("debian:13")
    await runtime.create(order("sb-1"), CREATE_S)
    assert [one.sandbox_id for one in await runtime.list_all()] == ["sb-1"]
    assert (len(api.pods.names()), len(api.pods.all(SELECTOR))) == (3, 1)


@pytest.mark.parametrize("slow_status", [False, True], ids=["in the status", "in an event first"])
@pytest.mark.parametrize(
    ("image", "code", "words"),
    [("unknown-image", "image_not_found", "docker.io/library/unknown-image:latest: not found"), ("bad image", "image_not_found", "parse")],
)
async def test_an_image_that_cannot_be_pulled_is_reported_at_once_and_cleaned_up(
    images: Images, daemons: Daemons, api: FakeApi, image: str, code: str, words: str, slow_status: bool
) -> None:
    daemons.slow_status = slow_status and image != "bad image"  # whose name the kubelet refuses by itself
    began = time.monotonic()
    with pytest.raises(HoldfastError, match=words) as caught:
        await images.pull(image)
    assert time.monotonic() - began < SOON_S
    assert (caught.value.code, caught.value.reason) == (code, "image-pull")
    assert (api.stores["daemonsets"].names(), api.pods.names()) == ([], [])


async def test_an_unreachable_registry_is_retried_for_the_patience(api: FakeApi, daemons: Daemons, tmp_path: Path) -> None:
    runtime = KubernetesRuntime(settings_for(api, tmp_path, pull_patience_s=1.0), "replica-1")
    assert runtime.images is not None
    with pytest.raises(HoldfastError, match="i/o timeout") as caught:
        await runtime.images.pull("slow-registry")
    assert (caught.value.code, caught.value.fault) == ("image_pull_failed", "infrastructure")
    await runtime.aclose()


async def test_a_pull_continues_after_its_caller_timed_out(runtime: KubernetesRuntime, daemons: Daemons) -> None:
    daemons.held = True
    images = ClusterImages(runtime.api, runtime.settings, runtime.injection, pull_s=0.3)
    with pytest.raises(HoldfastError, match="continues") as caught:
        await images.pull("debian:13")
    assert caught.value.retryable
    daemons.release()
    assert (await images.pull("debian:13")).ready == 2


async def test_two_pulls_at_once_share_one_daemon_set(images: Images, api: FakeApi) -> None:
    both = await asyncio.gather(images.pull("debian:13"), images.pull("debian:13"))
    assert [one.ready for one in both] == [2, 2]
    assert len(api.stores["daemonsets"].names()) == 1


async def test_a_new_bundle_replaces_the_daemon_set(images: Images, runtime: KubernetesRuntime, api: FakeApi) -> None:
    await images.pull("debian:13")
    newer = ClusterImages(runtime.api, replace(runtime.settings, bundle_image="registry.example/bundle:2"), runtime.injection)
    assert (await newer.pull("debian:13")).ready == 2
    (only,) = api.stores["daemonsets"].all()
    assert only["spec"]["template"]["spec"]["containers"][0]["image"] == "registry.example/bundle:2"
    assert len(api.pods.names()) == 2


async def test_removal(images: Images, api: FakeApi) -> None:
    await images.pull("debian:13")
    await images.remove("debian:13")
    assert (await images.list_all(), api.pods.names()) == ([], [])
    with pytest.raises(HoldfastError) as caught:
        await images.remove("debian:13")
    assert caught.value.code == "image_not_found"


async def test_a_pull_ends_when_its_image_is_removed(images: Images, daemons: Daemons) -> None:
    daemons.held = True
    pull = asyncio.create_task(images.pull("debian:13"))
    await until_async(lambda: _wanted(images, 2), deadline_s=SOON_S, what="a pod for each node")
    await images.remove("debian:13")
    with pytest.raises(HoldfastError, match="removed"):
        await pull


async def test_the_number_of_images_is_bounded(images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images_module, "MOST", 2)
    await images.pull("a:1")
    await images.pull("b:1")
    with pytest.raises(HoldfastError) as caught:
        await images.pull("c:1")
    assert caught.value.code == "quota_exceeded"
    await images.pull("a:1")


async def test_a_cluster_keeps_images_and_accepts_no_archives(images: Images) -> None:
    assert isinstance(images, KeptImages)
    assert not isinstance(images, ImageArchives)


async def test_a_missing_right_is_a_fault_of_the_service(images: Images, api: FakeApi) -> None:
    api.refuse.append(("create daemonsets", RefusedError(403, "Forbidden", "daemonsets.apps is forbidden: cannot create resource")))
    with pytest.raises(RuntimeUnavailableError, match="refused the gateway's request"):
        await images.pull("debian:13")
