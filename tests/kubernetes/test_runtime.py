"""What the Kubernetes runtime does beyond the contract: policies, adoption, evictions, deletes of the right pod, doctor checks."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

import pytest
from holdfast_wire.errors import HoldfastError

from gateway.agents.dial import dial_agent
from gateway.model.options import AllowedRange, Egress
from gateway.runtimes.base import EndAnnounced, RuntimeUnavailableError, SandboxEnded, Synced
from gateway.runtimes.kubernetes.api.client import items_of
from gateway.runtimes.kubernetes.cluster import network_probe
from gateway.runtimes.kubernetes.names import EGRESS, POOL
from gateway.runtimes.kubernetes.network import egress_key
from gateway.runtimes.kubernetes.pods.status import PodStatus
from gateway.runtimes.kubernetes.runtime import KubernetesRuntime
from tests.conformance.runtimes import CREATE_S, next_of, order
from tests.kubernetes.conftest import QUICK, settings_for
from tests.support.kube.kubelet import Kubelet
from tests.support.kube.objects import RefusedError
from tests.support.kube.server import FakeApi
from tests.support.until import until_async

SOON_S = 30.0
INTERNET, LISTED = Egress("internet"), Egress("listed", (AllowedRange("1.1.1.0/24"),))


# Network -------------------------------------------------------------------------------------------------------------


async def test_a_policy_is_created_before_its_pods_and_shared(runtime: KubernetesRuntime, api: FakeApi) -> None:
    policies = api.stores["networkpolicies"]
    order_of_writes: list[str] = []
    policies.on_write.append(lambda entry: order_of_writes.append(entry.object["kind"]))
    api.pods.on_write.append(lambda entry: order_of_writes.append(entry.object["kind"]) if entry.kind == "ADDED" else None)
    await asyncio.gather(*(runtime.create(order(f"sb-{n}", egress=INTERNET), CREATE_S) for n in range(3)))
    await runtime.create(order("sb-none"), CREATE_S)
    assert order_of_writes == ["NetworkPolicy", "Pod", "Pod", "Pod", "Pod"]
    (policy,) = policies.all()
    assert {api.pods.get(f"hf-sb-{n}")["metadata"]["labels"][EGRESS] for n in range(3)} == {policy["metadata"]["labels"][EGRESS]}
    assert api.requests["create networkpolicies"] == 1


async def test_the_allowance_of_a_running_sandbox_changes(runtime: KubernetesRuntime, api: FakeApi) -> None:
    request = order("sb-1")
    await runtime.create(request, CREATE_S)
    for egress in (LISTED, INTERNET, Egress(), LISTED):
        await runtime.set_egress("sb-1", request.spec.incarnation, egress)
        assert api.pods.get("hf-sb-1")["metadata"]["labels"][EGRESS] == egress_key(egress, runtime.settings)
        (present,) = await runtime.list_all()
        assert present.spec.egress == egress
    with pytest.raises(HoldfastError) as caught:
        await runtime.set_egress("sb-none", request.spec.incarnation, LISTED)
    assert caught.value.code == "sandbox_not_found"
    with pytest.raises(HoldfastError) as caught:
        await runtime.set_egress("sb-1", request.spec.incarnation, Egress("listed", domains=("pypi.org",)))
    assert caught.value.code == "unsupported"
    (present,) = await runtime.list_all()
    assert present.spec.egress == LISTED


async def test_an_allowance_is_for_one_incarnation_only(runtime: KubernetesRuntime, api: FakeApi) -> None:
    request = order("sb-1")
    await runtime.create(request, CREATE_S)

    async def refused(incarnation: str) -> None:
        with pytest.raises(HoldfastError) as caught:
            await runtime.set_egress("sb-1", incarnation, INTERNET)
        assert caught.value.code == "sandbox_not_found"

    await refused("f" * 16)
    # The pod is recreated between the lookup and the change; the patch contains the uid of the pod that was found.
    find = runtime._find

    async def replaced(sandbox_id: str, incarnation: str | None) -> list[PodStatus]:
        found = await find(sandbox_id, incarnation)
        body = api.pods.get("hf-sb-1")
        api.pods.remove("hf-sb-1")
        api.pods.create(body)
        return found

    runtime._find = replaced  # type: ignore[method-assign]
    await refused(request.spec.incarnation)
    assert api.pods.get("hf-sb-1")["metadata"]["labels"][EGRESS] == "none"


async def test_only_unused_policies_are_collected(runtime: KubernetesRuntime, api: FakeApi) -> None:
    await runtime.create(order("sb-1", egress=INTERNET), CREATE_S)
    await runtime.create(order("sb-2", egress=LISTED), CREATE_S)
    await runtime.delete("sb-2")
    await until_async(lambda: api.pods.names() == ["hf-sb-1"], deadline_s=SOON_S, what="the pod's end")
    assert await runtime.policies.collect(time.time()) == 0  # used a moment ago
    later = time.time() + 3600
    assert await runtime.policies.collect(later) == 1
    (left,) = api.stores["networkpolicies"].all()
    assert left["metadata"]["labels"][EGRESS] == egress_key(INTERNET, runtime.settings)
    # A policy that another collector removed is created again for the next sandbox that needs it.
    again = KubernetesRuntime(runtime.settings, "replica-2", QUICK)
    await again.create(order("sb-3", egress=LISTED), CREATE_S)
    assert len(api.stores["networkpolicies"].names()) == 2
    await again.aclose()


async def test_the_network_probe_distinguishes_enforced_open_and_broken_networks(
    runtime: KubernetesRuntime, api: FakeApi, kubelet: Kubelet
) -> None:
    api.probed = False
    assert await network_probe.known(runtime.api, runtime.settings) is None

    async def play(closed: int, opened: int) -> network_probe.Verdict:
        """End the pods of the probe with the exit codes that a network would cause."""
        probing = asyncio.create_task(network_probe.probe(runtime.api, runtime.settings, 20.0))
        for role, code in (("listener", None), ("closed", closed), ("open", opened)):
            await until_async(lambda r=role: any(f"-{r}-" in name for name in api.pods.names()), deadline_s=SOON_S, what=role)
            name = next(name for name in api.pods.names() if f"-{role}-" in name)
            state = {"running": {}} if code is None else {"terminated": {"exitCode": code}}
            status = {"podIP": "127.0.0.1", "containerStatuses": [{"name": "canary", "state": state}]}
            api.pods.merge(name, {"status": status})
        verdict = await probing
        assert api.pods.names() == []
        assert await network_probe.known(runtime.api, runtime.settings) == verdict
        return verdict

    assert (await play(closed=41, opened=40)).holds
    assert (await play(closed=42, opened=40)).holds
    leaking = await play(closed=40, opened=40)
    assert (leaking.holds, leaking.leaks) == (False, True)
    with pytest.raises(HoldfastError, match="does not: a sandbox cannot be isolated from the network") as caught:
        await runtime.create(order("sb-1"), CREATE_S)
    assert caught.value.code == "unsupported"
    assert "inconclusive" in (await play(closed=41, opened=41)).detail
    checks = {check["name"]: check for check in await runtime.doctor()}
    assert not checks["network enforcement"]["ok"]


# Deletes and ends ----------------------------------------------------------------------------------------------------


async def test_a_delete_of_another_incarnation_does_nothing(runtime: KubernetesRuntime, api: FakeApi) -> None:
    request = order("sb-1")
    await runtime.create(request, CREATE_S)
    assert not await runtime.delete("sb-1", "0" * 16)
    assert api.requests["delete pods"] == 0
    assert await runtime.delete("sb-1", request.spec.incarnation)


async def test_an_eviction_is_announced_and_its_end_reported(runtime: KubernetesRuntime, api: FakeApi, kubelet: Kubelet) -> None:
    request = order("sb-1")
    made = await runtime.create(request, CREATE_S)
    events = runtime.watch()
    await next_of(events, Synced)
    target = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}
    api.pods.update("hf-sb-1", lambda pod: pod["status"]["conditions"].append(target))
    leaving = await next_of(events, EndAnnounced, "sb-1")
    assert (leaving.cause.reason, leaving.cause.fault) == ("evicted", "infrastructure")
    api.pods.delete("hf-sb-1", {})
    kubelet.agents[made.partition("#")[2]].kill() if made.partition("#")[2] in kubelet.agents else None
    gone = await next_of(events, SandboxEnded, "sb-1")
    assert (gone.incarnation, gone.cause.reason, gone.cause.fault) == (request.spec.incarnation, "evicted", "infrastructure")
    await events.aclose()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("reason", "pod", "expected", "fault"),
    [
        ("OOMKilled", {}, "oom", "workload"),
        ("Error", {"reason": "Evicted", "message": "The node was low on resource: memory."}, "evicted", "infrastructure"),
        ("ContainerStatusUnknown", {}, "node-lost", "infrastructure"),
    ],
)
async def test_an_end_is_reported_while_the_pod_still_exists(
    runtime: KubernetesRuntime, kubelet: Kubelet, reason: str, pod: dict[str, str], expected: str, fault: str
) -> None:
    await runtime.create(order("sb-1"), CREATE_S)
    events = runtime.watch()
    await next_of(events, Synced)
    kubelet.end("hf-sb-1", reason=reason, pod=pod)
    gone = await next_of(events, SandboxEnded, "sb-1")
    assert (gone.cause.reason, gone.cause.fault) == (expected, fault)
    (present,) = await runtime.list_all()
    assert present.state == "failed"
    assert present.cause == gone.cause
    assert await runtime.delete("sb-1")
    await events.aclose()  # type: ignore[attr-defined]


async def test_a_pod_that_vanished_during_a_watch_outage_is_reported(runtime: KubernetesRuntime, api: FakeApi, kubelet: Kubelet) -> None:
    await runtime.create(order("sb-1"), CREATE_S)
    events = runtime.watch()
    await next_of(events, Synced)
    away = asyncio.create_task(next_of(events, SandboxEnded, "sb-1"))
    await until_async(lambda: len(api.watches) == 2, deadline_s=SOON_S, what="both watches")
    api.stalled = True
    api.pods.remove("hf-sb-1")
    api.pods.forget_history()
    api.drop_watches()
    api.stalled = False
    gone = await away
    assert gone.cause.reason == "node-lost"
    await next_of(events, Synced)
    assert await runtime.list_watched() == []
    await events.aclose()  # type: ignore[attr-defined]


# Spares --------------------------------------------------------------------------------------------------------------


async def test_exactly_one_of_many_requests_adopts_a_spare(runtime: KubernetesRuntime, api: FakeApi) -> None:
    spare = order("pool-1", owner="", labels={"holdfast/pool": "small"}, token="aa" * 32)
    made = await runtime.create(spare, CREATE_S)
    assert api.pods.get("hf-pool-1")["metadata"]["labels"][POOL] == "small"
    requests = [order(f"sb-{n}", token=f"{n:02x}" * 32, egress=LISTED, env={"WHO": str(n)}) for n in range(5)]
    answers = await asyncio.gather(*(runtime.adopt("pool-1", request, CREATE_S) for request in requests), return_exceptions=True)
    winners = [n for n, answer in enumerate(answers) if not isinstance(answer, BaseException)]
    assert len(winners) == 1
    assert all(isinstance(a, HoldfastError) and a.code == "sandbox_not_found" for n, a in enumerate(answers) if n not in winners)
    winner = requests[winners[0]]
    assert answers[winners[0]] == made  # the same pod, at the same address
    (present,) = await runtime.list_all()
    assert (present.sandbox_id, present.incarnation, present.spec.owner, present.spec.egress) == (
        winner.spec.sandbox_id,
        winner.spec.incarnation,
        "ada",
        LISTED,
    )
    (await dial_agent(made, winner.token, 60.0)).transport.abort()
    with pytest.raises(HoldfastError):
        await dial_agent(made, spare.token, 60.0)
    assert POOL not in api.pods.get("hf-pool-1")["metadata"]["labels"]
    await runtime.set_egress(winner.spec.sandbox_id, winner.spec.incarnation, INTERNET)  # its pod has another name
    assert await runtime.delete(winner.spec.sandbox_id, winner.spec.incarnation)
    await until_async(lambda: not api.pods.names(), deadline_s=SOON_S, what="the pod's end")


async def test_a_spare_whose_agent_is_dead_is_removed(runtime: KubernetesRuntime, api: FakeApi, kubelet: Kubelet) -> None:
    made = await runtime.create(order("pool-1", owner="", labels={"holdfast/pool": "small"}), CREATE_S)
    api.pods.on_write.remove(kubelet._on_write)
    kubelet.agents[made.partition("#")[2]].kill()
    await until_async(lambda: made.partition("#")[2] not in kubelet.agents, deadline_s=SOON_S, what="the agent's end")
    api.pods.update("hf-pool-1", lambda pod: pod["status"].update(phase="Running", containerStatuses=[]))  # not reported yet
    with pytest.raises(HoldfastError) as caught:
        await runtime.adopt("pool-1", order("sb-1"), CREATE_S)
    assert caught.value.code == "sandbox_not_found"
    assert await runtime.list_all() == [], "the pod is being deleted and is not listed as a sandbox"
    api.pods.on_write.append(kubelet._on_write)
    api.pods.remove("hf-pool-1")


async def test_a_missing_spare_cannot_be_adopted(runtime: KubernetesRuntime) -> None:
    with pytest.raises(HoldfastError) as caught:
        await runtime.adopt("pool-none", order("sb-1"), CREATE_S)
    assert caught.value.code == "sandbox_not_found"


async def test_a_list_of_metadata_alone_is_requested_as_api_servers_read_it(runtime: KubernetesRuntime) -> None:
    for metadata_only in (True, False):
        (node,) = items_of(await runtime.api.get("/api/v1/nodes", metadata_only=metadata_only))
        assert ("status" in node) is not metadata_only


# Readiness -----------------------------------------------------------------------------------------------------------


async def test_a_readiness_check_lists_no_pods(runtime: KubernetesRuntime, api: FakeApi) -> None:
    """Gateways make one until they have started. A list from the watch cache would have all pods, whatever its limit."""
    await runtime.ping()
    assert dict(api.requests) == {"get pods": 1}
    for refusal in (RefusedError(403, "Forbidden", "no right"), RefusedError(503, "ServiceUnavailable", "away")):
        api.refuse = [("get pods", refusal)]
        with pytest.raises(RuntimeUnavailableError):
            await runtime.ping()
    with api.replaced_by(404, b"<html>Not found</html>"), pytest.raises(RuntimeUnavailableError):
        await runtime.ping()


# Doctor --------------------------------------------------------------------------------------------------------------


async def test_the_doctor_names_problems_of_the_deployment(runtime: KubernetesRuntime, api: FakeApi, tmp_path: Path) -> None:
    api.probed = False
    checks = {check["name"]: check for check in await runtime.doctor()}
    assert all({"name", "ok", "detail", "fix", "required"} <= set(check) for check in checks.values())
    assert checks["cluster"]["ok"]
    assert checks["rights"]["ok"]
    assert checks["sandbox namespace"]["ok"]
    assert not checks["default deny"]["ok"]
    assert not checks["network enforcement"]["ok"]
    deny = {"metadata": {"name": "deny"}, "kind": "NetworkPolicy", "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}}
    api.stores["networkpolicies"].create(deny)
    api.denied = {("delete", "pods"), ("patch", "networkpolicies")}
    api.minor = "27"
    api.stores["namespaces"].merge(api.namespace, {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}})
    checks = {check["name"]: check for check in await runtime.doctor()}
    assert checks["default deny"]["ok"]
    assert "delete pods, patch networkpolicies" in checks["rights"]["detail"]
    assert not checks["cluster"]["ok"]
    assert not checks["sandbox namespace"]["ok"]
    image = KubernetesRuntime(settings_for(api, tmp_path, bundle_injection="image"), "r", QUICK)
    assert not {check["name"]: check for check in await image.doctor()}["agent bundle"]["ok"]
    await image.aclose()


async def test_capacity_is_cached_between_lookups(runtime: KubernetesRuntime, api: FakeApi) -> None:
    await runtime.create(order("sb-1"), CREATE_S)
    stats = await runtime.stats()
    assert stats == {
        "sandboxes": 1,
        "nodes": 1,
        "cpu_total": 64.0,
        "memory_total": 256 << 30,
        "cpu_requested": 1.0,
        "memory_requested": 256 << 20,
    }
    before = sum(api.requests.values())
    for _ in range(10):
        await runtime.stats()
    assert sum(api.requests.values()) == before
    with contextlib.suppress(HoldfastError):
        await runtime.delete("sb-1")
