"""Why a pod failed, and whose fault that is: from its status, its containers' states and its kubelet's warnings.

Owns the classification of what kubelet, scheduler, container runtimes and registries of Kubernetes 1.28 to 1.36 report. Parts of their
messages come from images and from sandboxes. Pure; called by ``status`` and ``pod_events``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from holdfast_wire.errors import HoldfastError

from gateway.model.records import Cause

from .json_fields import map_of, maps_of, moment, printable
from .profiles import no_user_namespaces

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
_NOT_THERE = re.compile(
    r"not found|manifest unknown|manifest_unknown|does not exist|pull access denied|unauthorized|denied|forbidden|no match for platform"
    r"|no matching manifest|invalid reference|name unknown|name_unknown|unsupported media type|authentication required",
    re.IGNORECASE,
)
_PULLING = re.compile(r'(?:pull image|image name|Container image) "([^"]*)"')
_WAITS = {"Failed": "ErrImagePull", "InspectFailed": "InvalidImageName", "ErrImageNeverPull": "ErrImageNeverPull"}
"""The reason of a kubelet's event, and the one that a container's status shows for the same later."""
_OBJECTS = {"persistentvolumeclaim": "claim", "secret": "secret", "configmap": "config map"}
_MISSING = re.compile(r'\b(persistentvolumeclaim|secret|configmap) "([a-z0-9.-]{1,253})" not found', re.IGNORECASE)
_USERS = re.compile(
    r"hostUsers|user namespaces?|UserNamespacesSupport|id-?mapp?ed|idmap|mapped mount|shift GID/UID|process for unshare"
    r"|mount_setattr|the handler \".*\" is not known",
    re.IGNORECASE,
)
"""How kubelets, containerd, CRI-O, runc and crun report that they cannot create a pod's user namespace (kubernetes/kubernetes pull request
131623, opencontainers/runc 4157, containerd/containerd 5890, siderolabs/talos issue 8554)."""
_NO_BUNDLE = re.compile(r"\.holdfast|image[ -]volume|mkdir : no such file|mountpoint for image", re.IGNORECASE)
"""How container runtimes report an image volume that cannot be mounted, for example with mapped ids (containerd/containerd issue 12812), or
that lacks the expected content."""
_BUNDLE_HINT = (
    "the agent's bundle cannot be mounted as an image volume on this node: set HOLDFAST_BUNDLE_INJECTION=init on the service, which copies "
    "it into each pod, or auto, which does so if necessary"
)
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
            return no_user_namespaces(f"the node of its pod cannot create one: {self.cause.message}")
        hint = _BUNDLE_HINT if self.kind == "bundle" else _PULL_HINTS.get(self.code)
        return HoldfastError(self.code, self.cause.message, hint=hint, fault=self.cause.fault, reason=self.cause.reason, retryable=final)


def failure_in(
    status: dict[str, Any], conditions: dict[str, dict[str, Any]], disruption: Cause | None, deleting: bool, created_at: float
) -> Failure | None:
    phase, reason, message = status.get("phase"), str(status.get("reason") or ""), printable(status.get("message"))
    if phase in ("Failed", "Succeeded"):
        disrupted = None if disruption is None else ended_by(disruption)
        return next((one for one in (_of_pod(reason, message), disrupted, _of_containers(status, created_at)) if one), exited(""))
    if phase == "Unknown" or reason == "NodeLost":
        return ended_by(Cause("node-lost", "infrastructure", message or "the sandbox's node does not answer"))
    if deleting and disruption is not None and map_of(conditions.get("Ready")).get("reason") == "NodeNotReady":
        return ended_by(Cause("node-lost", "infrastructure", "the sandbox's node does not answer"))
    found = _of_containers(status, created_at)
    if found is not None:
        return found
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        text = printable(scheduled.get("message")) or "no node can take the sandbox"
        missing = missing_object(text)
        if missing is not None:
            return missing
        cause = Cause("unschedulable", "infrastructure", f"no node can take the sandbox: {text}")
        return Failure("no_capacity", cause, lasting=False, kind="schedule", since=moment(scheduled.get("lastTransitionTime")))
    return None


def needs_users(text: str) -> bool:
    """Whether a message reports that a user namespace cannot be created."""
    return bool(_USERS.search(text))


def user_namespace_failure(text: str) -> Failure | None:
    """The failure of a pod whose user namespace its node cannot create, from a warning; None for any other warning."""
    if not needs_users(text):
        return None
    return Failure("unsupported", Cause("start-failed", "infrastructure", printable(text)))


def refined(failure: Failure, own_users: bool, by_volume: bool) -> Failure:
    """A failed start, classified: no bundle where an image volume should have provided it, or no user namespace.

    In this order: a node that maps the ids of other mounts may not map those of an image volume.
    """
    message = failure.cause.message
    if by_volume and _NO_BUNDLE.search(message) and "exec format error" not in message:
        return Failure(failure.code, failure.cause, lasting=False, kind="bundle")
    return (user_namespace_failure(message) if own_users else None) or failure


def missing_object(text: str) -> Failure | None:
    """The failure of a pod that names a missing object, from a message of scheduler or kubelet; None for any other message."""
    found = _MISSING.search(text)
    if found is None:
        return None
    return Failure("invalid_argument", Cause("config", "caller", f"the volume's {_OBJECTS[found[1].lower()]} {found[2]!r} does not exist"))


def _of_pod(reason: str, message: str) -> Failure | None:
    """The failure of a pod that failed as a whole."""
    if reason == "Evicted":
        own = any(words in message for words in ("exceeds the limit", "exceeds the total limit", "exceeded its local ephemeral storage"))
        return ended_by(Cause("evicted", "workload" if own else "infrastructure", message or "the sandbox was evicted"))
    if reason in ("Preempting", "Preempted"):
        return ended_by(Cause("preempted", "infrastructure", message or "the sandbox was preempted"))
    if reason in ("Terminated", "NodeShutdown", "Shutdown"):
        return ended_by(Cause("evicted", "infrastructure", message or "the sandbox's node was shut down"))
    if reason == "NodeLost":
        return ended_by(Cause("node-lost", "infrastructure", message or "the sandbox's node does not answer"))
    if reason == "DeadlineExceeded":
        return ended_by(Cause("ttl", "caller", message or "the sandbox's lifetime is over"))
    if reason in _REFUSED_BY_NODE:
        return Failure("no_capacity", Cause("unschedulable", "infrastructure", message or f"the node refused the sandbox: {reason}"))
    return None


def _of_containers(status: dict[str, Any], created_at: float) -> Failure | None:
    for one in (*maps_of(status.get("initContainerStatuses")), *maps_of(status.get("containerStatuses"))):
        state = map_of(one.get("state"))
        waiting, ended = map_of(state.get("waiting")), map_of(state.get("terminated"))
        initial = one.get("name") != "sandbox"
        if ended and not (initial and ended.get("exitCode") == 0):
            return _of_end(ended, initial)
        if waiting:
            found = _of_wait(str(waiting.get("reason") or ""), printable(waiting.get("message")), str(one.get("image") or ""), created_at)
            if found is not None:
                return found
    return None


def _of_end(ended: dict[str, Any], initial: bool) -> Failure:
    reason, code, message = str(ended.get("reason") or ""), ended.get("exitCode"), printable(ended.get("message"))
    if reason == "OOMKilled":
        return ended_by(Cause("oom", "workload", "the sandbox used more memory than its limit"))
    if reason == "ContainerStatusUnknown":
        return ended_by(Cause("node-lost", "infrastructure", message or "the node lost track of the sandbox"))
    if initial:
        return ended_by(Cause("start-failed", "infrastructure", f"the agent's bundle could not be put in place: {message or reason}"))
    if reason in ("StartError", "ContainerCannotRun"):
        return ended_by(Cause("start-failed", "infrastructure", f"the agent could not be started: {message or reason}"))
    if code in (78, 126, 127):
        return ended_by(Cause("start-failed", "infrastructure", f"the agent could not start, exit status {code}: {message}"))
    return exited(f" with status {code}" if isinstance(code, int) else "", message)


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
    if reason not in _WAITS or not (found := _PULLING.search(message)):
        return None
    failure = _of_wait(_WAITS[reason], printable(message), image, created_at)
    if failure is None or found[1] == image:
        return failure
    cause = Cause("image-pull", "infrastructure", f"the agent's bundle cannot be pulled: {failure.cause.message}")
    return Failure("image_pull_failed", cause, lasting=False, kind="pull", since=created_at)


def exited(how: str, message: str = "") -> Failure:
    return ended_by(Cause("exited", "workload", f"the sandbox's agent ended{how}{f': {message}' if message else ''}"))


def ended_by(cause: Cause) -> Failure:
    return Failure("sandbox_failed", cause)
