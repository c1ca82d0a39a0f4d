"""Manifests that the API server refuses: the baseline and restricted Pod Security Standards, and the syntax of names and labels.

Owns the checks of a pod's manifest that admission makes on a real cluster, as far as our manifests could break them
(kubernetes.io/docs/concepts/security/pod-security-standards).
"""

from __future__ import annotations

import re
from typing import Any

from holdfast_wire.rest import parse_bytes

from .objects import RefusedError

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_MAY_BE_ADDED = {
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD"),
    *("NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
}
"""Capabilities that the baseline standard allows; not NET_RAW, which a runtime may add by default."""
_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim", "projected", "secret"}


def check_pod(body: dict[str, Any], *, restricted: bool) -> None:
    """Raise the error with which the server would refuse the pod."""
    metadata, spec = body["metadata"], body["spec"]
    if not _NAME.fullmatch(metadata["name"]) or len(metadata["name"]) > 253:
        raise RefusedError(422, "Invalid", f'Pod "{metadata["name"]}" is invalid: metadata.name: Invalid value')
    for name, value in (metadata.get("labels") or {}).items():
        if not _VALUE.fullmatch(value) or len(value) > 63:
            raise RefusedError(422, "Invalid", f"Pod is invalid: metadata.labels: Invalid value: {value!r} of {name}")
    if not all(isinstance(text, str) for text in (metadata.get("annotations") or {}).values()):
        raise RefusedError(400, "BadRequest", "annotations must be strings")
    for container in _containers(spec):
        for one in container.get("env") or []:
            if not isinstance(one.get("value", ""), str):
                raise RefusedError(400, "BadRequest", "cannot unmarshal into Go struct field EnvVar.value of type string")
        size = container.get("resources") or {}
        for name, text in (size.get("requests") or {}).items():
            if name in (size.get("limits") or {}) and _number(text) > _number(size["limits"][name]):
                raise RefusedError(422, "Invalid", f"Pod is invalid: {name} request must be less than or equal to limit")
    for level, violations in (("baseline", _baseline), ("restricted", _restricted)):
        wrong = list(violations(spec)) if restricted or level == "baseline" else []
        if wrong:
            message = f'pods "{metadata["name"]}" is forbidden: violates PodSecurity "{level}:latest": {", ".join(wrong)}'
            raise RefusedError(403, "Forbidden", message)


def _baseline(spec: dict[str, Any]) -> Any:
    if any(spec.get(name) for name in ("hostNetwork", "hostPID", "hostIPC")):
        yield "host namespaces"
    if any("hostPath" in volume for volume in spec.get("volumes") or []):
        yield "hostPath volumes"
    for container in _containers(spec):
        own = container.get("securityContext") or {}
        if own.get("privileged"):
            yield "privileged"
        if set((own.get("capabilities") or {}).get("add") or []) - _MAY_BE_ADDED:
            yield "non-default capabilities"
        if any(port.get("hostPort") for port in container.get("ports") or []):
            yield "hostPort"


def _restricted(spec: dict[str, Any]) -> Any:
    """``runAsNonRoot`` and ``runAsUser`` are waived for pods with a user namespace, as from Kubernetes 1.35 on."""
    pod, own_users = spec.get("securityContext") or {}, spec.get("hostUsers") is False
    for volume in spec.get("volumes") or []:
        if not _VOLUMES & set(volume):
            yield f"restricted volume types ({volume['name']})"
    for container in _containers(spec):
        own = container.get("securityContext") or {}
        if own.get("allowPrivilegeEscalation") is not False:
            yield "allowPrivilegeEscalation != false"
        capabilities = own.get("capabilities") or {}
        if "ALL" not in (capabilities.get("drop") or []) or set(capabilities.get("add") or []) - {"NET_BIND_SERVICE"}:
            yield "unrestricted capabilities"
        if not own_users and not own.get("runAsNonRoot", pod.get("runAsNonRoot")):
            yield "runAsNonRoot != true"
        if not own_users and own.get("runAsUser", pod.get("runAsUser")) == 0:
            yield "runAsUser=0"
        if (own.get("seccompProfile") or pod.get("seccompProfile") or {}).get("type") not in ("RuntimeDefault", "Localhost"):
            yield "seccompProfile"


def _containers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [*(spec.get("initContainers") or []), *spec["containers"]]


def _number(text: str) -> float:
    return float(text[:-1]) / 1000 if text.endswith("m") else float(parse_bytes(text))
