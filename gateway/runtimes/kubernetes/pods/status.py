"""What a pod's JSON means: its progress, why it failed and whose fault that is, whether it is being disrupted.

Owns the interpretation of pod status as kubelet, scheduler and controllers of Kubernetes 1.28 to 1.36 write it. Pure: the time is an
argument. Every field is read defensively; messages are cut, because parts of them come from images and from sandboxes. What it finds goes
on as an event of the runtime (``runtime_events``) to the controller (``controller.loop``), which records it in placement; ``service``
answers clients from there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from holdfast_wire.errors import Fault, HoldfastError

from gateway.model.records import Cause
from gateway.runtimes.kubernetes.names import ENDING, PROFILE, UNLABELLED

from .profiles import no_user_namespaces
from .record import PodRecord, read_record

ASKED_GRACE_S = 3
"""Grace period of our own deletes of running pods. No pod has it by default, and kubectl's ``--now`` and ``--force`` use 1 and 0."""
DELETED = Cause("deleted", "infrastructure", "its pod was deleted by another client of the cluster")
ENDINGS = {
    "isolation": Cause(
        "isolation", "infrastructure", "this cluster does not enforce network policies: it could reach what it was kept from"
    )
}
"""Why the service itself ends sandboxes, by the reason in the pod's annotation ``names.ENDING``."""
_DELETE_SLACK_S = 2.0
"""Pod timestamps are whole seconds of two clocks, the API server's and the kubelet's."""
_MESSAGE = 500
_QUOTED = re.compile(r'"[^"]*"|https?://\S+')
"""Quoted names in a message: an image may be called ``denied``."""
_NO_ANSWER = re.compile(
    r"dial tcp|no such host|connection refused|connection reset|i/o timeout|timed? ?out|deadline exceeded|tls handshake|x509"
    r"|no route to host|network is unreachable|server misbehaving|temporary failure|too ?many ?requests|unexpected eof|: eof"
    r"|\b(429|500|502|503|504)\b|bad gateway|service unavailable|internal server error",
    re.IGNORECASE,
)
"""The registry, or the way to it, fails: nothing is known of the image."""
_PULL_HINTS = {
    "image_not_found": "check the image's name; a private registry's pull secret must be in the sandboxes' namespace and named in "
    "HOLDFAST_PULL_SECRETS, or in the request's image_pull_secrets where HOLDFAST_SHARED shares it",
    "image_pull_failed": "the message is the registry's, as the nodes see it: retry when it answers them; `holdfast image pull NAME` has "
    "an image on every node ahead",
}
_REMADE_S = 60.0
"""A pod without the bundle in its image volume is created again by the waiting create. A pod still in this state later has failed."""
_NOT_THERE = re.compile(
    r"not found|manifest unknown|manifest_unknown|does not exist|pull access denied|unauthorized|denied|forbidden|no match for platform"
    r"|no matching manifest|invalid reference|name unknown|name_unknown|unsupported media type|authentication required",
    re.IGNORECASE,
)
_PULLING = re.compile(r'(?:pull image|image name) "([^"]*)"')
_OBJECTS = {"persistentvolumeclaim": "claim", "secret": "secret", "configmap": "config map"}
_MISSING = re.compile(r'\b(persistentvolumeclaim|secret|configmap) "([a-z0-9.-]{1,253})" not found', re.IGNORECASE)
_USERS = re.compile(
    r"hostUsers|user namespaces?|UserNamespacesSupport|id-?mapp?ed|idmap|mapped mount|shift GID/UID|process for unshare"
    r"|mount_setattr|the handler \".*\" is not known",
    re.IGNORECASE,
)
"""How kubelets, containerd, CRI-O, runc and crun report that they cannot create a pod's user namespace (kubernetes/kubernetes pull request
131623, opencontainers/runc 4157, containerd/containerd 5890, siderolabs/talos issue 8554)."""
BUNDLE_VOLUME = "holdfast-bundle"
_NO_BUNDLE = re.compile(r"\.holdfast|image volume|mkdir : no such file|mountpoint for image", re.IGNORECASE)
"""How container runtimes report an image volume without the expected content."""
_DISRUPTIONS = {
    "PreemptionByScheduler": "preempted",
    "DeletionByTaintManager": "evicted",
    "EvictionByEvictionAPI": "evicted",
    "DeletionByPodGC": "node-lost",
    "TerminationByKubelet": "evicted",
}
_REFUSED_BY_NODE = (
    "OutOfcpu",
    "OutOfmemory",
    "OutOfpods",
    "OutOfephemeral-storage",
    "NodeAffinity",
    "UnexpectedAdmissionError",
    "NodePorts",
)


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure. ``code`` is what a create answers; ``since`` is when it began; ``lasting``: waiting does not help."""

    code: str
    cause: Cause
    lasting: bool = True
    kind: Literal["", "pull", "schedule", "bundle"] = ""
    since: float = 0.0

    def error(self) -> HoldfastError:
        """The same failure as final, once its time is over: a client that retried at once would only wait again."""
        final = False if self.kind else None
        if self.code == "unsupported":
            return no_user_namespaces(self.cause.message)
        hint = _PULL_HINTS.get(self.code)
        return HoldfastError(self.code, self.cause.message, hint=hint, fault=self.cause.fault, reason=self.cause.reason, retryable=final)


@dataclass(frozen=True, slots=True)
class PodStatus:
    """The state of a pod. ``started``: its container runs; ``ready``: its agent listens.

    ``deadline`` is set once it is being deleted: seconds since the epoch.
    """

    name: str
    uid: str
    version: str
    record: PodRecord | None
    created_at: float
    ip: str = ""
    placed: bool = False
    """It has a node."""
    started: bool = False
    ready: bool = False
    stage: str = ""
    """What the pod waits for, in a few words."""
    failure: Failure | None = None
    disruption: Cause | None = None
    deadline: float | None = None
    asked: bool = False
    """Whether the service itself deletes it."""
    pool: str = ""
    profile: str = UNLABELLED
    own_users: bool = False
    """It requires a user namespace."""

    def failed(self, now: float, *, pull_patience_s: float, schedule_patience_s: float) -> Failure | None:
        """The failure that waiting does not resolve, or has not resolved in time."""
        failure = self.failure
        if failure is None or failure.lasting:
            return failure
        if failure.kind == "bundle":
            return failure if now - self.created_at >= _REMADE_S else None
        patience_s = pull_patience_s if failure.kind == "pull" else schedule_patience_s
        return failure if now - (failure.since or self.created_at) >= patience_s else None

    def ended(self) -> Failure | None:
        """The failure that ended it: any lasting one."""
        return self.failure if self.failure is not None and self.failure.lasting else None


def read_pod(pod: dict[str, Any]) -> PodStatus:
    """The state of a pod from the API server's JSON."""
    metadata, spec, status = _map(pod.get("metadata")), _map(pod.get("spec")), _map(pod.get("status"))
    conditions = {str(one.get("type")): one for one in _maps(status.get("conditions"))}
    deleted_at = moment(metadata.get("deletionTimestamp"))
    disruption = ENDINGS.get(str(_map(metadata.get("annotations")).get(ENDING) or "")) or _disruption(conditions)
    created_at = moment(metadata.get("creationTimestamp"))
    own_users = spec.get("hostUsers") is False
    failure = _failure(status, conditions, disruption, deleted_at > 0, created_at)
    if failure is not None and deleted_at > 0 and failure.cause.reason == "exited" and not _ended_before(metadata, status):
        failure = _over(disruption or DELETED)  # an agent that is asked to stop ends with a status as well
    if failure is not None and failure.cause.reason == "start-failed":
        by_volume = any(one.get("name") == BUNDLE_VOLUME and "image" in one for one in _maps(spec.get("volumes")))
        failure = _for_want_of(failure, own_users, by_volume)
    states = [_map(one.get("state")) for one in _maps(status.get("containerStatuses"))]
    running = [one for one in _maps(status.get("containerStatuses")) if "running" in _map(one.get("state"))]
    started, ready = bool(running), any(one.get("ready") is True for one in running)
    ran = started or any("terminated" in state for state in states)
    grace = metadata.get("deletionGracePeriodSeconds")
    return PodStatus(
        name=str(metadata.get("name") or ""),
        uid=str(metadata.get("uid") or ""),
        version=str(metadata.get("resourceVersion") or ""),
        record=read_record(_map(metadata.get("annotations"))),
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
        asked=deleted_at > 0 and (grace == ASKED_GRACE_S or (grace == 0 and not ran)),
        pool=str(_map(metadata.get("labels")).get("holdfast.dev/pool") or ""),
        profile=str(_map(metadata.get("labels")).get(PROFILE) or UNLABELLED),
        own_users=own_users,
    )


def gone_cause(last: PodStatus) -> Cause:
    """Why a deleted pod has ended, from its last state."""
    failure = last.ended()
    if last.asked:
        return Cause("deleted", "caller", "it was deleted")
    if failure is not None:
        return failure.cause
    if last.disruption is not None:
        return last.disruption
    if last.deadline is not None:
        return DELETED
    return Cause("node-lost", "infrastructure", "its pod vanished")


def _ended_before(metadata: dict[str, Any], status: dict[str, Any]) -> bool:
    """Whether its container had ended by itself when the pod was deleted."""
    grace = metadata.get("deletionGracePeriodSeconds")
    deleted_at = moment(metadata.get("deletionTimestamp")) - (grace if isinstance(grace, int) else 0)
    ends = [moment(_map(_map(one.get("state")).get("terminated")).get("finishedAt")) for one in _maps(status.get("containerStatuses"))]
    return any(0 < end < deleted_at - _DELETE_SLACK_S for end in ends)


def moment(text: Any) -> float:
    """RFC 3339 to seconds since the epoch; 0 for anything else."""
    try:
        return datetime.fromisoformat(text).timestamp() if isinstance(text, str) else 0.0
    except ValueError:
        return 0.0


# Failures ------------------------------------------------------------------------------------------------------------


def _failure(
    status: dict[str, Any], conditions: dict[str, dict[str, Any]], disruption: Cause | None, deleting: bool, created_at: float
) -> Failure | None:
    phase, reason, message = status.get("phase"), str(status.get("reason") or ""), _cut(status.get("message"))
    if phase in ("Failed", "Succeeded"):
        disrupted = None if disruption is None else _over(disruption)
        return next((one for one in (_of_pod(reason, message), disrupted, _of_containers(status, created_at)) if one), _exited(""))
    if phase == "Unknown" or reason == "NodeLost":
        return _over(Cause("node-lost", "infrastructure", message or "its node does not answer"))
    if deleting and disruption is not None and _map(conditions.get("Ready")).get("reason") == "NodeNotReady":
        return _over(Cause("node-lost", "infrastructure", "its node does not answer"))
    found = _of_containers(status, created_at)
    if found is not None:
        return found
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        text = _cut(scheduled.get("message")) or "no node can take it"
        missing = missing_object(text)
        if missing is not None:
            return missing
        cause = Cause("unschedulable", "infrastructure", f"no node can take it: {text}")
        return Failure("no_capacity", cause, lasting=False, kind="schedule", since=moment(scheduled.get("lastTransitionTime")))
    return None


def needs_users(text: str) -> bool:
    """Whether a message reports that a user namespace cannot be created."""
    return bool(_USERS.search(text))


def no_users(text: str) -> Failure | None:
    """The failure of a pod whose user namespace its node cannot create, from a warning; None for any other warning."""
    if not needs_users(text):
        return None
    return Failure("unsupported", Cause("start-failed", "infrastructure", f"its node cannot create one: {_cut(text)}"))


def _for_want_of(failure: Failure, own_users: bool, by_volume: bool) -> Failure:
    """A failed start, classified: no user namespace, or no bundle where an image volume should have provided it."""
    message = failure.cause.message
    if own_users and (found := no_users(message)) is not None:
        return found
    if by_volume and _NO_BUNDLE.search(message) and "exec format error" not in message:
        return Failure(failure.code, failure.cause, lasting=False, kind="bundle")
    return failure


def missing_object(text: str) -> Failure | None:
    """The failure of a pod that names a missing object, from a message of scheduler or kubelet; None for any other message."""
    found = _MISSING.search(text)
    if found is None:
        return None
    return Failure("invalid_argument", Cause("config", "caller", f"the volume's {_OBJECTS[found[1].lower()]} {found[2]!r} is not there"))


def _of_pod(reason: str, message: str) -> Failure | None:
    """The failure of a pod that failed as a whole."""
    if reason == "Evicted":
        own = any(words in message for words in ("exceeds the limit", "exceeds the total limit", "exceeded its local ephemeral storage"))
        return _over(Cause("evicted", "workload" if own else "infrastructure", message or "it was evicted"))
    if reason in ("Preempting", "Preempted"):
        return _over(Cause("preempted", "infrastructure", message or "it was preempted"))
    if reason in ("Terminated", "NodeShutdown", "Shutdown"):
        return _over(Cause("evicted", "infrastructure", message or "its node was shut down"))
    if reason == "NodeLost":
        return _over(Cause("node-lost", "infrastructure", message or "its node does not answer"))
    if reason == "DeadlineExceeded":
        return _over(Cause("ttl", "caller", message or "its time is over"))
    if reason in _REFUSED_BY_NODE:
        return Failure("no_capacity", Cause("unschedulable", "infrastructure", message or f"its node refused it: {reason}"))
    return None


def _of_containers(status: dict[str, Any], created_at: float) -> Failure | None:
    for one in (*_maps(status.get("initContainerStatuses")), *_maps(status.get("containerStatuses"))):
        state = _map(one.get("state"))
        waiting, ended = _map(state.get("waiting")), _map(state.get("terminated"))
        initial = one.get("name") != "sandbox"
        if ended and not (initial and ended.get("exitCode") == 0):
            return _of_end(ended, initial)
        if waiting:
            found = _of_wait(str(waiting.get("reason") or ""), _cut(waiting.get("message")), str(one.get("image") or ""), created_at)
            if found is not None:
                return found
    return None


def _of_end(ended: dict[str, Any], initial: bool) -> Failure:
    reason, code, message = str(ended.get("reason") or ""), ended.get("exitCode"), _cut(ended.get("message"))
    if reason == "OOMKilled":
        return _over(Cause("oom", "workload", "it used more memory than it has"))
    if reason == "ContainerStatusUnknown":
        return _over(Cause("node-lost", "infrastructure", message or "its node lost track of it"))
    if initial:
        return _over(Cause("start-failed", "infrastructure", f"the agent's bundle could not be put in place: {message or reason}"))
    if reason in ("StartError", "ContainerCannotRun"):
        return _over(Cause("start-failed", "infrastructure", f"the agent could not be started: {message or reason}"))
    if code in (78, 126, 127):
        return _over(Cause("start-failed", "infrastructure", f"the agent could not start, exit status {code}: {message}"))
    return _exited(f" with status {code}" if isinstance(code, int) else "", message)


def _of_wait(reason: str, message: str, image: str, created_at: float) -> Failure | None:
    if reason in ("InvalidImageName", "ErrImageNeverPull"):
        return Failure("image_not_found", Cause("image-pull", "caller", message or f"{image!r} cannot be pulled"))
    if reason in ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "SignatureValidationFailed", "ImageInspectError"):
        text = message or f"{image!r} cannot be pulled"
        bare = _QUOTED.sub("", message)
        if _NOT_THERE.search(bare) and not _NO_ANSWER.search(bare):
            return Failure("image_not_found", Cause("image-pull", "caller", text))
        lasting = reason == "SignatureValidationFailed"
        return Failure("image_pull_failed", Cause("image-pull", "infrastructure", text), lasting=lasting, kind="pull", since=created_at)
    if reason == "CreateContainerConfigError":
        return Failure("invalid_argument", Cause("config", "caller", f"the container cannot be configured: {message}"))
    if reason in ("CreateContainerError", "RunContainerError", "PreCreateHookError", "PreStartHookError", "PostStartHookError"):
        return Failure("sandbox_failed", Cause("start-failed", "infrastructure", f"the container cannot be started: {message}"))
    return None


def event_failure(reason: str, message: str, image: str, created_at: float) -> Failure | None:
    """The failure that a kubelet's event reports before the pod's status does; ``image`` is the sandbox's own.

    Any other image is the deployment's: that it cannot be pulled is not the caller's fault.
    """
    if reason == "FailedMount":
        return missing_object(message)
    if reason not in ("Failed", "InspectFailed") or not (found := _PULLING.search(message)):
        return None
    failure = _of_wait("InvalidImageName" if reason == "InspectFailed" else "ErrImagePull", _cut(message), image, created_at)
    if failure is None or found[1] == image:
        return failure
    cause = Cause("image-pull", "infrastructure", f"the agent's bundle cannot be pulled: {failure.cause.message}")
    return Failure("image_pull_failed", cause, lasting=False, kind="pull", since=created_at)


def _exited(how: str, message: str = "") -> Failure:
    return _over(Cause("exited", "workload", f"its agent ended{how}{f': {message}' if message else ''}"))


def _over(cause: Cause) -> Failure:
    return Failure("sandbox_failed", cause)


def _disruption(conditions: dict[str, dict[str, Any]]) -> Cause | None:
    """The cluster is about to end the pod (condition ``DisruptionTarget``)."""
    target = conditions.get("DisruptionTarget", {})
    if target.get("status") != "True":
        return None
    reason = str(target.get("reason") or "")
    fault: Fault = "infrastructure"
    return Cause(_DISRUPTIONS.get(reason, "evicted"), fault, _cut(target.get("message")) or reason)


def _stage(spec: dict[str, Any], status: dict[str, Any], conditions: dict[str, dict[str, Any]]) -> str:
    if not spec.get("nodeName"):
        return _cut(conditions.get("PodScheduled", {}).get("message")) or "it waits for a node"
    for one in (*_maps(status.get("initContainerStatuses")), *_maps(status.get("containerStatuses"))):
        waiting = _map(_map(one.get("state")).get("waiting"))
        if waiting and waiting.get("reason") not in ("PodInitializing", None):
            return f"{waiting.get('reason')}: {_cut(waiting.get('message'))}".rstrip(": ")
    return "its container is being created"


# Shapes --------------------------------------------------------------------------------------------------------------


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _maps(value: Any) -> Iterator[dict[str, Any]]:
    return (one for one in value if isinstance(one, dict)) if isinstance(value, list) else iter(())


def _cut(text: Any) -> str:
    if not isinstance(text, str):
        return ""
    return "".join(c if c.isprintable() else " " for c in text[: _MESSAGE * 2]).strip()[:_MESSAGE]
