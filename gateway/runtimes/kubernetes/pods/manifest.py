"""A sandbox's pod manifest: a pure function of a request and the deployment's settings, with golden tests.

Owns the content of the pod. Confinement is in ``profiles``, what a request may name of the cluster in ``sharing``, network policies in
``network``, and the interpretation of a pod's status in ``status``.
"""

from __future__ import annotations

import json
import math
from typing import Any, Literal

from holdfast_wire.bundle import AGENT_PORT, MOUNT, agent_command, copy_command

from gateway.model.labels import POOL_LABEL
from gateway.model.options import Options, Toleration, Volume
from gateway.model.records import SandboxSpec
from gateway.runtimes.base import CreateRequest
from gateway.runtimes.kubernetes.names import (
    BUNDLE_VOLUME,
    COMPONENT,
    CONTAINER,
    EGRESS,
    MADE_BY,
    MANAGED_BY,
    NAME,
    OWNER,
    PIDS,
    POOL,
    PROFILE,
    SANDBOX,
    host_name,
    label_value,
    pod_name,
)
from gateway.runtimes.kubernetes.network import egress_key
from gateway.runtimes.kubernetes.settings import KubernetesSettings

from .profiles import CONFINED, confinement
from .record import annotations_of
from .sharing import AGENT_VARIABLES, ARCHITECTURE, OS, check

Injection = Literal["image", "init"]
_KILL_MARGIN_S = 5
"""Subtracted from the grace period of an evicted agent, so that it ends by itself."""
_SHM = "hf-shm"
_COPY_TO = "/bundle"
_LISTENS = {"tcpSocket": {"port": AGENT_PORT}, "periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": 600}
"""Readiness means that the agent listens. Probed until the first success only; creates dial by themselves, and sooner."""


def pod(request: CreateRequest, settings: KubernetesSettings, injection: Injection, replica: str) -> dict[str, Any]:
    """The manifest. Raises ``invalid_argument`` or ``unsupported`` for what the deployment does not allow."""
    check(request, settings)
    options = request.spec.options
    confined = confinement(settings, options.user, options.group)
    bundle, bundle_mount, init = bundle_volume(resources(request.spec, settings), settings, injection)
    volumes, mounts = [bundle], [bundle_mount]
    if options.shm_bytes is not None:
        volumes.append({"name": _SHM, "emptyDir": {"medium": "Memory", "sizeLimit": str(options.shm_bytes)}})
        mounts.append({"name": _SHM, "mountPath": "/dev/shm"})
    for number, volume in enumerate(options.volumes):
        volumes.append({"name": f"v{number}", **_source(volume)})
        read_only = {"readOnly": True} if volume.read_only or volume.kind in ("secret", "config") else {}
        mounts.append({"name": f"v{number}", "mountPath": volume.path, **read_only})
    selector = {OS: "linux", **dict(settings.node_selector), **options.node_selector}
    if options.architecture:
        selector[ARCHITECTURE] = options.architecture
    spec: dict[str, Any] = {
        "hostname": host_name(request.spec.name),
        "restartPolicy": "Never",
        "automountServiceAccountToken": bool(options.service_account),
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": settings.grace_s,
        "securityContext": confined.pod,
        "nodeSelector": selector,
        "tolerations": _tolerations(options, settings),
        "initContainers": init,
        "containers": [
            {
                "name": CONTAINER,
                "image": request.spec.image,
                "imagePullPolicy": settings.pull_policy,
                "command": agent_command(),
                "env": _env(request, settings),
                "ports": [{"name": "agent", "containerPort": AGENT_PORT, "protocol": "TCP"}],
                "resources": resources(request.spec, settings),
                "startupProbe": _LISTENS,
                **({"securityContext": confined.container} if confined.container else {}),
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": mounts,
            }
        ],
        "volumes": volumes,
        "runtimeClassName": options.runtime_class or settings.runtime_class,
        "priorityClassName": options.priority_class,
        "serviceAccountName": options.service_account,
        "imagePullSecrets": [{"name": name} for name in (*settings.pull_secrets, *options.pull_secrets)],
    }
    if confined.own_users:
        spec["hostUsers"] = False
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(request.spec, settings, replica),
        "spec": {name: value for name, value in spec.items() if value not in ("", [])},
    }


def labels(spec: SandboxSpec, settings: KubernetesSettings) -> dict[str, str]:
    """The labels that show which sandbox a pod is and what it may reach. Those of a spare change when it is adopted."""
    found = {
        SANDBOX: label_value(spec.sandbox_id),
        NAME: label_value(spec.name),
        EGRESS: egress_key(spec.egress, settings),
        PROFILE: settings.sandbox_profile,
    }
    pool = spec.labels.get(POOL_LABEL)
    if spec.owner:
        found[OWNER] = label_value(spec.owner)
    return {**found, POOL: label_value(pool)} if pool else found


def resources(spec: SandboxSpec, settings: KubernetesSettings) -> dict[str, Any]:
    """Requests and limits. Memory and disk are reserved in full, CPU at the deployment's share, extended resources in full."""
    limits = {"cpu": _cores(spec.cores), "memory": str(spec.memory_bytes)}
    if spec.disk_bytes is not None:
        limits["ephemeral-storage"] = str(spec.disk_bytes)
    requests = {**limits, "cpu": _cores(spec.cores * settings.cpu_request_share)}
    extended = {name: str(count) for name, count in sorted(spec.options.resources.items())}
    return {"limits": limits | extended, "requests": requests | extended}


def _metadata(spec: SandboxSpec, settings: KubernetesSettings, replica: str) -> dict[str, Any]:
    own = {MANAGED_BY: "holdfast", COMPONENT: "sandbox", MADE_BY: label_value(replica)}
    metadata: dict[str, Any] = {
        "name": pod_name(spec.sandbox_id),
        "namespace": settings.namespace,
        "labels": own | labels(spec, settings),
        "annotations": annotations_of(spec),
    }
    if spec.options.pids is not None:
        metadata["annotations"][PIDS] = str(spec.options.pids)
    if settings.owner is not None:
        version, kind, name, uid = settings.owner
        metadata["ownerReferences"] = [{"apiVersion": version, "kind": kind, "name": name, "uid": uid}]
    return metadata


def bundle_volume(
    size: dict[str, Any], settings: KubernetesSettings, injection: Injection
) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]:
    """The bundle's volume, its mount, and its init containers, in a pod whose container has ``size``."""
    mount = {"name": BUNDLE_VOLUME, "mountPath": MOUNT, "readOnly": True}
    if injection == "image":
        image = {"reference": settings.bundle_image, "pullPolicy": settings.pull_policy}
        return {"name": BUNDLE_VOLUME, "image": image}, {**mount, "subPath": MOUNT.lstrip("/")}, []
    shared = ("cpu", "memory", "ephemeral-storage")
    own = {kind: {name: text for name, text in size[kind].items() if name in shared} for kind in ("limits", "requests")}
    copier = {
        "name": BUNDLE_VOLUME,
        "image": settings.bundle_image,
        "imagePullPolicy": settings.pull_policy,
        "command": copy_command(_COPY_TO),
        "resources": own,  # at most the sandbox's own: a pod requests the larger of the two
        "securityContext": CONFINED,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": BUNDLE_VOLUME, "mountPath": _COPY_TO}],
    }
    return {"name": BUNDLE_VOLUME, "emptyDir": {}}, mount, [copier]


def _env(request: CreateRequest, settings: KubernetesSettings) -> list[dict[str, Any]]:
    agent = {
        "LISTEN": f"tcp://0.0.0.0:{AGENT_PORT}",
        "TOKEN": request.token,
        "SANDBOX_ID": request.spec.name,
        "INCARNATION": request.spec.incarnation,
        "GRACE_S": str(max(settings.grace_s - _KILL_MARGIN_S, 1)),
    }
    options = request.spec.options
    if isinstance(options.entrypoint, tuple):
        agent["ENTRYPOINT"] = _literal(json.dumps(options.entrypoint))
    if options.ulimits:
        agent["ULIMITS"] = json.dumps(options.ulimits)
    theirs = [{"name": name, "value": _literal(value)} for name, value in sorted(request.env.items())]
    ours: list[dict[str, Any]] = [{"name": AGENT_VARIABLES + name, "value": value} for name, value in agent.items()]
    return [*theirs, *ours, {"name": f"{AGENT_VARIABLES}POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}]


def _literal(value: str) -> str:
    """Escape: Kubernetes expands ``$(NAME)`` in values and reads ``$$`` as one dollar."""
    return value.replace("$", "$$")


def _source(volume: Volume) -> dict[str, Any]:
    match volume.kind:
        case "claim":
            return {"persistentVolumeClaim": {"claimName": volume.source, **({"readOnly": True} if volume.read_only else {})}}
        case "secret":
            return {"secret": {"secretName": volume.source}}
        case "config":
            return {"configMap": {"name": volume.source}}
        case _:
            size = {} if volume.size_bytes is None else {"sizeLimit": str(volume.size_bytes)}
            return {"emptyDir": ({"medium": "Memory"} if volume.in_memory else {}) | size}


def _tolerations(options: Options, settings: KubernetesSettings) -> list[dict[str, Any]]:
    given: list[dict[str, Any]] = [{"key": key, "operator": "Exists"} for key in settings.tolerations]
    given += [_toleration(one) for one in options.tolerations]
    lost = [
        {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": settings.node_lost_s}
        for what in ("not-ready", "unreachable")
    ]
    return given + lost


def _toleration(one: Toleration) -> dict[str, Any]:
    body = {"key": one.key, "operator": one.operator, "value": one.value, "effect": one.effect, "tolerationSeconds": one.seconds}
    return {name: value for name, value in body.items() if value not in ("", None)}


def _cores(cores: float) -> str:
    """Whole millicores, at least one."""
    return f"{max(1, math.ceil(round(cores * 1000, 3)))}m"
