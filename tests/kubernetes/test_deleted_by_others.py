"""A pod that another client of the cluster deletes is no fault of the workload, nor of the caller who created the sandbox."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.runtimes.base import EndAnnounced, Synced, WentAway
from gateway.runtimes.kubernetes.pods.runtime_events import on_change, on_vanish
from gateway.runtimes.kubernetes.pods.status import ASKED_GRACE_S, read_pod
from gateway.runtimes.kubernetes.runtime import KubernetesRuntime
from tests.conformance.runtimes import CREATE_S, next_of, order
from tests.support.kube.kubelet import Kubelet
from tests.support.kube.objects import stamp
from tests.support.kube.server import FakeApi


@pytest.mark.parametrize("options", [{}, {"gracePeriodSeconds": 30}, {"gracePeriodSeconds": 1}, {"gracePeriodSeconds": 0}])
async def test_kubectl_delete(runtime: KubernetesRuntime, api: FakeApi, kubelet: Kubelet, options: dict[str, Any]) -> None:
    """As `kubectl delete pod` does by itself, with a grace, with --now and with --force."""
    await runtime.create(order("sb-1"), CREATE_S)
    events = runtime.watch()
    await next_of(events, Synced)
    await until_ready(runtime)
    api.pods.delete("hf-sb-1", options)
    if options != {"gracePeriodSeconds": 0}:
        leaving = await next_of(events, EndAnnounced, "sb-1")
        assert (leaving.cause.reason, leaving.cause.fault) == ("deleted", "infrastructure")
    gone = await next_of(events, WentAway, "sb-1")
    assert (gone.cause.reason, gone.cause.fault) == ("deleted", "infrastructure"), gone.cause
    await events.aclose()  # type: ignore[attr-defined]


async def until_ready(runtime: KubernetesRuntime) -> None:
    """Until the kubelet has said that the container runs: the maker knows before."""
    async with asyncio.timeout(60):
        while (await runtime.list_all())[0].state != "ready":
            await asyncio.sleep(0)


async def test_our_own_delete_stays_the_caller_s(runtime: KubernetesRuntime) -> None:
    asked = order("sb-1")
    await runtime.create(asked, CREATE_S)
    events = runtime.watch()
    await next_of(events, Synced)
    await until_ready(runtime)
    assert await runtime.delete("sb-1", asked.incarnation)
    gone = await next_of(events, WentAway, "sb-1")
    assert (gone.cause.reason, gone.cause.fault) == ("deleted", "caller")
    await events.aclose()  # type: ignore[attr-defined]


async def test_what_had_ended_by_itself_keeps_its_cause(runtime: KubernetesRuntime, api: FakeApi, kubelet: Kubelet) -> None:
    await runtime.create(order("sb-1"), CREATE_S)
    events = runtime.watch()
    await next_of(events, Synced)
    kubelet.end("hf-sb-1", reason="OOMKilled")
    api.pods.delete("hf-sb-1", {})
    gone = await next_of(events, WentAway, "sb-1")
    assert (gone.cause.reason, gone.cause.fault) == ("oom", "workload")
    await runtime.create(order("sb-2"), CREATE_S)
    kubelet.end("hf-sb-2", reason="Error", code=3)
    later = await next_of(events, WentAway, "sb-2")
    assert (later.cause.reason, later.cause.fault) == ("exited", "workload")
    await events.aclose()  # type: ignore[attr-defined]


async def test_an_end_before_the_delete_and_one_by_it_are_told_apart(runtime: KubernetesRuntime, api: FakeApi, kubelet: Kubelet) -> None:
    await runtime.create(order("sb-1"), CREATE_S)
    await until_ready(runtime)
    pod = api.pods.get("hf-sb-1")

    def look(finished_s: float, reason: str = "Error", code: int = 137, *, grace: int = 30) -> Any:
        """The pod, deleted now with that grace, its container ended so many seconds later."""
        ended = {"terminated": {"reason": reason, "exitCode": code, "finishedAt": stamp(finished_s)}}
        metadata = {**pod["metadata"], "deletionTimestamp": stamp(grace), "deletionGracePeriodSeconds": grace}
        return read_pod(
            {**pod, "metadata": metadata, "status": {"phase": "Failed", "containerStatuses": [{"name": "sandbox", "state": ended}]}}
        )

    before = read_pod(pod)
    for facts, reason, fault in (
        (look(1.0, "Completed", 0), "deleted", "infrastructure"),
        (look(29.0), "deleted", "infrastructure"),  # it did not stop in its grace and was killed
        (look(-20.0), "exited", "workload"),
        (look(1.0, "OOMKilled"), "oom", "workload"),
    ):
        (event,) = on_change(facts, before, runtime.settings)
        assert isinstance(event, WentAway)
        assert (event.cause.reason, event.cause.fault) == (reason, fault)
    # The kubelet removes what has ended without grace. That is not told a second time.
    assert on_vanish(look(1.0, grace=0), look(1.0)) == []
    (event,) = on_vanish(look(1.0, grace=0), before)  # one event told both: it is told now
    assert isinstance(event, WentAway)
    assert (event.cause.reason, event.cause.fault) == ("deleted", "infrastructure")
    (event,) = on_vanish(look(1.0, grace=0), look(1.0, grace=ASKED_GRACE_S))
    assert isinstance(event, WentAway)
    assert (event.cause.reason, event.cause.fault) == ("deleted", "caller")
