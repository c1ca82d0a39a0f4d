"""Pods that never come up and whose status does not say why: missing volumes, and users that the cluster does not give."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from holdfast_wire.errors import HoldfastError

from gateway.runtimes.kubernetes import creating
from gateway.runtimes.kubernetes.facts import read_pod
from gateway.runtimes.kubernetes.runtime import KubernetesRuntime
from gateway.runtimes.options import Options
from tests.conformance.runtimes import CREATE_S, order
from tests.kubernetes.conftest import QUICK, settings_for
from tests.support.kube.kubelet import Kubelet
from tests.support.kube.objects import RefusedError, stamp
from tests.support.kube.server import FakeApi
from tests.support.until import until_async

SOON_S = 5.0


@pytest_asyncio.fixture
async def stuck(api: FakeApi, kubelet: Kubelet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubernetesRuntime]:
    """A runtime on a node where containers are never made."""
    monkeypatch.setattr(creating, "_SLOW_S", 0.1)

    async def never(pod: dict[str, Any]) -> None:
        api.pods.update(pod["metadata"]["name"], lambda body: body["spec"].update(nodeName="node-1"))
        waiting = [{"name": "sandbox", "state": {"waiting": {"reason": "ContainerCreating"}}}]
        api.pods.update(pod["metadata"]["name"], lambda body: body["status"].update(containerStatuses=waiting))

    monkeypatch.setattr(kubelet, "_live", never)
    made = KubernetesRuntime(settings_for(api, tmp_path, allow_root=True), "replica-1", QUICK)
    yield made
    await made.aclose()


def complain(api: FakeApi, reason: str, message: str, kind: str = "Warning", uid: str | None = None) -> None:
    uid = uid or api.pods.get("hf-sb-1")["metadata"]["uid"]
    number = len(api.stores["events"].names())
    body = {"reason": reason, "message": message, "type": kind, "involvedObject": {"uid": uid}, "lastTimestamp": stamp(number)}
    api.stores["events"].create({"metadata": {"name": f"event-{number}"}, **body})


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ('MountVolume.SetUp failed for volume "v0" : secret "token" not found', "secret 'token'"),
        ('MountVolume.SetUp failed for volume "v1" : configmap "job" not found', "config map 'job'"),
    ],
)
async def test_a_volume_that_is_not_there_is_told_in_seconds(stuck: KubernetesRuntime, api: FakeApi, message: str, words: str) -> None:
    making = asyncio.create_task(stuck.create(order("sb-1"), CREATE_S))
    await until_async(lambda: api.requests["list events"] >= 1, deadline_s=SOON_S, what="events to be asked for")
    complain(api, "FailedMount", 'secret "other" not found', uid="somebody-else")
    complain(api, "FailedMount", message)
    complain(api, "FailedScheduling", "0/1 nodes are available")
    began = time.monotonic()
    with pytest.raises(HoldfastError, match=words) as caught:
        await making
    assert time.monotonic() - began < SOON_S
    assert (caught.value.code, caught.value.reason, caught.value.fault) == ("invalid_argument", "config", "caller")


async def test_a_time_out_says_what_was_complained_of_last(stuck: KubernetesRuntime, api: FakeApi) -> None:
    await stuck.injection()  # what only the first create has to ask
    making = asyncio.create_task(stuck.create(order("sb-1"), 1.5))
    await until_async(api.pods.names, deadline_s=SOON_S, what="the pod")
    complain(api, "FailedCreatePodSandBox", "old")
    complain(api, "FailedCreatePodSandBox", 'no runtime for "kata" is configured\x1b[31m')
    with pytest.raises(HoldfastError, match='FailedCreatePodSandBox: no runtime for "kata" is configured') as caught:
        await making
    assert caught.value.code == "create_timeout"
    assert "\x1b" not in caught.value.message


async def test_without_the_right_to_read_events_nothing_breaks(stuck: KubernetesRuntime, api: FakeApi) -> None:
    api.refuse = [("list events", RefusedError(403, "Forbidden", "events is forbidden"))] * 9
    await stuck.injection()
    with pytest.raises(HoldfastError, match="ContainerCreating") as caught:
        await stuck.create(order("sb-1"), 1.0)
    assert caught.value.code == "create_timeout"


async def test_who_is_quick_is_not_asked_after(runtime: KubernetesRuntime, api: FakeApi) -> None:
    await runtime.create(order("sb-1"), CREATE_S)
    assert api.requests["list events"] == 0


def test_a_claim_that_is_not_there_is_the_callers() -> None:
    message = '0/3 nodes are available: persistentvolumeclaim "data-7" not found. preemption: 0/3 nodes are available.'
    told = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    trouble = read_pod({"metadata": {}, "status": {"phase": "Pending", "conditions": [told]}}).trouble
    assert trouble is not None
    assert (trouble.code, trouble.cause.reason, trouble.cause.fault, trouble.lasting) == ("invalid_argument", "config", "caller", True)
    assert "claim 'data-7'" in trouble.cause.message


async def test_root_is_refused_where_it_would_be_the_nodes(stuck: KubernetesRuntime, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    api.restricted = False
    api.user_namespaces = False  # the wish is dropped without a word
    asked = order("sb-1", options=Options(user=0))
    with pytest.raises(HoldfastError, match="gives pods no user namespaces") as caught:
        await stuck.create(asked, CREATE_S)
    assert caught.value.code == "unsupported"
    assert api.requests["create pods"] == 0

    async def unheard(manifest: dict[str, Any]) -> None:
        """As when the first question was not answered."""

    monkeypatch.setattr(stuck._creating, "_has_user_namespaces", unheard)
    with pytest.raises(HoldfastError, match="gives pods no user namespaces"):
        await stuck.create(asked, CREATE_S)
    await until_async(lambda: not api.pods.names(), deadline_s=SOON_S, what="the pod to be gone")
