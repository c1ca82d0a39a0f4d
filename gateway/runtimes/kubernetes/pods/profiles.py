"""The confinement of sandboxes: the three profiles of ``HOLDFAST_SANDBOX_PROFILE`` as fields of a pod.

Owns the security contexts, the Pod Security Standard that each profile needs, and the refusal where nodes cannot provide one. ``userns``:
the image's own user, root included, in a user namespace of the pod, with the container runtime's default capabilities. ``root``: the same
without the user namespace. ``restricted``: user 1000 and no capability, or, for user 0, the few of ``_ROOT_CAPABILITIES``.
Pure; called by ``manifest``, ``images``, ``node_probes``, ``doctor``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast_wire.errors import HoldfastError

from gateway.runtimes.kubernetes.settings import KubernetesSettings, Profile

STANDARDS: dict[Profile, str] = {"userns": "baseline", "root": "baseline", "restricted": "restricted"}
"""The strictest Pod Security Standard that admits the profile. For a pod with a user namespace ``restricted`` waives ``runAsNonRoot`` and
``runAsUser`` (behind a feature gate from Kubernetes 1.29, always from 1.35), but never that all capabilities are dropped and that
``allowPrivilegeEscalation`` is false."""
CONFINED: dict[str, Any] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
"""Security context of a container that needs no right at all."""
_SECCOMP: dict[str, Any] = {"seccompProfile": {"type": "RuntimeDefault"}}
_USER = 1000
"""User and group under ``restricted``, where nothing else is requested."""
_ROOT_CAPABILITIES = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID"]
"""What package managers need of root under ``restricted``; all within the baseline standard, and inside a user namespace."""
_CHOICES = (
    "use nodes that can (Kubernetes 1.33, containerd 2.0 or CRI-O 1.25, Linux 6.3), or choose on the service: "
    "HOLDFAST_SANDBOX_PROFILE=root (root without a user namespace) or HOLDFAST_SANDBOX_PROFILE=restricted (user 1000, no capabilities)"
)


@dataclass(frozen=True, slots=True)
class Confinement:
    """``pod`` and ``container`` are security contexts; ``own_users``: the pod gets a user namespace."""

    pod: dict[str, Any]
    container: dict[str, Any]
    own_users: bool


def confinement(settings: KubernetesSettings, user: int | None = None, group: int | None = None) -> Confinement:
    """The confinement of a sandbox with this user and group, or with none. Raises ``invalid_argument`` for a group without a user."""
    user, group = settings.user if user is None else user, settings.group if group is None else group
    if settings.sandbox_profile == "restricted":
        return _restricted(_USER if user is None else user, _USER if group is None else group)
    if user is None and group is not None:
        raise HoldfastError(
            "invalid_argument",
            "user_group needs user: sandboxes run as their image's own user, whose group is the image's",
            hint="name both, or leave both out",
        )
    named = {"runAsUser": user, "runAsGroup": group, "fsGroup": group}
    pod = _SECCOMP | {name: number for name, number in named.items() if number is not None}
    if group is not None:
        pod["fsGroupChangePolicy"] = "OnRootMismatch"
    return Confinement(pod, {}, settings.sandbox_profile == "userns")


def _restricted(user: int, group: int) -> Confinement:
    root = user == 0
    pod = {"runAsNonRoot": not root, "runAsUser": user, "runAsGroup": group, "fsGroup": group, "fsGroupChangePolicy": "OnRootMismatch"}
    container = CONFINED
    if root:
        container = {**CONFINED, "capabilities": {**CONFINED["capabilities"], "add": list(_ROOT_CAPABILITIES)}}
    return Confinement(pod | _SECCOMP, container, root)


def no_user_namespaces(why: str) -> HoldfastError:
    """The refusal of a sandbox that would need one. ``why`` ends the sentence."""
    message = f"this sandbox needs a user namespace of its own, but {why}"
    return HoldfastError("unsupported", message, hint=_CHOICES, fault="infrastructure", retryable=False)
