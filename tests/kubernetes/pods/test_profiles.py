"""The three profiles of sandboxes: nodes are probed, and a create that they cannot serve is refused with the profiles that they can."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import pytest_asyncio
from holdfast_wire.errors import HoldfastError

from gateway.controller.pool_refill import is_spare
from gateway.model.labels import KEY_LABEL, POOL_LABEL
from gateway.model.options import Options
from gateway.runtimes.base import CreateRequest
from gateway.runtimes.kubernetes.api.client import ApiError
from gateway.runtimes.kubernetes.cluster import node_probes
from gateway.runtimes.kubernetes.cluster.node_probes import NodeProbes
from gateway.runtimes.kubernetes.pods import creation
from gateway.runtimes.kubernetes.pods.failures import needs_users
from gateway.runtimes.kubernetes.pods.status import read_pod
from gateway.runtimes.kubernetes.runtime import KubernetesRuntime
from gateway.runtimes.kubernetes.settings import Profile, read
from tests.conformance.runtimes import CREATE_S, order
from tests.kubernetes.conftest import QUICK, settings_for
from tests.kubernetes.pods.test_manifest import PLAIN
from tests.support.kube.kubelet import Kubelet
from tests.support.kube.objects import RefusedError
from tests.support.kube.probe_pods import NODES_USERS, OWN_USERS, ProbePods
from tests.support.kube.rules import check_pod
from tests.support.kube.server import FakeApi

REFUSED = "can't set `spec.hostUsers: false`, runtime does not support user namespaces"
PROFILES: tuple[Profile, ...] = ("userns", "root", "restricted")


@pytest_asyncio.fixture
async def runtimes(api: FakeApi, kubelet: Kubelet, tmp_path: Path) -> AsyncIterator[dict[Profile, KubernetesRuntime]]:
    """A runtime of each profile, as if a deployment changed its profile."""
    made = {one: KubernetesRuntime(settings_for(api, tmp_path, sandbox_profile=one), f"replica-{one}", QUICK) for one in PROFILES}
    yield made
    for runtime in made.values():
        await runtime.aclose()


async def check_of(runtime: KubernetesRuntime) -> dict[str, Any]:
    return next(one for one in await runtime.doctor() if one["name"] == "sandbox profile")


def names_the_alternatives(error: HoldfastError) -> bool:
    settings = ("HOLDFAST_SANDBOX_PROFILE=root", "HOLDFAST_SANDBOX_PROFILE=restricted")
    return error.code == "unsupported" and error.fault == "infrastructure" and all(setting in (error.hint or "") for setting in settings)


@pytest.mark.parametrize("uid_map", [OWN_USERS, NODES_USERS])
async def test_a_probe_pod_decides_whether_userns_is_available(
    runtimes: dict[Profile, KubernetesRuntime], api: FakeApi, uid_map: str
) -> None:
    runtime, supported = runtimes["userns"], uid_map == OWN_USERS
    assert "not probed yet" in (await check_of(runtime))["detail"]
    with ProbePods(api, uid_map=uid_map).run():
        seen = await node_probes.probe(runtime.api, runtime.settings)
    assert seen.users is supported
    assert api.pods.names() == []
    check = await check_of(runtime)
    assert check["ok"] is supported
    if supported:
        assert await runtime.create(order("sb-1"), CREATE_S)
        return
    assert "HOLDFAST_SANDBOX_PROFILE=root" in check["fix"]
    with pytest.raises(HoldfastError, match="in the node's") as caught:
        await runtime.create(order("sb-1"), CREATE_S)
    assert names_the_alternatives(caught.value)
    assert api.pods.names() == [], "it is refused before a pod is created"
    for profile in ("root", "restricted"):
        assert (await check_of(runtimes[profile]))["ok"]
        assert await runtimes[profile].create(order(f"sb-{profile}"), CREATE_S)


async def test_a_server_that_drops_the_user_namespace_field_is_detected(runtimes: dict[Profile, KubernetesRuntime], api: FakeApi) -> None:
    api.user_namespaces = False
    runtime = runtimes["userns"]
    with pytest.raises(HoldfastError, match="drops hostUsers") as caught:
        await runtime.create(order("sb-1"), CREATE_S)
    assert names_the_alternatives(caught.value)
    assert api.requests["create pods"] == 0
    seen = await node_probes.probe(runtime.api, runtime.settings, wait_s=0.3)
    assert seen.users is False
    assert "drops hostUsers" in (await check_of(runtime))["detail"]
    assert api.pods.names() == []
    assert await runtimes["root"].create(order("sb-2"), CREATE_S)


async def test_a_refusal_by_the_kubelet_is_reported_in_seconds(
    runtimes: dict[Profile, KubernetesRuntime], api: FakeApi, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(creation, "_SLOW_S", 0.1)
    kubelet.no_users = REFUSED
    began = time.monotonic()
    with pytest.raises(HoldfastError, match="does not support user namespaces") as caught:
        await runtimes["userns"].create(order("sb-1"), CREATE_S)
    assert time.monotonic() - began < 30.0
    assert names_the_alternatives(caught.value)
    assert await runtimes["restricted"].create(order("sb-2"), CREATE_S)


async def test_a_probe_reads_a_refusal_by_the_kubelet(runtimes: dict[Profile, KubernetesRuntime], api: FakeApi, kubelet: Kubelet) -> None:
    """`ProbePods` usually plays the pods of a probe; here the kubelet schedules the pod for user namespaces and refuses it."""

    def refuse(entry: Any) -> None:
        metadata = entry.object["metadata"]
        if entry.kind == "ADDED" and metadata["labels"].get("holdfast.dev/canary-role"):
            api.pods.update(metadata["name"], lambda body: body["spec"].update(nodeName="node-1"))
            kubelet._warn(metadata["uid"], f"Failed to create pod sandbox: {REFUSED}")

    api.pods.on_write.append(refuse)
    runtime = runtimes["userns"]
    seen = await node_probes.probe(runtime.api, replace(runtime.settings, bundle_injection="init"))
    assert (seen.users, seen.volume) == (False, None)
    assert REFUSED in seen.users_why
    with pytest.raises(HoldfastError, match="runtime does not support"):
        await runtime.create(order("sb-1"), CREATE_S)


async def test_an_inconclusive_probe_refuses_no_create(runtimes: dict[Profile, KubernetesRuntime], api: FakeApi) -> None:
    runtime = runtimes["userns"]
    seen = await node_probes.probe(runtime.api, runtime.settings, wait_s=0.2)  # nothing runs its pods
    assert (seen.users, seen.volume) == (None, None)
    assert not (await check_of(runtime))["ok"]
    assert await runtime.create(order("sb-1"), CREATE_S)


async def test_an_inconclusive_probe_keeps_what_was_known(runtimes: dict[Profile, KubernetesRuntime], api: FakeApi) -> None:
    """On a cluster whose quota is used up no probe can start: image volumes that work are not given up for that."""
    runtime = runtimes["userns"]
    with ProbePods(api, volume=False).run():
        before = await node_probes.probe(runtime.api, runtime.settings)
    assert (before.users, before.volume) == (True, False)
    api.quota_pods = 0
    after = await node_probes.probe(runtime.api, runtime.settings)
    assert after == replace(before, at=after.at)
    assert after.at > before.at
    assert await node_probes.known(runtime.api, runtime.settings) == after
    api.quota_pods = None
    with ProbePods(api, uid_map=NODES_USERS).run():
        refused = await node_probes.probe(runtime.api, runtime.settings)
    assert (refused.users, refused.volume) == (False, True)
    assert (await node_probes.probe(runtime.api, runtime.settings, wait_s=0.2)).users is None, "a refusal needs a probe that shows it"


async def test_a_probe_that_the_api_server_fails_does_not_take_the_other_with_it(
    runtimes: dict[Profile, KubernetesRuntime], api: FakeApi
) -> None:
    runtime = runtimes["userns"]
    with ProbePods(api).run():
        api.refuse = [("create pods", RefusedError(503, "ServiceUnavailable", "etcd is away"))]
        with pytest.raises(ApiError, match="etcd is away"):
            await node_probes.probe(runtime.api, runtime.settings)
        seen = await node_probes.known(runtime.api, runtime.settings)
        assert seen is not None
        assert [seen.users, seen.volume].count(True) == 1
        assert api.pods.names() == []
        await NodeProbes(runtime.api, runtime.settings).probe_when_due()
        whole = await node_probes.known(runtime.api, runtime.settings)
        assert whole is not None
        assert (whole.users, whole.volume) == (True, True)
        api.refuse = [("create pods", RefusedError(503, "ServiceUnavailable", "etcd is away"))]
        with pytest.raises(ApiError, match="etcd is away"):
            await node_probes.probe(runtime.api, runtime.settings)
        assert await node_probes.known(runtime.api, runtime.settings) == whole


async def test_a_verdict_for_another_profile_does_not_count(runtimes: dict[Profile, KubernetesRuntime], api: FakeApi) -> None:
    with ProbePods(api).run():
        await node_probes.probe(runtimes["restricted"].api, runtimes["restricted"].settings)
    assert await node_probes.known(runtimes["userns"].api, runtimes["userns"].settings) is None


async def test_the_leader_probes_again_only_when_due(
    runtimes: dict[Profile, KubernetesRuntime], api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = runtimes["userns"]
    with ProbePods(api, uid_map=NODES_USERS).run() as probe_pods:
        await runtime.collect()
        bad = await node_probes.known(runtime.api, runtime.settings)
        assert bad is not None
        assert bad.users is False
        await runtime.collect()
        assert await node_probes.known(runtime.api, runtime.settings) == bad, "not again so soon"
        monkeypatch.setattr(node_probes, "_PROBE_AGAIN_S", 0.0)
        probe_pods.uid_map = OWN_USERS
        await runtime.collect()
        good = await node_probes.known(runtime.api, runtime.settings)
        assert good is not None
        assert good.users
        await runtime.collect()
        assert await node_probes.known(runtime.api, runtime.settings) == good, "a good verdict lasts"


# Spares --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", PROFILES)
@pytest.mark.parametrize("wanted", PROFILES)
async def test_a_spare_of_another_profile_is_never_adopted(
    runtimes: dict[Profile, KubernetesRuntime], api: FakeApi, made: Profile, wanted: Profile
) -> None:
    labels = {POOL_LABEL: "warm", KEY_LABEL: "k"}
    await runtimes[made].create(order("pool-1", owner="", labels=labels), CREATE_S)
    (spare,) = [one for one in await runtimes[wanted].list_all() if is_spare(one)]
    assert (spare.state == "failed") is (made != wanted), "the controller replaces it"
    request: CreateRequest = order("sb-1", incarnation="7" * 16)
    if made == wanted:
        assert await runtimes[wanted].adopt("pool-1", request, CREATE_S)
        return
    with pytest.raises(HoldfastError) as caught:
        await runtimes[wanted].adopt("pool-1", request, CREATE_S)
    assert caught.value.code == "sandbox_not_found"
    assert api.pods.get("hf-pool-1")["metadata"]["labels"]["holdfast.dev/sandbox"] == "pool-1", "it is not claimed"


# Manifests, settings and messages ------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("volume", [False, True])
def test_probe_pods_are_as_confined_as_sandboxes(profile: Profile, volume: bool) -> None:
    settings = replace(PLAIN, sandbox_profile=profile)
    made = node_probes.node_probe_pod("hf-canary-nodes-x", settings, volume)
    check_pod(made, restricted=profile == "restricted")
    kubernetes_validate.validate(made, "1.36", strict=True)
    assert made["spec"].get("hostUsers", True) is (profile != "userns")


@pytest.mark.parametrize(
    "text",
    [
        REFUSED,
        'can\'t set `spec.hostUsers: false`, RuntimeClass handler "kata" does not support user namespaces',
        'the handler "" is not known',
        'the feature gate "UserNamespacesSupport" is disabled: can\'t set spec.HostUsers',
        "failed to set MOUNT_ATTR_IDMAP on /var/lib/x: invalid argument (maybe the source filesystem doesn't support idmap mounts)",
        "failed to create idmapped mount: Unable to shift GID/UID for /run/x: function not implemented: unknown",
        'create mapped mount for "/var/lib/containers/storage/overlay"',
        "failed to start noop process for unshare: fork/exec /proc/self/exe: no space left on device",
    ],
)
def test_messages_of_nodes_without_user_namespaces(text: str) -> None:
    assert needs_users(text)
    waiting = [{"name": "sandbox", "state": {"waiting": {"reason": "CreateContainerError", "message": text}}}]
    for own in (True, False):
        body = {"metadata": {}, "spec": {} if not own else {"hostUsers": False}, "status": {"containerStatuses": waiting}}
        failure = read_pod(body).failure
        assert failure is not None
        assert failure.code == ("unsupported" if own else "sandbox_failed")


def test_settings() -> None:
    bundle = {"HOLDFAST_BUNDLE_IMAGE": "b"}
    assert (read(bundle).sandbox_profile, read(bundle).user) == ("userns", None)
    assert read({**bundle, "HOLDFAST_SANDBOX_PROFILE": "restricted", "HOLDFAST_GROUP": "5"}).group == 5
    assert read({**bundle, "HOLDFAST_USER": "0"}).user == 0
    with pytest.raises(ValueError, match="HOLDFAST_SANDBOX_PROFILE must be one of userns, root, restricted, not 'docker'"):
        read({**bundle, "HOLDFAST_SANDBOX_PROFILE": "docker"})
    with pytest.raises(ValueError, match="HOLDFAST_GROUP needs HOLDFAST_USER"):
        read({**bundle, "HOLDFAST_GROUP": "5"})
    assert read({**bundle, "HOLDFAST_ALLOW_ROOT": "True"}).allow_root
    assert not read({**bundle, "HOLDFAST_ALLOW_ROOT": "no"}).allow_root
    with pytest.raises(ValueError, match="HOLDFAST_ALLOW_ROOT must be true or false, not 'enabled'"):
        read({**bundle, "HOLDFAST_ALLOW_ROOT": "enabled"})
    for value in ("inf", "nan"):
        with pytest.raises(ValueError, match=f"HOLDFAST_NODE_LOST_S must be a finite number, not '{value}'"):
            read({**bundle, "HOLDFAST_NODE_LOST_S": value})


async def test_root_needs_permission_only_under_restricted(runtimes: dict[Profile, KubernetesRuntime]) -> None:
    request = order("sb-1", options=Options(user=0))
    with pytest.raises(HoldfastError, match="do not run as root here"):
        await runtimes["restricted"].create(request, CREATE_S)
    assert await runtimes["userns"].create(request, CREATE_S)
