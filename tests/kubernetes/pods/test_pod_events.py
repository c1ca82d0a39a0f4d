"""Pods that never come up and whose status does not say why: missing volumes, and user namespaces that the cluster does not support."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from holdfast_wire.errors import HoldfastError

from gateway.model.options import Options
from gateway.runtimes.kubernetes.pods import creation
from gateway.runtimes.kubernetes.pods.failures import event_failure
from gateway.runtimes.kubernetes.pods.status import read_pod
from gateway.runtimes.kubernetes.runtime import KubernetesRuntime
from tests.conformance.runtimes import CREATE_S, order
from tests.kubernetes.conftest import QUICK, settings_for
from tests.support.kube.kubelet import Kubelet
from tests.support.kube.objects import RefusedError, stamp
from tests.support.kube.server import FakeApi
from tests.support.pace import Stopwatch
from tests.support.until import until_async

SOON_S = 30.0


@pytest_asyncio.fixture
async def stuck(api: FakeApi, kubelet: Kubelet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubernetesRuntime]:
    """A runtime on a node where containers are never created."""
    monkeypatch.setattr(creation, "_SLOW_S", 0.1)

    async def never(pod: dict[str, Any]) -> None:
        api.pods.update(pod["metadata"]["name"], lambda body: body["spec"].update(nodeName="node-1"))
        waiting = [{"name": "sandbox", "state": {"waiting": {"reason": "ContainerCreating"}}}]
        api.pods.update(pod["metadata"]["name"], lambda body: body["status"].update(containerStatuses=waiting))

    monkeypatch.setattr(kubelet, "_live", never)
    made = KubernetesRuntime(settings_for(api, tmp_path, allow_root=True), "replica-1", QUICK)
    yield made
    await made.aclose()


def add_event(api: FakeApi, reason: str, message: str, kind: str = "Warning", uid: str | None = None, pod: str = "hf-sb-1") -> None:
    uid = uid or api.pods.get(pod)["metadata"]["uid"]
    number = len(api.stores["events"].names())
    body = {
        "reason": reason,
        "message": message,
        "type": kind,
        "involvedObject": {"kind": "Pod", "name": pod, "uid": uid},
        "lastTimestamp": stamp(number),
    }
    api.stores["events"].create({"metadata": {"name": f"event-{number}"}, **body})


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ('MountVolume.SetUp failed for volume "v0" : secret "token" not found', "secret 'token'"),
        ('MountVolume.SetUp failed for volume "v1" : configmap "job" not found', "config map 'job'"),
    ],
)
async def test_a_missing_volume_is_reported_in_seconds(stuck: KubernetesRuntime, api: FakeApi, message: str, words: str) -> None:
    creating = asyncio.create_task(stuck.create(order("sb-1"), CREATE_S))
    await until_async(api.pods.names, deadline_s=SOON_S, what="the pod")
    add_event(api, "FailedMount", 'secret "other" not found', uid="somebody-else")
    add_event(api, "FailedMount", message)
    add_event(api, "FailedScheduling", "0/1 nodes are available")
    began = time.monotonic()
    with pytest.raises(HoldfastError, match=words) as caught:
        await creating
    assert time.monotonic() - began < SOON_S
    assert (caught.value.code, caught.value.reason, caught.value.fault) == ("invalid_argument", "config", "caller")


async def test_a_timeout_carries_the_last_warning(stuck: KubernetesRuntime, api: FakeApi) -> None:
    await stuck.injection()  # what only the first create requests
    creating = asyncio.create_task(stuck.create(order("sb-1"), 4.0))
    await until_async(api.pods.names, deadline_s=SOON_S, what="the pod")
    add_event(api, "FailedCreatePodSandBox", "old")
    add_event(api, "FailedCreatePodSandBox", 'no runtime for "kata" is configured\x1b[31m')
    with pytest.raises(HoldfastError, match='FailedCreatePodSandBox: no runtime for "kata" is configured') as caught:
        await creating
    assert caught.value.code == "create_timeout"
    assert "\x1b" not in caught.value.message


@pytest.mark.parametrize("verb", ["list", "watch"])
async def test_a_create_without_the_right_to_read_events_times_out_normally(stuck: KubernetesRuntime, api: FakeApi, verb: str) -> None:
    api.refuse = [(f"{verb} events", RefusedError(403, "Forbidden", "events is forbidden"))] * 99
    await stuck.injection()
    with pytest.raises(HoldfastError, match="ContainerCreating") as caught:
        await stuck.create(order("sb-1"), 3.0)
    assert caught.value.code == "create_timeout"


async def test_warnings_of_a_slow_pod_are_listed_where_they_cannot_be_watched(stuck: KubernetesRuntime, api: FakeApi) -> None:
    """The role of an older deployment has no right to watch events."""
    api.refuse = [("watch events", RefusedError(403, "Forbidden", "events is forbidden"))] * 99
    creating = asyncio.create_task(stuck.create(order("sb-1"), CREATE_S))
    await until_async(api.pods.names, deadline_s=SOON_S, what="the pod")
    add_event(api, "FailedMount", 'secret "token" not found')
    with pytest.raises(HoldfastError, match="secret 'token'"):
        await creating


def test_a_missing_claim_is_a_fault_of_the_caller() -> None:
    message = '0/3 nodes are available: persistentvolumeclaim "data-7" not found. preemption: 0/3 nodes are available.'
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    failure = read_pod({"metadata": {}, "status": {"phase": "Pending", "conditions": [condition]}}).failure
    assert failure is not None
    assert (failure.code, failure.cause.reason, failure.cause.fault, failure.lasting) == ("invalid_argument", "config", "caller", True)
    assert "claim 'data-7'" in failure.cause.message


async def test_root_is_refused_where_it_would_be_root_of_the_node(
    stuck: KubernetesRuntime, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.restricted = False
    api.user_namespaces = False  # the API server drops the field silently
    request = order("sb-1", options=Options(user=0))
    with pytest.raises(HoldfastError, match="gives pods no user namespaces") as caught:
        await stuck.create(request, CREATE_S)
    assert caught.value.code == "unsupported"
    assert api.requests["create pods"] == 0

    async def unknown(manifest: dict[str, Any]) -> None:
        """As when the API server did not answer the dry run."""

    monkeypatch.setattr(stuck._pod_creation, "_check_user_namespaces", unknown)
    with pytest.raises(HoldfastError, match="gives pods no user namespaces"):
        await stuck.create(request, CREATE_S)
    await until_async(lambda: not api.pods.names(), deadline_s=SOON_S, what="the pod to be gone")


NOT_FOUND = (
    'Failed to pull image "python:3.12": failed to pull and unpack image "docker.io/library/python:3.12": failed to resolve image: '
    "docker.io/library/python:3.12: not found"
)


@pytest.mark.parametrize(
    ("reason", "message", "code", "fault"),
    [
        ("Failed", NOT_FOUND, "image_not_found", "caller"),
        ("Failed", 'Failed to pull image "python:3.12": pull access denied, repository does not exist', "image_not_found", "caller"),
        (
            "InspectFailed",
            'Failed to apply default image tag "python:3.12": couldn\'t parse image name "python:3.12"',
            "image_not_found",
            "caller",
        ),
        ("ErrImageNeverPull", 'Container image "python:3.12" is not present with pull policy of Never', "image_not_found", "caller"),
    ],
)
async def test_a_missing_image_is_reported_from_the_kubelets_event(
    stuck: KubernetesRuntime, api: FakeApi, reason: str, message: str, code: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kubelet's event appears ten seconds before the pod's status shows the cause; until then the status is that of any new pod."""
    monkeypatch.setattr(creation, "_SLOW_S", 600.0)
    await stuck.injection()
    creating = asyncio.create_task(stuck.create(order("sb-1", image="python:3.12"), CREATE_S))
    await until_async(lambda: api.pods.names() and api.requests["watch events"], deadline_s=SOON_S, what="the pod and the watch")
    add_event(api, reason, message)
    with Stopwatch() as watch:
        with pytest.raises(HoldfastError) as caught:
            await creating
        assert watch.elapsed_s <= 3.0
    assert (caught.value.code, caught.value.reason, caught.value.fault) == (code, "image-pull", fault)
    assert "HOLDFAST_PULL_SECRETS" in caught.value.hint
    assert "HOLDFAST_IMAGE_FALLBACK" not in caught.value.hint
    assert "holdfast image import" not in caught.value.hint
    (left,) = await stuck.list_all()  # its status is still that of a new pod
    assert left.state == "failed"
    assert left.cause is not None
    assert (left.cause.reason, left.cause.fault) == ("image-pull", fault)
    api.pods.update(
        "hf-sb-1", lambda body: body["status"].update(phase="Running", containerStatuses=[{"name": "sandbox", "state": {"running": {}}}])
    )
    (left,) = await stuck.list_all()
    assert left.state != "failed", "the image was pulled after all"


async def test_one_watch_shows_the_warnings_of_all_pods(stuck: KubernetesRuntime, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server reads all events of a namespace for each list: in a burst of 12 pods beside 3 257 events, 9 lists took it 2.4 s."""
    monkeypatch.setattr(creation, "_SLOW_S", 600.0)
    creates = [asyncio.create_task(stuck.create(order(f"sb-{n}", image="python:3.12"), CREATE_S)) for n in range(20)]
    await until_async(lambda: len(api.pods.names()) == 20, deadline_s=60, what="the pods")
    await until_async(lambda: api.requests["watch events"] >= 1, deadline_s=60, what="the watch")
    for n in range(20):
        add_event(api, "Failed", NOT_FOUND, pod=f"hf-sb-{n}")
    answers = await asyncio.gather(*creates, return_exceptions=True)
    assert {getattr(answer, "code", None) for answer in answers} == {"image_not_found"}
    assert (api.requests["list events"], api.requests["watch events"]) == (1, 1), "the list is of one event, for its version"


async def test_a_pull_that_may_still_succeed_is_given_the_patience(stuck: KubernetesRuntime, api: FakeApi, tmp_path: Path) -> None:
    message = 'Failed to pull image "python:3.12": failed to do request: Head "https://r/v2": dial tcp 10.0.0.1:443: i/o timeout'
    impatient = KubernetesRuntime(settings_for(api, tmp_path, pull_patience_s=3.0), "replica-1", QUICK)
    creating = asyncio.create_task(impatient.create(order("sb-1", image="python:3.12"), CREATE_S))
    await until_async(api.pods.names, deadline_s=SOON_S, what="the pod")
    add_event(api, "Failed", message)
    with pytest.raises(HoldfastError, match="i/o timeout") as caught:
        await creating
    assert (caught.value.code, caught.value.reason, caught.value.fault) == ("image_pull_failed", "image-pull", "infrastructure")
    assert "retry when it answers" in caught.value.hint
    await impatient.aclose()


@pytest.mark.parametrize(
    ("image", "message", "code"),
    [
        ("r/denied:1", 'failed to pull "r/denied:1": dial tcp 10.0.0.1:443: connect: connection refused', "image_pull_failed"),
        ("x", 'Head "https://r/v2/not found": dial tcp: lookup r on 10.96.0.10:53: no such host', "image_pull_failed"),
        ("x", "unexpected status from HEAD request to https://r/v2/x/manifests/1: 503 Service Unavailable", "image_pull_failed"),
        ("x", "proxyconnect tcp: dial tcp: lookup proxy: server misbehaving; x: not found in any mirror", "image_pull_failed"),
        ("x", "toomanyrequests: You have reached your pull rate limit", "image_pull_failed"),
        ("x", "tls: failed to verify certificate: x509: certificate signed by unknown authority", "image_pull_failed"),
        ("x", "unexpected status: 401 Unauthorized", "image_not_found"),
        ("x", "no match for platform in manifest: not found", "image_not_found"),
    ],
)
def test_an_unreachable_registry_is_not_reported_as_a_missing_image(image: str, message: str, code: str) -> None:
    for reason in ("ErrImagePull", "ImagePullBackOff"):
        waiting = [{"name": "sandbox", "image": image, "state": {"waiting": {"reason": reason, "message": message}}}]
        failure = read_pod({"metadata": {}, "status": {"phase": "Pending", "containerStatuses": waiting}}).failure
        assert failure is not None
        assert failure.code == code
    event = event_failure("Failed", f'Failed to pull image "{image}": {message}', image, 0.0)
    assert event is not None
    assert event.code == code


def test_a_missing_image_of_the_bundle_is_not_the_callers_fault() -> None:
    message = 'Failed to pull image "r/holdfast-bundle:1": r/holdfast-bundle:1: not found'
    failure = event_failure("Failed", message, "python:3.12", 0.0)
    assert failure is not None
    assert (failure.code, failure.cause.fault, failure.lasting) == ("image_pull_failed", "infrastructure", False)
    assert event_failure("Failed", "Error: container has runAsNonRoot", "python:3.12", 0.0) is None
    assert event_failure("BackOff", message, "python:3.12", 0.0) is None
