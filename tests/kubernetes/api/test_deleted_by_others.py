"""When another client of the cluster deletes a pod, neither the workload nor the caller who created the sandbox is at fault."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.runtimes.base import EndAnnounced, SandboxEnded, Synced
from gateway.runtimes.kubernetes.pods.runtime_events import carried, on_change, on_vanish
from gateway.runtimes.kubernetes.pods.status import ASKED_GRACE_S, read_pod
from gateway.runtimes.kubernetes.runtime import KubernetesRuntime
from tests.conformance.runtimes import CREATE_S, next_of, order
from tests.support.kube.kubelet import Kubelet
from tests.support.kube.objects import stamp
from tests.support.kube.server import FakeApi


@pytest.mark.parametrize("options", [{}, {"gracePeriodSeconds": 30}, {"gracePeriodSeconds": 1}, {"gracePeriodSeconds": 0}])
async def test_kubectl_delete(runtime: KubernetesRuntime, api: FakeApi, kubelet: Kubelet, options: dict[str, Any]) -> None:
    """As `kubectl delete pod` does without options, with a grace period, with --now and with --force."""
    await runtime.create(order("sb-1"), CREATE_S)
    events = runtime.watch()
    await next_of(events, Synced)
    await until_ready(runtime)
    api.pods.delete("hf-sb-1", options)
    if options != {"gracePeriodSeconds": 0}:
        leaving = await next_of(events, EndAnnounced, "sb-1")
        assert (leaving.cause.reason, leaving.cause.fault) == ("deleted", "infrastructure")
    gone = await next_of(events, SandboxEnded, "sb-1")
    assert (gone.cause.reason, gone.cause.fault) == ("deleted", "infrastructure"), gone.cause
    await events.aclose()  # type: ignore[attr-defined]


async def until_ready(runtime: KubernetesRuntime) -> None:
    """Wait until the kubelet reports that the container runs; the create returns earlier."""
    async with asyncio.timeout(60):
        while (await runtime.list_all())[0].state != "ready":
            await asyncio.sleep(0)


async def test_a_delete_through_the_service_is_attributed_to_the_caller(runtime: KubernetesRuntime) -> None:
    request = order("sb-1")
    await runtime.create(request, CREATE_S)
    events = runtime.watch()
    await next_of(events, Synced)
    await until_ready(runtime)
    assert await runtime.delete("sb-1", request.spec.incarnation)
    gone = await next_of(events, SandboxEnded, "sb-1")
    assert (gone.cause.reason, gone.cause.fault) == ("deleted", "caller")
    await events.aclose()  # type: ignore[attr-defined]


async def test_a_pod_that_ended_before_its_delete_keeps_its_cause(runtime: KubernetesRuntime, api: FakeApi, kubelet: Kubelet) -> None:
    await runtime.create(order("sb-1"), CREATE_S)
    events = runtime.watch()
    await next_of(events, Synced)
    kubelet.end("hf-sb-1", reason="OOMKilled")
    api.pods.delete("hf-sb-1", {})
    gone = await next_of(events, SandboxEnded, "sb-1")
    assert (gone.cause.reason, gone.cause.fault) == ("oom", "workload")
    await runtime.create(order("sb-2"), CREATE_S)
    kubelet.end("hf-sb-2", reason="Error", code=3)
    later = await next_of(events, SandboxEnded, "sb-2")
    assert (later.cause.reason, later.cause.fault) == ("exited", "workload")
    await events.aclose()  # type: ignore[attr-defined]


async def test_an_end_before_the_delete_is_distinguished_from_one_caused_by_it(
    runtime: KubernetesRuntime, api: FakeApi, kubelet: Kubelet
) -> None:
    await runtime.create(order("sb-1"), CREATE_S)
    await until_ready(runtime)
    pod = api.pods.get("hf-sb-1")

    def ended_pod(finished_s: float, reason: str = "Error", code: int = 137, *, grace: int = 30) -> Any:
        """The pod, deleted now with that grace period, whose container ended ``finished_s`` seconds later."""
        ended = {"terminated": {"reason": reason, "exitCode": code, "finishedAt": stamp(finished_s)}}
        metadata = {**pod["metadata"], "deletionTimestamp": stamp(grace), "deletionGracePeriodSeconds": grace}
        return read_pod(
            {**pod, "metadata": metadata, "status": {"phase": "Failed", "containerStatuses": [{"name": "sandbox", "state": ended}]}}
        )

    before = read_pod(pod)
    for facts, reason, fault in (
        (ended_pod(1.0, "Completed", 0), "deleted", "infrastructure"),
        (ended_pod(29.0), "deleted", "infrastructure"),  # it did not stop within its grace period and was killed
        (ended_pod(-20.0), "exited", "workload"),
        (ended_pod(1.0, "OOMKilled"), "oom", "workload"),
    ):
        (event,) = on_change(facts, before, runtime.settings)
        assert isinstance(event, SandboxEnded)
        assert (event.cause.reason, event.cause.fault) == (reason, fault)
    # The kubelet removes an ended pod with a grace period of 0. That is not reported a second time.
    assert on_vanish(ended_pod(1.0, grace=0), ended_pod(1.0)) == []
    (event,) = on_vanish(ended_pod(1.0, grace=0), before)  # one event carried both: it is reported now
    assert isinstance(event, SandboxEnded)
    assert (event.cause.reason, event.cause.fault) == ("deleted", "infrastructure")
    ours = ended_pod(1.0, grace=ASKED_GRACE_S)
    (event,) = on_vanish(carried(ended_pod(1.0, grace=0), ours), ours)
    assert isinstance(event, SandboxEnded)
    assert (event.cause.reason, event.cause.fault) == ("deleted", "caller")
