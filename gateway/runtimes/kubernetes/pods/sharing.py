"""Which objects of the cluster a request may name: those that the deployment has shared by a pattern.

Owns the patterns of ``HOLDFAST_SHARED`` and the refusals. A deployment controls the placement and confinement of sandboxes by taints,
priorities, runtime classes and node labels, so a request may not weaken them unless they are shared; narrowing is always allowed.
A spare was checked when it was created, and fits no request that names more. Pure.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator

from holdfast_wire.errors import HoldfastError

from gateway.model.options import Options
from gateway.runtimes.base import CreateRequest
from gateway.runtimes.kubernetes.settings import KubernetesSettings

OS = "kubernetes.io/os"
ARCHITECTURE = "kubernetes.io/arch"
AGENT_VARIABLES = "HOLDFAST_AGENT_"
_CLUSTERS_OWN = ("kubernetes.io", "k8s.io")
"""Domains of taints that the cluster itself sets: control planes, nodes that are not ready, under pressure or terminating."""
_MEMORY_LEAST = 16 * 1024**2
"""With less memory the agent itself is killed as it starts."""


def check(request: CreateRequest, settings: KubernetesSettings) -> None:
    """Raise ``unsupported`` for what the deployment does not allow, ``invalid_argument`` for contradictions."""
    options = request.spec.options
    if options.user == 0 and settings.sandbox_profile == "restricted" and not settings.allow_root:
        hint = "leave user out, or set HOLDFAST_ALLOW_ROOT or another HOLDFAST_SANDBOX_PROFILE on the service"
        raise HoldfastError("unsupported", "sandboxes do not run as root here", hint=hint)
    if options.pids is not None and (settings.pids_limit is None or options.pids > settings.pids_limit):
        have = "is not set" if settings.pids_limit is None else f"is {settings.pids_limit}"
        raise HoldfastError(
            "unsupported",
            f"a pod cannot choose how many processes it may have: the kubelet's podPidsLimit does, and here it {have}",
            hint="leave pids out; set HOLDFAST_POD_PIDS_LIMIT on the service to what the nodes enforce",
        )
    if options.entrypoint is True:
        raise HoldfastError(
            "unsupported",
            "entrypoint: what the image of a pod starts with is known to its node alone",
            hint="give the words themselves: entrypoint=['docker-entrypoint.sh', 'postgres']",
        )
    if request.spec.memory_bytes < _MEMORY_LEAST:
        raise HoldfastError("invalid_quantity", f"memory must be at least {_MEMORY_LEAST >> 20}Mi: the agent needs some of it")
    if any(name.startswith(AGENT_VARIABLES) for name in request.env):
        raise HoldfastError("invalid_argument", f"env: names that begin with {AGENT_VARIABLES} are the agent's own")
    chosen = options.node_selector.get(ARCHITECTURE)
    if chosen and options.architecture and chosen != options.architecture:
        raise HoldfastError("invalid_argument", f"architecture contradicts node_selector[{ARCHITECTURE!r}]: leave one of them out")
    if any(not one.key for one in options.tolerations):
        raise HoldfastError("unsupported", "a toleration without a key tolerates every taint there is", hint="name the keys of the taints")
    for field, name in _named(options, settings):
        if not _is_shared(name, settings):
            hint = f"share it with HOLDFAST_SHARED={name} on the service"
            raise HoldfastError("unsupported", f"{field}: {name} is not shared with sandboxes here", hint=hint)


def _named(options: Options, settings: KubernetesSettings) -> Iterator[tuple[str, str]]:
    """What has to be shared: the request's field, and what patterns are matched against."""
    for volume in options.volumes:
        if volume.kind != "empty":
            yield "volumes", f"{volume.kind}/{volume.source}"
    for secret in options.pull_secrets:
        yield "image_pull_secrets", f"pull-secret/{secret}"
    if options.service_account:
        yield "service_account", f"service-account/{options.service_account}"
    if options.priority_class:
        yield "priority_class", f"priority/{options.priority_class}"
    if options.runtime_class and options.runtime_class != settings.runtime_class:
        yield "runtime_class", f"runtime/{options.runtime_class}"
    for toleration in options.tolerations:
        # Nodes with devices are tainted with the device's own name, which keeps other pods away: a request for the device may tolerate it.
        # Without the device the toleration would occupy expensive nodes.
        if toleration.key not in settings.tolerations and toleration.key not in options.resources:
            yield "tolerations", f"toleration/{toleration.key}"
    own = {OS: "linux", **dict(settings.node_selector)}
    for field, key, value in (
        *(("node_selector", *pair) for pair in options.node_selector.items()),
        *((("architecture", ARCHITECTURE, options.architecture),) if options.architecture else ()),
    ):
        if own.get(key, value) != value:
            yield field, f"node/{key}"


def _is_shared(name: str, settings: KubernetesSettings) -> bool:
    """By a pattern; the cluster's own taints by their full name alone, because ``toleration/*`` is not meant to include control planes."""
    kind, _, rest = name.partition("/")
    domain = rest.partition("/")[0] if "/" in rest else ""
    own = kind == "priority" and rest.startswith("system-")
    own |= kind == "toleration" and any(domain == one or domain.endswith(f".{one}") for one in _CLUSTERS_OWN)
    if own:
        return name in settings.shared
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in settings.shared)
