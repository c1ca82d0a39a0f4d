"""The choice of how the bundle gets into pods: an image volume only where server and nodes are known to mount a part of an image."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from holdfast_wire.errors import HoldfastError

from gateway.runtimes.base import SandboxEnded
from gateway.runtimes.kubernetes.cluster import injection, node_probes
from gateway.runtimes.kubernetes.cluster.injection import InjectionChoice, detect, version_of
from gateway.runtimes.kubernetes.runtime import KubernetesRuntime
from tests.conformance.runtimes import CREATE_S, all_ready, order
from tests.kubernetes.conftest import QUICK, settings_for
from tests.support.kube.kubelet import NO_LOADER, NOT_ID_MAPPED, Kubelet
from tests.support.kube.objects import Entry, RefusedError
from tests.support.kube.probe_pods import ProbePods
from tests.support.kube.server import FakeApi
from tests.support.until import until_async


def node(api: FakeApi, runtime: str, name: str = "node-9", pool: str = "sandboxes") -> None:
    info: dict[str, Any] = {"nodeInfo": {"containerRuntimeVersion": runtime}}
    labels = {"kubernetes.io/os": "linux", "pool": pool}
    api.stores["nodes"].create({"metadata": {"name": name, "labels": labels}, "kind": "Node", "spec": {}, "status": info})


@pytest.mark.parametrize(
    ("minor", "runtimes", "gate", "way"),
    [
        ("32+", ["containerd://2.3.0"], True, "init"),
        ("33", ["containerd://2.2.0"], True, "image"),  # its operator has enabled the feature gate
        ("33", ["containerd://2.2.0"], False, "init"),  # the default
        ("34", ["containerd://2.1.6"], False, "init"),
        ("35", ["containerd://2.1.6+bottlerocket"], True, "init"),  # bottlerocket-os/bottlerocket issue 4755
        ("35", ["containerd://1.7.27"], True, "init"),
        ("35", ["containerd://2.2.1", "containerd://2.1.6"], True, "init"),  # nodes of two kinds
        ("35", ["containerd://2.2.1", "cri-o://1.33.0"], True, "image"),
        ("36", ["cri-o://1.32.1"], True, "init"),
        ("36", ["docker://28.0.0"], True, "init"),
        ("35", [], True, "init"),  # no nodes yet, so their runtime is unknown
        ("36", [], True, "image"),
    ],
)
async def test_the_choice_by_server_version_and_node_runtimes(
    runtime: KubernetesRuntime, api: FakeApi, minor: str, runtimes: list[str], gate: bool, way: str
) -> None:
    api.minor, api.image_volumes = minor, gate
    for number, text in enumerate(runtimes):
        node(api, text, f"node-{number + 2}")
    found = await detect(runtime.api, runtime.settings)
    assert (found.way, bool(found.why)) == (way, way == "init"), found
    assert api.pods.names() == [], "no pod is really created"


async def test_only_nodes_of_sandboxes_count(runtime: KubernetesRuntime, api: FakeApi) -> None:
    node(api, "containerd://1.7.0", pool="system")
    node(api, "containerd://2.2.0", "node-10")
    assert (await detect(runtime.api, replace(runtime.settings, node_selector=(("pool", "sandboxes"),)))).way == "image"
    assert (await detect(runtime.api, runtime.settings)).way == "init"


NO_NODES = RefusedError(403, "Forbidden", "nodes is forbidden: cannot list resource")


@pytest.mark.parametrize("minor", ["35", "36", "37"])
@pytest.mark.parametrize("volume", [None, True, False])
async def test_where_nodes_may_not_be_read_a_probe_pod_decides(
    runtime: KubernetesRuntime, api: FakeApi, minor: str, volume: bool | None
) -> None:
    """A version is no proof: Kubernetes 1.36 runs on containerd 2.1, which mounts the whole image."""
    api.minor = minor
    if volume is not None:
        with ProbePods(api, volume=volume).run():
            await node_probes.probe(runtime.api, runtime.settings)
    api.refuse = [("list nodes", NO_NODES)]
    found = await detect(runtime.api, runtime.settings)
    assert (found.way, found.sure) == ("image" if volume else "init", volume is not None)
    assert ("did not find the bundle" in found.why) is (volume is False)


async def test_a_gateway_uses_a_new_probe_result_within_seconds(
    runtime: KubernetesRuntime, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(injection, "_UNSURE_FOR_S", 0.0)
    injecting = InjectionChoice(runtime.api, runtime.settings)
    api.refuse = [("list nodes", NO_NODES)] * 2
    assert await injecting.way() == "init"
    with ProbePods(api).run():
        await node_probes.probe(runtime.api, runtime.settings)
    assert await injecting.way() == "image"


async def test_a_probe_does_not_override_a_node_with_an_old_runtime(runtime: KubernetesRuntime, api: FakeApi) -> None:
    node(api, "containerd://2.1.9")
    with ProbePods(api).run():
        await node_probes.probe(runtime.api, runtime.settings)
    assert (await detect(runtime.api, runtime.settings)).way == "init"


@pytest.mark.parametrize(("why", "shown"), [(NO_LOADER, "ld.so"), (NOT_ID_MAPPED, "idmap mounts")])
async def test_a_pod_without_its_bundle_is_created_again(
    runtime: KubernetesRuntime, api: FakeApi, kubelet: Kubelet, tmp_path: Path, why: str, shown: str
) -> None:
    """No client sees the first try fail, other replicas and the doctor learn the result, and no later create tries an image volume."""
    kubelet.no_volumes = why
    events: list[Any] = []

    async def follow() -> None:
        async for event in runtime.watch():
            events.append(event)  # noqa: PERF401 - the loop never ends

    following = asyncio.create_task(follow())
    await until_async(lambda: bool(events), deadline_s=60, what="the watch to begin")
    made = await runtime.create(order("sb-1"), CREATE_S)
    assert made
    assert api.pods.get("hf-sb-1")["spec"]["initContainers"][0]["name"] == "holdfast-bundle"
    assert api.requests["create pods"] == 2
    await all_ready(runtime)
    assert not [one for one in events if isinstance(one, SandboxEnded)]
    following.cancel()
    await runtime.create(order("sb-2"), CREATE_S)
    other = KubernetesRuntime(settings_for(api, tmp_path), "replica-2", QUICK)
    await other.create(order("sb-3"), CREATE_S)
    assert api.requests["create pods"] == 4
    check = next(one for one in await other.doctor() if one["name"] == "agent bundle")
    assert check["ok"]
    assert shown in check["detail"]
    await other.aclose()


@pytest.mark.parametrize(("why", "shown"), [(NO_LOADER, r"ld\.so"), (NOT_ID_MAPPED, "idmap mounts")])
async def test_a_kind_of_injection_that_the_operator_chose_is_not_changed(
    api: FakeApi, kubelet: Kubelet, tmp_path: Path, why: str, shown: str
) -> None:
    """The error says what the kubelet reports; it advises the other kind, and no other profile: user namespaces work."""
    kubelet.no_volumes = why
    fixed = KubernetesRuntime(settings_for(api, tmp_path, bundle_injection="image"), "replica-1", QUICK)
    with pytest.raises(HoldfastError, match=shown) as caught:
        await fixed.create(order("sb-1"), CREATE_S)
    assert (caught.value.code, caught.value.reason, caught.value.fault) == ("sandbox_failed", "start-failed", "infrastructure")
    assert "HOLDFAST_BUNDLE_INJECTION=init" in caught.value.hint
    assert "user namespace" not in caught.value.message
    assert api.requests["create pods"] == 1
    await fixed.aclose()


async def test_a_probe_says_that_the_image_volume_is_what_fails(runtime: KubernetesRuntime, api: FakeApi) -> None:
    """The pods of a probe run, but the one with an image volume does not start."""

    def refuse(entry: Entry) -> None:
        name, labels = entry.object["metadata"]["name"], entry.object["metadata"].get("labels") or {}
        if entry.kind == "ADDED" and labels.get("holdfast.dev/canary-role") == "volume":
            ended = {"terminated": {"exitCode": 128, "reason": "StartError", "message": NOT_ID_MAPPED}}
            status = {"phase": "Failed", "containerStatuses": [{"name": "sandbox", "state": ended}]}
            api.pods.update(name, lambda pod: pod.update(status=status))

    with ProbePods(api).run():
        api.pods.on_write.append(refuse)
        seen = await node_probes.probe(runtime.api, runtime.settings)
    assert (seen.users, seen.volume) == (True, False)
    assert "MOUNT_ATTR_IDMAP" in seen.volume_why
    assert "cannot create" not in seen.volume_why
    check = next(one for one in await runtime.doctor() if one["name"] == "agent bundle")
    assert "MOUNT_ATTR_IDMAP" in check["detail"]
    assert next(one for one in await runtime.doctor() if one["name"] == "sandbox profile")["ok"]


async def test_an_exceeded_quota_does_not_count_as_missing_image_volumes(runtime: KubernetesRuntime, api: FakeApi) -> None:
    api.quota_pods = 0
    assert (await detect(runtime.api, runtime.settings)).way == "image"


async def test_the_choice_is_made_once_for_all_creates(runtime: KubernetesRuntime, api: FakeApi, tmp_path: Path) -> None:
    injecting = InjectionChoice(runtime.api, runtime.settings)
    assert set(await asyncio.gather(*(injecting.way() for _ in range(9)))) == {"image"}
    assert (api.requests["dry-run pods"], api.requests["get version"], api.requests["list nodes"]) == (1, 1, 1)
    configured = InjectionChoice(runtime.api, replace(runtime.settings, bundle_injection="init"))
    assert await configured.way() == "init"
    assert api.requests["dry-run pods"] == 1
    api.image_volumes = False
    later = KubernetesRuntime(settings_for(api, tmp_path), "replica-2", QUICK)
    await later.create(order("sb-1"), CREATE_S)
    assert api.pods.get("hf-sb-1")["spec"]["initContainers"][0]["name"] == "holdfast-bundle"
    await later.aclose()


async def test_the_doctor_reports_the_kind_of_injection_and_why(api: FakeApi, tmp_path: Path) -> None:
    async def bundle_check(injection: str) -> dict[str, Any]:
        runtime = KubernetesRuntime(settings_for(api, tmp_path, bundle_injection=injection), "r", QUICK)
        check = next(one for one in await runtime.doctor() if one["name"] == "agent bundle")
        await runtime.aclose()
        return check

    assert (await bundle_check("auto"))["detail"].endswith("by an image volume")
    node(api, "containerd://2.1.4")
    assert "by an init container: containerd://2.1.4 cannot mount a part" in (await bundle_check("auto"))["detail"]
    assert (await bundle_check("init"))["ok"]
    assert not (await bundle_check("image"))["ok"]


def test_versions() -> None:
    assert version_of({"major": "1", "minor": "33+"}) == (1, 33)
    assert version_of({"major": "", "minor": None}) == (0, 0)
