"""Creates: prompt typed failures, one watch for all, nothing left behind, safe to repeat whatever the API server answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from holdfast_wire.errors import HoldfastError

from gateway.agents.dial import dial_agent
from gateway.model.options import Egress, Options
from gateway.runtimes.base import RuntimeUnavailableError
from gateway.runtimes.kubernetes.pods import creation
from gateway.runtimes.kubernetes.runtime import KubernetesRuntime
from tests.conformance.runtimes import CREATE_S, order
from tests.kubernetes.conftest import QUICK, settings_for
from tests.support.kube.kubelet import Kubelet
from tests.support.kube.objects import RefusedError
from tests.support.kube.server import FakeApi
from tests.support.until import until_async

SOON_S = 30.0


@pytest_asyncio.fixture
async def impatient(api: FakeApi, kubelet: Kubelet, tmp_path: Path) -> AsyncIterator[KubernetesRuntime]:
    settings = settings_for(api, tmp_path, unschedulable_patience_s=0.3, pull_patience_s=0.3, allow_root=True)
    made = KubernetesRuntime(settings, "replica-1", QUICK)
    yield made
    await made.aclose()


@pytest.mark.parametrize(
    ("more", "code", "reason", "fault", "words"),
    [
        ({"image": "unknown-image"}, "image_not_found", "image-pull", "caller", "not found"),
        ({"image": "bad image"}, "image_not_found", "image-pull", "caller", "parse"),
        ({"image": "slow-registry"}, "image_pull_failed", "image-pull", "infrastructure", "i/o timeout"),
        ({"image": "needs-secret"}, "invalid_argument", "config", "caller", "secret"),
        ({"cores": 1000.0}, "no_capacity", "unschedulable", "infrastructure", "Insufficient cpu"),
        ({"options": Options(service_account="other")}, "unsupported", None, "caller", "not shared"),
    ],
)
async def test_failures_are_typed_and_prompt(
    impatient: KubernetesRuntime, api: FakeApi, more: dict[str, Any], code: str, reason: str | None, fault: str, words: str
) -> None:
    began = time.monotonic()
    with pytest.raises(HoldfastError, match=words) as caught:
        await impatient.create(order("sb-1", **more), CREATE_S)
    assert time.monotonic() - began < SOON_S
    assert (caught.value.code, caught.value.reason, caught.value.fault) == (code, reason, fault)
    assert not caught.value.retryable  # the runtime has been patient already
    await impatient.delete("sb-1")  # the caller deletes it after recording the failure
    await until_async(lambda: not api.pods.names(), deadline_s=SOON_S, what="the pod to be removed")


async def test_a_namespace_that_is_too_strict_for_the_profile_is_reported(impatient: KubernetesRuntime, api: FakeApi) -> None:
    api.restricted = True
    with pytest.raises(HoldfastError, match="violates PodSecurity") as caught:
        await impatient.create(order("sb-1"), CREATE_S)
    assert (caught.value.code, caught.value.retryable) == ("unsupported", False)
    assert "HOLDFAST_SANDBOX_PROFILE" in (caught.value.hint or "")


async def test_an_exceeded_quota_is_reported(runtime: KubernetesRuntime, api: FakeApi) -> None:
    api.quota_pods = 0
    with pytest.raises(HoldfastError, match="exceeded quota") as caught:
        await runtime.create(order("sb-1"), CREATE_S)
    assert (caught.value.code, caught.value.reason, caught.value.fault) == ("quota_exceeded", "quota", "infrastructure")


async def test_missing_rights_are_a_fault_of_the_service(runtime: KubernetesRuntime, api: FakeApi) -> None:
    message = 'pods is forbidden: User "system:serviceaccount:holdfast:gateway" cannot create resource "pods" in API group ""'
    api.refuse = [("create pods", RefusedError(403, "Forbidden", message))]
    with pytest.raises(RuntimeUnavailableError, match="cannot create"):
        await runtime.create(order("sb-1"), CREATE_S)


async def test_an_agent_that_exits_at_once_is_reported(runtime: KubernetesRuntime) -> None:
    request = order("sb-1", env={"PYTHONHOME": "/nowhere"})  # the fake cluster's agent is a plain interpreter, which cannot start with this
    with pytest.raises(HoldfastError) as caught:
        await runtime.create(request, CREATE_S)
    assert (caught.value.code, caught.value.reason) == ("sandbox_failed", "exited")


async def test_a_pod_deleted_during_its_creation_ends_the_create(runtime: KubernetesRuntime, api: FakeApi) -> None:
    creating = asyncio.create_task(runtime.create(order("sb-1", image="slow-registry"), CREATE_S))
    await until_async(api.pods.names, deadline_s=SOON_S, what="the pod")
    api.pods.remove("hf-sb-1")
    with pytest.raises(HoldfastError) as caught:
        await creating
    assert (caught.value.code, caught.value.reason) == ("sandbox_failed", "deleted")


async def test_a_timeout_names_what_it_waited_for_and_leaves_the_pod_to_the_caller(runtime: KubernetesRuntime, api: FakeApi) -> None:
    """Another replica may have reached the agent; only the record shows this, and the runtime does not read it."""
    await runtime.injection()  # what only the first create requests
    with pytest.raises(HoldfastError, match="Insufficient cpu") as caught:
        await runtime.create(order("sb-1", cores=1000.0), 3.0)
    assert caught.value.code == "create_timeout"
    assert api.pods.names() == ["hf-sb-1"]


async def test_an_api_server_that_does_not_answer_costs_no_more_than_the_time_of_the_create(api: FakeApi, tmp_path: Path) -> None:
    """The client waits as long as the create may take: an answer after that is lost, and what it creates is left behind."""
    async with asyncio.timeout(60):
        runtime = KubernetesRuntime(settings_for(api, tmp_path, request_timeout_s=1000.0), "replica-1", QUICK)
        api.stall = asyncio.Event()
        with pytest.raises(RuntimeUnavailableError) as caught:
            await runtime.create(order("sb-1"), 0.3)
        api.stall.set()
    assert caught.value.made_nothing
    assert api.pods.names() == []
    await runtime.aclose()


async def test_an_address_where_the_agent_of_another_pod_answers_is_refused(
    runtime: KubernetesRuntime, api: FakeApi, kubelet: Kubelet
) -> None:
    request = order("sb-1")
    first = await runtime.create(request, CREATE_S)
    address = first.removeprefix("tcp://").partition(":")[0]
    # The pod is replaced by one of the same sandbox, incarnation and token, whose status still shows the old pod's address.
    body = api.pods.get("hf-sb-1")
    api.pods.on_write.remove(kubelet._on_write)  # the old agent continues to run, as on a node without network
    api.pods.remove("hf-sb-1")
    creating = asyncio.create_task(runtime.create(request, 2.0))
    await until_async(api.pods.names, deadline_s=SOON_S, what="the second pod")
    api.pods.update("hf-sb-1", lambda pod: pod["status"].update(body["status"], podIP=address))
    with pytest.raises(HoldfastError) as caught:
        await creating
    assert caught.value.code == "create_timeout"
    (await dial_agent(f"tcp://{address}:8717", request.token, 60.0)).transport.abort()  # the old agent does answer there
    api.pods.on_write.append(kubelet._on_write)


async def test_many_creates_need_one_list_and_one_watch(runtime: KubernetesRuntime, api: FakeApi) -> None:
    await asyncio.gather(*(runtime.create(order(f"sb-{number}"), CREATE_S) for number in range(6)))
    assert api.requests["create pods"] == 6
    assert api.requests["list pods"] <= 2  # pages of three
    assert api.requests["watch pods"] == 1
    assert api.requests["get pods"] == 0


async def test_a_create_is_retried_after_errors_of_the_api_server(runtime: KubernetesRuntime, api: FakeApi) -> None:
    errors = [RefusedError(500, "InternalError", "etcdserver: request timed out"), RefusedError(429, "TooManyRequests", "wait")]
    api.refuse = [("create pods", error) for error in errors]
    assert await runtime.create(order("sb-1"), CREATE_S)
    assert api.pods.names() == ["hf-sb-1"]


async def test_an_api_server_that_keeps_failing_is_reported_unavailable(
    runtime: KubernetesRuntime, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(creation, "_AWAY_S", 0.4)
    api.refuse = [("create pods", RefusedError(500, "InternalError", "etcdserver: request timed out"))] * 99
    began = time.monotonic()
    with pytest.raises(RuntimeUnavailableError, match="etcdserver"):
        await runtime.create(order("sb-1"), 3600.0)
    assert time.monotonic() - began < SOON_S


async def test_after_a_lost_answer_the_created_pod_is_found(runtime: KubernetesRuntime, api: FakeApi) -> None:
    made = []
    create = api._create

    def lose_answer(store: Any, body: Any) -> Any:
        made.append(create(store, body))
        api._create = create  # type: ignore[method-assign]
        raise RefusedError(504, "Timeout", "request did not complete within requested timeout")

    api._create = lose_answer  # type: ignore[method-assign]
    found = await runtime.create(order("sb-1"), CREATE_S)
    assert found.partition("#")[2] == made[0]["metadata"]["uid"]
    assert api.requests["create pods"] == 2


async def test_two_replicas_that_create_the_same_sandbox_share_one_pod(
    runtime: KubernetesRuntime, api: FakeApi, kubelet: Kubelet, tmp_path: Path
) -> None:
    other = KubernetesRuntime(settings_for(api, tmp_path), "replica-2", QUICK)
    request = order("sb-1")
    first, second = await asyncio.gather(runtime.create(request, CREATE_S), other.create(request, CREATE_S))
    assert first == second
    assert api.pods.names() == ["hf-sb-1"]
    await other.aclose()


async def test_a_create_waits_for_the_end_of_a_former_pod_of_the_same_name(
    runtime: KubernetesRuntime, api: FakeApi, kubelet: Kubelet
) -> None:
    first = await runtime.create(order("sb-1"), CREATE_S)
    kubelet.frozen = True  # the pod does not end yet
    assert await runtime.delete("sb-1")
    creating = asyncio.create_task(runtime.create(order("sb-1"), CREATE_S))
    await until_async(lambda: api.requests["create pods"] >= 3, deadline_s=SOON_S, what="some tries")
    kubelet.agents[first.partition("#")[2]].kill()
    second = await creating
    assert second.partition("#")[2] != first.partition("#")[2]


async def test_the_bundle_is_injected_as_the_server_supports(
    runtime: KubernetesRuntime, api: FakeApi, kubelet: Kubelet, tmp_path: Path
) -> None:
    await runtime.create(order("sb-1"), CREATE_S)
    assert "initContainers" not in api.pods.get("hf-sb-1")["spec"]
    api.minor = "32+"
    older = KubernetesRuntime(settings_for(api, tmp_path), "replica-2", QUICK)
    await older.create(order("sb-2"), CREATE_S)
    assert api.pods.get("hf-sb-2")["spec"]["initContainers"][0]["name"] == "holdfast-bundle"
    await older.aclose()


async def test_an_unreachable_cluster_is_unavailable(tmp_path: Path) -> None:
    api = FakeApi()
    async with api.serve():
        settings = settings_for(api, tmp_path)
    runtime = KubernetesRuntime(settings, "replica-1", QUICK)
    for call in (
        runtime.list_all(),
        runtime.delete("sb-1"),
        runtime.ping(),
        runtime.stats(),
        runtime.set_egress("sb-1", "1" * 16, Egress("internet")),
    ):
        with pytest.raises(RuntimeUnavailableError):
            await call
    (check,) = await runtime.doctor()
    assert not check["ok"]
    await runtime.aclose()


async def test_missing_credentials_are_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    async with FakeApi().serve() as api:
        settings = settings_for(api, tmp_path)
    (tmp_path / "kubeconfig").unlink()
    runtime = KubernetesRuntime(settings, "replica-1", QUICK)
    with pytest.raises(RuntimeUnavailableError, match="credentials"):
        await runtime.ping()
    await runtime.aclose()


async def test_an_expired_token_is_read_again(runtime: KubernetesRuntime, api: FakeApi, tmp_path: Path) -> None:
    """As the plug-ins of managed clusters give them: valid for a quarter of an hour."""
    await runtime.ping()
    api.token = "t2"
    for _ in range(2):  # the kubeconfig still has the old one
        with pytest.raises(RuntimeUnavailableError, match="refused the gateway's request"):
            await runtime.ping()
    path = tmp_path / "kubeconfig"
    path.write_text(path.read_text().replace('"token": "t"', '"token": "t2"'))
    await runtime.ping()


async def test_a_create_begun_before_the_secret_changed_is_finished_after(runtime: KubernetesRuntime, api: FakeApi, tmp_path: Path) -> None:
    before = order("sb-1", token="0d" * 32)
    first = await runtime.create(before, CREATE_S)
    other = KubernetesRuntime(settings_for(api, tmp_path), "replica-2", QUICK)
    after = replace(before, token="ab" * 32, other_tokens=("cd" * 32, before.token))
    assert await other.create(after, CREATE_S) == first
    assert api.pods.names() == ["hf-sb-1"]
    await other.aclose()


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_replica_that_waits_for_the_pod_of_another_is_notified_of_its_end(
    runtime: KubernetesRuntime, api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    """No watch of this replica shows the pod, and a later pod may have the same name."""
    monkeypatch.setattr(creation, "_LOOK_S", 0.1)
    other = KubernetesRuntime(settings_for(api, tmp_path), "replica-2", QUICK)
    request = order("sb-1", image="slow-registry")
    first = asyncio.create_task(runtime.create(request, CREATE_S))
    await until_async(api.pods.names, deadline_s=SOON_S, what="the pod")
    second = asyncio.create_task(other.create(request, CREATE_S))
    await until_async(lambda: api.requests["get pods"] >= 2, deadline_s=SOON_S, what="the second to look at it")
    body = api.pods.remove("hf-sb-1")
    if replaced:
        api.pods.create({**body, "status": {"phase": "Pending"}})
    for creating in (first, second):
        with pytest.raises(HoldfastError) as caught:
            async with asyncio.timeout(60):
                await creating
        assert (caught.value.code, caught.value.reason) == ("sandbox_failed", "deleted")
    await other.aclose()
