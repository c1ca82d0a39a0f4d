"""Probe pods: short-lived pods, run from the bundle's image, that test what a cluster really does.

Owns their manifest, the policies that isolate them, and where a verdict is stored: in annotations of such a policy, so that the acting
controller probes and every gateway reads. What is probed, and the verdict, are in ``network_probe`` and ``node_probes``.
"""

from __future__ import annotations

from typing import Any, TypeVar

import orjson
from holdfast_wire.bundle import agent_command

from gateway.runtimes.kubernetes.api.client import Api
from gateway.runtimes.kubernetes.names import COMPONENT, CONTAINER, MANAGED_BY, ROLE
from gateway.runtimes.kubernetes.settings import KubernetesSettings

T = TypeVar("T")

LIFE_S = 300
"""The time limit of a probe's pod."""
PROBE_LABELS = {MANAGED_BY: "holdfast", COMPONENT: "canary"}
"""The labels of every probe's pod and policy."""


def probe_pod(
    name: str, role: str, script: str, settings: KubernetesSettings, pod_context: dict[str, Any], container_context: dict[str, Any]
) -> dict[str, Any]:
    """A pod for the nodes that take sandboxes; the contexts are the security contexts of the pod and of its container."""
    small = {"cpu": "100m", "memory": "64Mi"}
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": settings.bundle_image,
        "imagePullPolicy": settings.pull_policy,
        "command": [*agent_command()[:-1], "-c", script],
        "resources": {"requests": small, "limits": small},
        "securityContext": container_context,
    }
    spec = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": LIFE_S,
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **placement(settings),
        "securityContext": pod_context,
        "containers": [{field: value for field, value in container.items() if value != {}}],
    }
    metadata = {"name": name, "namespace": settings.namespace, "labels": {**PROBE_LABELS, ROLE: role}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def placement(settings: KubernetesSettings) -> dict[str, Any]:
    """The fields of a pod of the deployment's own that bring it to the nodes that take sandboxes."""
    spec = {
        "nodeSelector": {"kubernetes.io/os": "linux", **dict(settings.node_selector)},
        "tolerations": [{"key": key, "operator": "Exists"} for key in settings.tolerations],
        "imagePullSecrets": [{"name": secret} for secret in settings.pull_secrets],
        "runtimeClassName": settings.runtime_class,
    }
    return {field: value for field, value in spec.items() if value not in ("", [])}


async def isolate(api: Api, settings: KubernetesSettings, name: str, spec: dict[str, Any]) -> None:
    """Create a network policy for probe pods, if it does not exist. Raises ``ApiError``."""
    metadata = {"name": name, "namespace": settings.namespace, "labels": PROBE_LABELS}
    body = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}
    await api.ensure(settings.policies_path, body)


async def read_verdict(api: Api, settings: KubernetesSettings, policy: str, kind: type[T], *names: str) -> T | None:
    """The verdict in the first of these annotations that is set; None where there is none. Raises ``ApiError``."""
    found = await api.find(f"{settings.policies_path}/{policy}")
    annotations = {} if found is None else found["metadata"].get("annotations") or {}
    try:
        return kind(**orjson.loads(next((annotations[name] for name in names if annotations.get(name)), "null")))
    except (orjson.JSONDecodeError, TypeError):
        return None


async def write_verdict(api: Api, settings: KubernetesSettings, policy: str, verdict: object, *names: str) -> None:
    """Write a verdict, which is a dataclass, into these annotations. Raises ``ApiError``."""
    text = orjson.dumps(verdict).decode()
    await api.patch(f"{settings.policies_path}/{policy}", {"metadata": {"annotations": dict.fromkeys(names, text)}})
