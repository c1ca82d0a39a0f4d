"""Reading the JSON of pods: causes as kubelet, scheduler and controllers write them, and no exception from any other JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.runtimes.base import EndAnnounced, SandboxEnded
from gateway.runtimes.kubernetes.pods.json_fields import moment
from gateway.runtimes.kubernetes.pods.manifest import pod
from gateway.runtimes.kubernetes.pods.runtime_events import on_change, on_vanish, status_of
from gateway.runtimes.kubernetes.pods.status import PodStatus, read_pod
from gateway.runtimes.kubernetes.settings import KubernetesSettings
from tests.conformance.runtimes import order

SETTINGS = KubernetesSettings(bundle_image="b")
NOW = moment("2026-01-01T00:10:00Z")
MADE = "2026-01-01T00:00:00Z"


def seen(status: dict[str, Any], **metadata: Any) -> PodStatus:
    body = pod(order("sb-1", incarnation="1" * 16), SETTINGS, "image", "r")
    body["metadata"] |= {"uid": "u1", "resourceVersion": "7", "creationTimestamp": MADE, **metadata}
    return read_pod({**body, "status": status})


def waiting(reason: str, message: str = "", name: str = "sandbox") -> dict[str, Any]:
    key = "containerStatuses" if name == "sandbox" else "initContainerStatuses"
    return {"phase": "Pending", key: [{"name": name, "image": "i", "state": {"waiting": {"reason": reason, "message": message}}}]}


def ended(reason: str, code: int, message: str = "", **more: Any) -> dict[str, Any]:
    state = {"terminated": {"reason": reason, "exitCode": code, "message": message}}
    return {"phase": "Failed", "containerStatuses": [{"name": "sandbox", "state": state}], **more}


RUNNING = {"phase": "Running", "podIP": "10.1.2.3", "containerStatuses": [{"name": "sandbox", "state": {"running": {}}, "ready": True}]}
UNSCHEDULABLE = {
    "phase": "Pending",
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
            "lastTransitionTime": "2026-01-01T00:09:00Z",
        }
    ],
}
TARGET = {"type": "DisruptionTarget", "status": "True"}


@pytest.mark.parametrize(
    ("status", "code", "reason", "fault", "lasting"),
    [
        (waiting("ErrImagePull", "docker.io/library/nope:1: not found"), "image_not_found", "image-pull", "caller", True),
        (
            waiting("ImagePullBackOff", 'Back-off pulling image "x": ErrImagePull: manifest unknown'),
            "image_not_found",
            "image-pull",
            "caller",
            True,
        ),
        (waiting("ErrImagePull", "pull access denied, repository does not exist"), "image_not_found", "image-pull", "caller", True),
        (waiting("InvalidImageName", "couldn't parse"), "image_not_found", "image-pull", "caller", True),
        (waiting("ErrImagePull", "no matching manifest for linux/arm64"), "image_not_found", "image-pull", "caller", True),
        (waiting("ErrImagePull", "dial tcp: i/o timeout"), "image_pull_failed", "image-pull", "infrastructure", False),
        (waiting("ErrImagePull", "429 Too Many Requests"), "image_pull_failed", "image-pull", "infrastructure", False),
        (waiting("ImagePullBackOff", "", "holdfast-bundle"), "image_pull_failed", "image-pull", "infrastructure", False),
        (waiting("CreateContainerConfigError", 'secret "x" not found'), "invalid_argument", "config", "caller", True),
        (waiting("RunContainerError", "exec: no such file"), "sandbox_failed", "start-failed", "infrastructure", True),
        (UNSCHEDULABLE, "no_capacity", "unschedulable", "infrastructure", False),
        (ended("OOMKilled", 137), "sandbox_failed", "oom", "workload", True),
        (ended("Error", 1, "boom"), "sandbox_failed", "exited", "workload", True),
        (ended("Completed", 0, phase="Succeeded"), "sandbox_failed", "exited", "workload", True),
        (ended("StartError", 128, "no ld.so"), "sandbox_failed", "start-failed", "infrastructure", True),
        (ended("Error", 78, "HOLDFAST_AGENT_TOKEN"), "sandbox_failed", "start-failed", "infrastructure", True),
        (ended("ContainerStatusUnknown", 137), "sandbox_failed", "node-lost", "infrastructure", True),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."},
            "sandbox_failed",
            "evicted",
            "infrastructure",
            True,
        ),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "Pod ephemeral local storage usage exceeds the total limit of containers."},
            "sandbox_failed",
            "evicted",
            "workload",
            True,
        ),
        ({"phase": "Failed", "reason": "DeadlineExceeded"}, "sandbox_failed", "ttl", "caller", True),
        ({"phase": "Failed", "reason": "OutOfcpu", "message": "full"}, "no_capacity", "unschedulable", "infrastructure", True),
        ({"phase": "Failed", "reason": "Terminated", "message": "node shutdown"}, "sandbox_failed", "evicted", "infrastructure", True),
        ({"phase": "Unknown"}, "sandbox_failed", "node-lost", "infrastructure", True),
        (
            ended("Error", 143, conditions=[{**TARGET, "reason": "PreemptionByScheduler"}]),
            "sandbox_failed",
            "preempted",
            "infrastructure",
            True,
        ),
    ],
)  # fmt: skip
def test_a_failure_has_code_reason_and_fault(status: dict[str, Any], code: str, reason: str, fault: str, lasting: bool) -> None:
    failure = seen(status).failure
    assert failure is not None
    assert (failure.code, failure.cause.reason, failure.cause.fault, failure.lasting) == (code, reason, fault, lasting)
    error = failure.error()
    assert (error.code, error.reason, error.fault) == (code, reason, fault)
    assert error.message


@pytest.mark.parametrize(
    "status", [RUNNING, waiting("ContainerCreating"), waiting("PodInitializing"), {}, {"phase": "Pending"}, {"phase": "Running"}]
)
def test_these_states_are_no_failure(status: dict[str, Any]) -> None:
    assert seen(status).failure is None


def patience_of(pull_s: float, schedule_s: float) -> KubernetesSettings:
    return KubernetesSettings(bundle_image="b", pull_patience_s=pull_s, unschedulable_patience_s=schedule_s)


def test_patience_applies_to_temporary_failures_from_their_beginning() -> None:
    stuck = seen(UNSCHEDULABLE)
    assert stuck.failed(NOW, patience_of(0, 61)) is None
    assert stuck.failed(NOW, patience_of(0, 59)) is not None
    pulling = seen(waiting("ErrImagePull", "i/o timeout"))
    assert pulling.failed(NOW, patience_of(601, 0)) is None
    assert pulling.failed(NOW, patience_of(599, 0)) is not None
    assert "Insufficient nvidia.com/gpu" in stuck.stage


def test_deletions_by_the_service_are_distinguished_from_others() -> None:
    going = {"deletionTimestamp": "2026-01-01T00:10:30Z"}
    ours = seen(RUNNING, **going, deletionGracePeriodSeconds=3)
    theirs = seen(RUNNING, **going, deletionGracePeriodSeconds=30)
    assert (ours.deletion_requested, theirs.deletion_requested) == (True, False)
    assert status_of(ours, NOW, SETTINGS) is None
    present = status_of(theirs, NOW, SETTINGS)
    assert present is not None
    assert present.state == "ready"
    assert [type(event) for event in on_change(ours, seen(RUNNING), SETTINGS)] == []
    (leaving,) = on_change(theirs, seen(RUNNING), SETTINGS)
    assert isinstance(leaving, EndAnnounced)
    assert leaving.deadline == moment("2026-01-01T00:10:30Z")
    (gone,) = on_vanish(ours)
    assert isinstance(gone, SandboxEnded)
    assert (gone.cause.reason, gone.cause.fault) == ("deleted", "caller")
    (gone,) = on_vanish(theirs)
    assert isinstance(gone, SandboxEnded)
    assert (gone.cause.reason, gone.cause.fault) == ("deleted", "infrastructure")


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("EvictionByEvictionAPI", "evicted"),
        ("PreemptionByScheduler", "preempted"),
        ("DeletionByPodGC", "node-lost"),
        ("TerminationByKubelet", "evicted"),
        ("SomethingNew", "evicted"),
    ],
)
def test_a_disruption_is_announced_once_and_is_the_cause_of_the_end(reason: str, expected: str) -> None:
    target = seen({**RUNNING, "conditions": [{**TARGET, "reason": reason, "message": "why"}]})
    (leaving,) = on_change(target, seen(RUNNING), SETTINGS)
    assert isinstance(leaving, EndAnnounced)
    assert leaving.cause.reason == expected
    assert on_change(target, target, SETTINGS) == []
    (gone,) = on_vanish(target)
    assert isinstance(gone, SandboxEnded)
    assert (gone.cause.reason, gone.cause.fault) == (expected, "infrastructure")


def test_each_change_is_reported_once() -> None:
    ready, dead = seen(RUNNING), seen(ended("OOMKilled", 137))
    assert on_change(ready, None, SETTINGS) == []
    assert on_change(ready, ready, SETTINGS) == []
    (away,) = on_change(dead, ready, SETTINGS)
    assert isinstance(away, SandboxEnded)
    assert away.cause.reason == "oom"
    assert on_change(dead, dead, SETTINGS) == []
    assert on_vanish(dead) == []
    (gone,) = on_vanish(ready)
    assert isinstance(gone, SandboxEnded)
    assert gone.cause.reason == "node-lost"


def test_a_pod_in_creation_is_starting_until_its_time_limit() -> None:
    made = status_of(seen(waiting("ContainerCreating")), NOW, SETTINGS)
    assert made is not None
    assert made.state == "starting"
    not_listening = {**RUNNING, "containerStatuses": [{"name": "sandbox", "state": {"running": {}}, "ready": False}]}
    starting = status_of(seen(not_listening), NOW, SETTINGS)
    assert starting is not None
    assert starting.state == "starting"
    assert on_change(seen(not_listening), None, SETTINGS) == []
    body = pod(order("sb-1", ready_timeout_s=60.0), SETTINGS, "image", "r")
    body["metadata"] |= {"uid": "u", "creationTimestamp": MADE}
    late = status_of(read_pod({**body, "status": {"phase": "Pending"}}), NOW, SETTINGS)
    assert late is not None
    assert late.cause is not None
    assert (late.state, late.cause.reason) == ("failed", "ready-timeout")
    made_late = read_pod({**body, "status": {"phase": "Pending"}})
    for ahead_s, is_late in ((0.0, False), (10.0, False), (59.0, True)):
        status = status_of(made_late, made_late.created_at + 60.0 + ahead_s, SETTINGS)
        assert status is not None
        assert (status.state == "failed") == is_late, "the controller's clock may be ahead; the limit in the record decides"


def test_a_foreign_pod_has_no_status() -> None:
    assert status_of(read_pod({"metadata": {"name": "x"}, "status": RUNNING}), NOW, SETTINGS) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [("cores", "many"), ("lifetime_s", "soon"), ("labels", {"a": 1}), ("labels", 7), ("sandbox_id", 7), ("group", None), ("options", [1])],
)
def test_a_specification_that_others_have_made_unreadable_is_not_used(field: str, value: object) -> None:
    body = pod(order("sb-1", labels={"a": "b"}), SETTINGS, "image", "r")
    assert read_pod(body).record is not None
    annotations = body["metadata"]["annotations"]
    annotations["holdfast.dev/record"] = json.dumps({**json.loads(annotations["holdfast.dev/record"]), field: value})
    assert read_pod(body).record is None


_NAMES = ["metadata", "status", "spec", "conditions", "containerStatuses", "state", "waiting", "terminated", "reason", "phase", "type"]
_NAMES += ["message", "deletionTimestamp", "annotations", "labels", "podIP", "holdfast.dev/record"]
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_NAMES), inner, max_size=5),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(["metadata", "status", "spec"]), _JSON))
def test_any_json_is_read_without_an_exception(body: dict[str, Any]) -> None:
    facts = read_pod(body)
    status_of(facts, NOW, SETTINGS)
    on_change(facts, None, SETTINGS)
    on_vanish(facts)
