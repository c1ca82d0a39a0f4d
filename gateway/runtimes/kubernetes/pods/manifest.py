"""A sandbox's pod: a pure function from an order and the deployment's settings to the manifest, with golden tests.

Owns what is in the pod. It does not own how confined it is (``profiles``), what a caller may have put there (``sharing``), the network
policy its label names (``network.policy_manifests``) nor the reading of what becomes of it (``status``).
"""

from __future__ import annotations

import json
import math
from typing import Any, Literal

from holdfast_wire.bundle import AGENT_PORT, MOUNT, agent_command, copy_command

from gateway.model.options import Toleration, Volume
from gateway.model.records import RESERVED_LABEL
from gateway.runtimes.base import Order
from gateway.runtimes.kubernetes.names import (
    COMPONENT,
    CONTAINER,
    EGRESS,
    MADE_BY,
    MANAGED_BY,
    PIDS,
    POOL,
    PROFILE,
    SANDBOX,
    UNLABELLED,
    label_value,
    pod_name,
)
from gateway.runtimes.kubernetes.network.policy_manifests import egress_key
from gateway.runtimes.kubernetes.settings import KubernetesSettings

from .profiles import CONFINED, confinement
from .record import annotations_of
from .sharing import ARCHITECTURE, OS, check

Injection = Literal["image", "init"]
_KILL_MARGIN_S = 5
"""What an evicted agent leaves of its grace, so that it ends by itself."""
POOL_LABEL = RESERVED_LABEL + "pool"
"""Label of an order that makes a spare of this pool."""
_AGENT = "HOLDFAST_AGENT_"
_BUNDLE = "holdfast-bundle"
_SHM = "hf-shm"
_COPY_TO = "/bundle"
_LISTENS = {"tcpSocket": {"port": AGENT_PORT}, "periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": 600}
"""A pod that is Ready has an agent that listens. Asked until the first answer only; whoever creates dials by himself, and sooner."""


def pod(order: Order, settings: KubernetesSettings, injection: Injection, replica: str) -> dict[str, Any]:
    """The manifest. Raises ``invalid_argument`` or ``unsupported`` for what the deployment does not give."""
    check(order, settings)
    options = order.options
    confined = confinement(settings, options.user, options.group)
    bundle, bundle_mount, init = bundle_volume(resources(order, settings), settings, injection)
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
        "restartPolicy": "Never",
        "automountServiceAccountToken": bool(options.service_account),
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": settings.grace_s,
        "securityContext": confined.pod,
        "nodeSelector": selector,
        "tolerations": _tolerations(order, settings),
        "initContainers": init,
        "containers": [
            {
                "name": CONTAINER,
                "image": order.image,
                "imagePullPolicy": settings.pull_policy,
                "command": agent_command(),
                "env": _env(order, settings),
                "ports": [{"name": "agent", "containerPort": AGENT_PORT, "protocol": "TCP"}],
                "resources": resources(order, settings),
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
        "metadata": _metadata(order, settings, replica),
        "spec": {name: value for name, value in spec.items() if value not in ("", [])},
    }


def labels(order: Order, settings: KubernetesSettings) -> dict[str, str]:
    """The labels that say which sandbox a pod is and what it may reach. A spare's changes when it is adopted."""
    found = {SANDBOX: label_value(order.sandbox_id), EGRESS: egress_key(order.egress, settings)}
    if settings.sandbox_profile != UNLABELLED:
        found[PROFILE] = settings.sandbox_profile
    pool = order.labels.get(POOL_LABEL)
    return {**found, POOL: label_value(pool)} if pool else found


def resources(order: Order, settings: KubernetesSettings) -> dict[str, Any]:
    """Requests and limits. Memory and disk are reserved in full, cpu by the deployment's share, extended resources as they must be."""
    limits = {"cpu": _cores(order.cores), "memory": str(order.memory_bytes)}
    if order.disk_bytes is not None:
        limits["ephemeral-storage"] = str(order.disk_bytes)
    requests = {**limits, "cpu": _cores(order.cores * settings.cpu_request_share)}
    extended = {name: str(count) for name, count in sorted(order.options.resources.items())}
    return {"limits": limits | extended, "requests": requests | extended}


def _metadata(order: Order, settings: KubernetesSettings, replica: str) -> dict[str, Any]:
    own = {MANAGED_BY: "holdfast", COMPONENT: "sandbox", MADE_BY: label_value(replica)}
    metadata: dict[str, Any] = {
        "name": pod_name(order.sandbox_id),
        "namespace": settings.namespace,
        "labels": own | labels(order, settings),
        "annotations": annotations_of(order),
    }
    if order.options.pids is not None:
        metadata["annotations"][PIDS] = str(order.options.pids)
    if settings.owner is not None:
        version, kind, name, uid = settings.owner
        metadata["ownerReferences"] = [{"apiVersion": version, "kind": kind, "name": name, "uid": uid}]
    return metadata


def bundle_volume(
    size: dict[str, Any], settings: KubernetesSettings, injection: Injection
) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]:
    """The bundle's volume, its mount, and the init containers it takes, in a pod whose container has ``size``."""
    mount = {"name": _BUNDLE, "mountPath": MOUNT, "readOnly": True}
    if injection == "image":
        image = {"reference": settings.bundle_image, "pullPolicy": settings.pull_policy}
        return {"name": _BUNDLE, "image": image}, {**mount, "subPath": MOUNT.lstrip("/")}, []
    shared = ("cpu", "memory", "ephemeral-storage")
    own = {kind: {name: text for name, text in size[kind].items() if name in shared} for kind in ("limits", "requests")}
    copier = {
        "name": _BUNDLE,
        "image": settings.bundle_image,
        "imagePullPolicy": settings.pull_policy,
        "command": copy_command(_COPY_TO),
        "resources": own,  # no more than the sandbox's own: the pod asks for the larger of the two
        "securityContext": CONFINED,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": _BUNDLE, "mountPath": _COPY_TO}],
    }
    return {"name": _BUNDLE, "emptyDir": {}}, mount, [copier]


def _env(order: Order, settings: KubernetesSettings) -> list[dict[str, Any]]:
    agent = {
        "LISTEN": f"tcp://0.0.0.0:{AGENT_PORT}",
        "TOKEN": order.token,
        "SANDBOX_ID": order.sandbox_id,
        "INCARNATION": order.incarnation,
        "GRACE_S": str(max(settings.grace_s - _KILL_MARGIN_S, 1)),
    }
    if isinstance(order.options.entrypoint, tuple):
        agent["ENTRYPOINT"] = _literal(json.dumps(order.options.entrypoint))
    if order.options.ulimits:
        agent["ULIMITS"] = json.dumps(order.options.ulimits)
    theirs = [{"name": name, "value": _literal(value)} for name, value in sorted(order.env.items())]
    ours: list[dict[str, Any]] = [{"name": _AGENT + name, "value": value} for name, value in agent.items()]
    return [*theirs, *ours, {"name": f"{_AGENT}POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}]


def _literal(value: str) -> str:
    """Kubernetes expands ``$(NAME)`` in values and reads ``$$`` as one dollar: written so that it means itself."""
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


def _tolerations(order: Order, settings: KubernetesSettings) -> list[dict[str, Any]]:
    given: list[dict[str, Any]] = [{"key": key, "operator": "Exists"} for key in settings.tolerations]
    given += [_toleration(one) for one in order.options.tolerations]
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
