"""Settings of the Kubernetes runtime: frozen, read from the environment once, by ``gateway.settings``.

Owns names, units and defaults of the variables that only this runtime reads. Imports nothing of Kubernetes, so that a gateway on one
machine does not load it.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

Injection = Literal["auto", "image", "init"]
Enforcement = Literal["none", "policy", "fqdn"]
Profile = Literal["userns", "root", "restricted"]

LEVELS: dict[Enforcement, int] = {"none": 0, "policy": 1, "fqdn": 2}
"""What a cluster's network can enforce; a higher level includes the lower ones."""


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """``HOLDFAST_*`` variables are named with each field; durations in seconds."""

    namespace: str = "holdfast-sandboxes"
    """HOLDFAST_NAMESPACE: where sandboxes are created."""
    kubeconfig: str = ""
    """KUBECONFIG; empty: the credentials of the pod this runs in."""
    bundle_image: str = ""
    """HOLDFAST_BUNDLE_IMAGE: has the agent's bundle at ``bundle.MOUNT``."""
    bundle_injection: Injection = "auto"
    """HOLDFAST_BUNDLE_INJECTION: ``image`` volume (Kubernetes ≥ 1.33), ``init`` container, or ``auto``: what the cluster can do."""
    enforcement: Enforcement = "policy"
    """HOLDFAST_NETWORK_ENFORCEMENT: what the cluster's network enforces. Declared here, verified by ``network_probe``."""
    cluster_cidrs: tuple[str, ...] = ()
    """HOLDFAST_CLUSTER_CIDRS: pod, service and node ranges, which an allowance includes only if it names them."""
    dns_cidrs: tuple[str, ...] = ()
    """HOLDFAST_DNS_CIDRS: resolvers beside the cluster's own (a node-local cache)."""
    allow_metadata: bool = False
    """HOLDFAST_ALLOW_METADATA: whether an allowance that names a link-local or metadata address is accepted."""
    sandbox_profile: Profile = "userns"
    """HOLDFAST_SANDBOX_PROFILE: how confined sandboxes are (see ``profiles``)."""
    allow_root: bool = False
    """HOLDFAST_ALLOW_ROOT: whether ``user=0`` is accepted under the profile ``restricted``. Such a pod gets a user namespace and needs a
    baseline namespace. The other profiles always accept it."""
    shared: tuple[str, ...] = ()
    """HOLDFAST_SHARED: what requests may name, as patterns: ``claim/data-*, secret/x, config/*, service-account/y, pull-secret/*``, and
    what changes where and how sandboxes run: ``priority/batch, runtime/kata, toleration/spot, node/pool`` (see ``sharing``)."""
    user: int | None = None
    """HOLDFAST_USER: the default user of sandboxes. Not set: the image's own user, under ``restricted`` 1000."""
    group: int | None = None
    """HOLDFAST_GROUP: the default group; not set: the image's own, under ``restricted`` 1000."""
    cpu_request_share: float = 1.0
    """HOLDFAST_CPU_REQUEST_SHARE: the part of a sandbox's CPU that is requested for it; the rest is a limit only."""
    pids_limit: int | None = None
    """HOLDFAST_POD_PIDS_LIMIT: what the nodes' kubelets set as ``podPidsLimit``; pods cannot choose."""
    node_selector: tuple[tuple[str, str], ...] = ()
    """HOLDFAST_NODE_SELECTOR: ``name=value,…`` that every sandbox gets."""
    tolerations: tuple[str, ...] = ()
    """HOLDFAST_TOLERATIONS: keys of taints every sandbox tolerates."""
    runtime_class: str = ""
    """HOLDFAST_RUNTIME_CLASS: gVisor, Kata, …; a request may name another one only if that is shared."""
    pull_secrets: tuple[str, ...] = ()
    """HOLDFAST_PULL_SECRETS."""
    pull_policy: str = "IfNotPresent"
    """HOLDFAST_PULL_POLICY."""
    owner: tuple[str, str, str, str] | None = None
    """HOLDFAST_OWNER: ``apiVersion|kind|name|uid`` of an object in the sandboxes' namespace that owns all of them."""
    unschedulable_patience_s: float = 20.0
    """HOLDFAST_UNSCHEDULABLE_PATIENCE_S: how long a pod may wait for a node: on a fixed set of nodes until terminating pods have made
    room, with an autoscaler the minutes that a new node takes."""
    nodes_grow: bool = False
    """HOLDFAST_NODES_GROW: an autoscaler may add larger nodes, so no size is refused for exceeding the largest node."""
    pull_patience_s: float = 30.0
    """HOLDFAST_PULL_PATIENCE_S: how long the kubelet may retry a pull that failed for a temporary reason."""
    node_lost_s: int = 30
    """HOLDFAST_NODE_LOST_S: how long a sandbox stays on a node that does not answer."""
    grace_s: int = 30
    """HOLDFAST_GRACE_S: how long an evicted sandbox may take to end its commands and write their files."""
    page: int = 500
    """Objects of one page of a list."""
    request_timeout_s: float = 10.0
    """Longest wait for one answer of the API server."""

    @property
    def pods_path(self) -> str:
        """Where the API server has the sandboxes' pods."""
        return f"/api/v1/namespaces/{self.namespace}/pods"

    @property
    def policies_path(self) -> str:
        """Where it has their network policies."""
        return f"/apis/networking.k8s.io/v1/namespaces/{self.namespace}/networkpolicies"


def read(env: Mapping[str, str]) -> KubernetesSettings:
    """The settings of an environment. Raises ``ValueError`` naming the variable."""
    default = KubernetesSettings()
    bundle = env.get("HOLDFAST_BUNDLE_IMAGE", "")
    if not bundle:
        raise ValueError("HOLDFAST_BUNDLE_IMAGE is not set: name the image that holds the agent's bundle")
    owner = tuple(env.get("HOLDFAST_OWNER", "").split("|"))
    if owner != ("",) and len(owner) != 4:
        raise ValueError("HOLDFAST_OWNER must be written apiVersion|kind|name|uid")
    profile = cast(Profile, _one_of(env, "HOLDFAST_SANDBOX_PROFILE", ("userns", "root", "restricted")))
    user, group = _id(env, "HOLDFAST_USER"), _id(env, "HOLDFAST_GROUP")
    if group is not None and user is None and profile != "restricted":
        raise ValueError("HOLDFAST_GROUP needs HOLDFAST_USER: without it sandboxes run as their image's own user")
    return KubernetesSettings(
        namespace=env.get("HOLDFAST_NAMESPACE") or default.namespace,
        kubeconfig=env.get("KUBECONFIG", ""),
        bundle_image=bundle,
        bundle_injection=cast(Injection, _one_of(env, "HOLDFAST_BUNDLE_INJECTION", ("auto", "image", "init"))),
        enforcement=cast(Enforcement, _one_of(env, "HOLDFAST_NETWORK_ENFORCEMENT", ("policy", "none", "fqdn"))),
        cluster_cidrs=_networks(env, "HOLDFAST_CLUSTER_CIDRS"),
        dns_cidrs=_networks(env, "HOLDFAST_DNS_CIDRS"),
        allow_metadata=_flag(env, "HOLDFAST_ALLOW_METADATA"),
        sandbox_profile=profile,
        allow_root=_flag(env, "HOLDFAST_ALLOW_ROOT"),
        shared=_parts(env, "HOLDFAST_SHARED"),
        user=user,
        group=group,
        cpu_request_share=min(_number(env, "HOLDFAST_CPU_REQUEST_SHARE", default.cpu_request_share), 1.0),
        pids_limit=int(_number(env, "HOLDFAST_POD_PIDS_LIMIT", 0)) or None,
        node_selector=tuple(_pair(part, "HOLDFAST_NODE_SELECTOR") for part in _parts(env, "HOLDFAST_NODE_SELECTOR")),
        tolerations=_parts(env, "HOLDFAST_TOLERATIONS"),
        runtime_class=env.get("HOLDFAST_RUNTIME_CLASS", ""),
        pull_secrets=_parts(env, "HOLDFAST_PULL_SECRETS"),
        pull_policy=_one_of(env, "HOLDFAST_PULL_POLICY", ("IfNotPresent", "Always", "Never")),
        owner=(owner[0], owner[1], owner[2], owner[3]) if len(owner) == 4 else None,
        unschedulable_patience_s=_number(env, "HOLDFAST_UNSCHEDULABLE_PATIENCE_S", default.unschedulable_patience_s),
        nodes_grow=_flag(env, "HOLDFAST_NODES_GROW"),
        pull_patience_s=_number(env, "HOLDFAST_PULL_PATIENCE_S", default.pull_patience_s),
        node_lost_s=int(_number(env, "HOLDFAST_NODE_LOST_S", default.node_lost_s)),
        grace_s=int(_number(env, "HOLDFAST_GRACE_S", default.grace_s)),
    )


def _parts(env: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in env.get(name, "").split(",") if part.strip())


def _pair(text: str, name: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{name}: {text!r} must be written name=value")
    return key, value


def _flag(env: Mapping[str, str], name: str) -> bool:
    text = env.get(name, "").lower()
    if text not in ("", "0", "1", "false", "no", "true", "yes"):
        raise ValueError(f"{name} must be true or false, not {env[name]!r}")
    return text in ("1", "true", "yes")


def _one_of(env: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    value = env.get(name) or choices[0]
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
    return value


def _id(env: Mapping[str, str], name: str) -> int | None:
    return int(_number(env, name, 0)) if env.get(name) else None


def _number(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name)
    try:
        value = float(text) if text else default
    except ValueError:
        raise ValueError(f"{name} must be a number, not {text!r}") from None
    if not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, not {text!r}")
    if value < 0:
        raise ValueError(f"{name} must be at least 0, not {text!r}")
    return value


def _networks(env: Mapping[str, str], name: str) -> tuple[str, ...]:
    try:
        return tuple(str(ipaddress.ip_network(part)) for part in _parts(env, name))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
