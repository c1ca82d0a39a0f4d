"""What a pod's JSON means: its progress, whether it failed (``failures`` has why), whether it is being disrupted.

Owns the interpretation of pod status as kubelet, scheduler and controllers write it. Pure: the time is an argument. The result becomes
an event of the runtime (``runtime_events``) to the controller (``controller.loop``), which records it in placement; ``service``
answers clients from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gateway.model.records import Cause, SandboxSpec
from gateway.runtimes.kubernetes.names import BUNDLE_VOLUME, ENDING, POOL, PROFILE
from gateway.runtimes.kubernetes.settings import KubernetesSettings

from .failures import Failure, ended_by, failure_in, refined
from .json_fields import map_of, maps_of, moment, printable
from .record import read_record

ASKED_GRACE_S = 3
"""Grace period of our own deletes of running pods. No pod has it by default, and kubectl's ``--now`` and ``--force`` use 1 and 0."""
DELETED = Cause("deleted", "infrastructure", "the sandbox's pod was deleted by another client of the cluster")
ENDINGS = {
    "isolation": Cause(
        "isolation", "infrastructure", "this cluster does not enforce network policies: the sandbox could reach what it must not"
    )
}
"""Why the service itself ends sandboxes, by the reason in the pod's annotation ``names.ENDING``."""
_DELETE_SLACK_S = 2.0
"""Pod timestamps are whole seconds of two clocks, the API server's and the kubelet's."""
_REMADE_S = 60.0
"""A pod without the bundle in its image volume is created again by the waiting create. A pod still in this state later has failed."""
_DISRUPTIONS = {
    "PreemptionByScheduler": "preempted",
    "DeletionByTaintManager": "evicted",
    "EvictionByEvictionAPI": "evicted",
    "DeletionByPodGC": "node-lost",
    "TerminationByKubelet": "evicted",
}


@dataclass(frozen=True, slots=True)
class PodStatus:
    """The state of a pod. ``started``: its container runs; ``ready``: its agent listens.

    ``deadline`` is set once it is being deleted: seconds since the epoch.
    """

    name: str
    uid: str
    version: str
    record: SandboxSpec | None
    """The sandbox as it was requested; None where the pod is not one of the service."""
    created_at: float
    ip: str = ""
    placed: bool = False
    """Whether the pod has a node."""
    started: bool = False
    ready: bool = False
    stage: str = ""
    """What the pod waits for, in a few words."""
    failure: Failure | None = None
    disruption: Cause | None = None
    deadline: float | None = None
    deletion_requested: bool = False
    """Whether the service itself deletes it."""
    pool: str = ""
    profile: str = ""
    own_users: bool = False
    """Whether the pod requires a user namespace."""

    def failed(self, now: float, settings: KubernetesSettings) -> Failure | None:
        """The failure that waiting does not resolve, or has not resolved in time."""
        failure = self.failure
        if failure is None or failure.lasting:
            return failure
        if failure.kind == "bundle":
            return failure if now - self.created_at >= _REMADE_S else None
        return failure if now >= self.given_up_at(failure, settings) else None

    def given_up_at(self, failure: Failure, settings: KubernetesSettings) -> float:
        """Until when waiting may resolve the failure."""
        patience_s = settings.pull_patience_s if failure.kind == "pull" else settings.unschedulable_patience_s
        return (failure.since or self.created_at) + patience_s

    def ended(self) -> Failure | None:
        """The failure that ended it: any lasting one."""
        return self.failure if self.failure is not None and self.failure.lasting else None


def read_pod(pod: dict[str, Any]) -> PodStatus:
    """The state of a pod from the API server's JSON."""
    metadata, spec, status = map_of(pod.get("metadata")), map_of(pod.get("spec")), map_of(pod.get("status"))
    conditions = {str(one.get("type")): one for one in maps_of(status.get("conditions"))}
    deleted_at = moment(metadata.get("deletionTimestamp"))
    disruption = ENDINGS.get(str(map_of(metadata.get("annotations")).get(ENDING) or "")) or _disruption(conditions)
    created_at = moment(metadata.get("creationTimestamp"))
    own_users = spec.get("hostUsers") is False
    failure = failure_in(status, conditions, disruption, deleted_at > 0, created_at)
    if failure is not None and deleted_at > 0 and failure.cause.reason == "exited" and not _ended_before(metadata, status):
        failure = ended_by(disruption or DELETED)  # an agent that is stopped ends with a status as well
    if failure is not None and failure.cause.reason == "start-failed":
        by_volume = any(one.get("name") == BUNDLE_VOLUME and "image" in one for one in maps_of(spec.get("volumes")))
        failure = refined(failure, own_users, by_volume)
    states = [map_of(one.get("state")) for one in maps_of(status.get("containerStatuses"))]
    running = [one for one in maps_of(status.get("containerStatuses")) if "running" in map_of(one.get("state"))]
    started, ready = bool(running), any(one.get("ready") is True for one in running)
    ran = started or any("terminated" in state for state in states)
    grace = metadata.get("deletionGracePeriodSeconds")
    return PodStatus(
        name=str(metadata.get("name") or ""),
        uid=str(metadata.get("uid") or ""),
        version=str(metadata.get("resourceVersion") or ""),
        record=read_record(map_of(metadata.get("annotations"))),
        created_at=created_at,
        ip=str(status.get("podIP") or ""),
        placed=bool(spec.get("nodeName")),
        started=started,
        ready=ready,
        stage="running" if started else _stage(spec, status, conditions),
        failure=failure,
        disruption=disruption,
        deadline=deleted_at or None,
        # Grace 0 is used by us only for pods that never ran or have ended. A running pod deleted with it was deleted by another client.
        deletion_requested=deleted_at > 0 and (grace == ASKED_GRACE_S or (grace == 0 and not ran)),
        pool=str(map_of(metadata.get("labels")).get(POOL) or ""),
        profile=str(map_of(metadata.get("labels")).get(PROFILE) or ""),
        own_users=own_users,
    )


def gone_cause(last: PodStatus) -> Cause:
    """Why a deleted pod has ended, from its last state."""
    failure = last.ended()
    if last.deletion_requested:
        return Cause("deleted", "caller", "the sandbox was deleted")
    if failure is not None:
        return failure.cause
    if last.disruption is not None:
        return last.disruption
    if last.deadline is not None:
        return DELETED
    return Cause("node-lost", "infrastructure", "the sandbox's pod vanished")


def _ended_before(metadata: dict[str, Any], status: dict[str, Any]) -> bool:
    """Whether its container had ended by itself when the pod was deleted."""
    grace = metadata.get("deletionGracePeriodSeconds")
    deleted_at = moment(metadata.get("deletionTimestamp")) - (grace if isinstance(grace, int) else 0)
    states = (map_of(one.get("state")) for one in maps_of(status.get("containerStatuses")))
    ends = [moment(map_of(state.get("terminated")).get("finishedAt")) for state in states]
    return any(0 < end < deleted_at - _DELETE_SLACK_S for end in ends)


def _disruption(conditions: dict[str, dict[str, Any]]) -> Cause | None:
    """The cluster is about to end the pod (condition ``DisruptionTarget``)."""
    target = conditions.get("DisruptionTarget", {})
    if target.get("status") != "True":
        return None
    reason = str(target.get("reason") or "")
    return Cause(_DISRUPTIONS.get(reason, "evicted"), "infrastructure", printable(target.get("message")) or reason)


def _stage(spec: dict[str, Any], status: dict[str, Any], conditions: dict[str, dict[str, Any]]) -> str:
    if not spec.get("nodeName"):
        return printable(conditions.get("PodScheduled", {}).get("message")) or "its pod waits for a node"
    for one in (*maps_of(status.get("initContainerStatuses")), *maps_of(status.get("containerStatuses"))):
        waiting = map_of(map_of(one.get("state")).get("waiting"))
        if waiting and waiting.get("reason") not in ("PodInitializing", None):
            return f"{waiting.get('reason')}: {printable(waiting.get('message'))}".rstrip(": ")
    return "its container is being created"
