"""The restricted pod security standard, as a pure function of a pod's spec.

Owns the checks of the standard's v1.36 text that our pods could fail; where there is an API server, it decides (`make test-cluster`).
Called by the tests of the manifests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret", "image"}
_HOST = ("hostNetwork", "hostPID", "hostIPC")


def violations(spec: dict[str, Any]) -> list[str]:
    """The reasons for which a namespace that enforces `restricted` would refuse this pod."""
    return [*_of_pod(spec), *_of_containers(spec)]


def _of_pod(spec: dict[str, Any]) -> Iterator[str]:
    for name in _HOST:
        if spec.get(name):
            yield f"{name} is set"
    for volume in spec.get("volumes", ()):
        if kinds := set(volume) - {"name"} - _VOLUMES:
            yield f"volume {volume['name']} is of a kind that is not allowed: {', '.join(sorted(kinds))}"
    context = spec.get("securityContext", {})
    if context.get("sysctls"):
        yield "sysctls are set"
    if context.get("supplementalGroups") and 0 in context["supplementalGroups"]:
        yield "group 0 is among the supplemental groups"


def _of_containers(spec: dict[str, Any]) -> Iterator[str]:
    pod = spec.get("securityContext", {})
    for container in (*spec.get("initContainers", ()), *spec.get("containers", ()), *spec.get("ephemeralContainers", ())):
        own = container.get("securityContext", {})
        name = container["name"]
        if own.get("privileged"):
            yield f"{name}: privileged"
        if own.get("allowPrivilegeEscalation") is not False:
            yield f"{name}: allowPrivilegeEscalation is not false"
        capabilities = own.get("capabilities", {})
        if capabilities.get("drop") != ["ALL"]:
            yield f"{name}: does not drop ALL capabilities"
        if set(capabilities.get("add", ())) - {"NET_BIND_SERVICE"}:
            yield f"{name}: adds capabilities"
        if own.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True:
            yield f"{name}: runAsNonRoot is not true"
        if own.get("runAsUser", pod.get("runAsUser")) == 0:
            yield f"{name}: runs as root"
        profile = own.get("seccompProfile", pod.get("seccompProfile", {})).get("type")
        if profile not in {"RuntimeDefault", "Localhost"}:
            yield f"{name}: seccompProfile is {profile}"
        if own.get("procMount", "Default") != "Default":
            yield f"{name}: procMount is set"
        if own.get("seLinuxOptions") or own.get("windowsOptions"):
            yield f"{name}: SELinux or Windows options are set"
        for port in container.get("ports", ()):
            if port.get("hostPort"):
                yield f"{name}: a host port"
