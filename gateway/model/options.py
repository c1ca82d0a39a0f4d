"""The options that a request may set for a cluster besides image, CPU and memory, and the network access of a sandbox.

Plain frozen data that runtimes translate. ``option_fields`` has the form of these in requests; a runtime refuses a field that it does not
support with ``unsupported`` and the field's name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Port:
    """One port or a range, ends included."""

    first: int
    last: int | None = None
    protocol: Literal["TCP", "UDP", "SCTP"] = "TCP"


@dataclass(frozen=True, slots=True)
class AllowedRange:
    """Addresses a sandbox may open connections to. No ports means all of them."""

    cidr: str
    ports: tuple[Port, ...] = ()


@dataclass(frozen=True, slots=True)
class Egress:
    """What a sandbox may reach. Link-local, metadata and cluster ranges are included only if ``reaches`` names them."""

    mode: Literal["none", "internet", "listed"] = "none"
    """``internet`` is everything but private, link-local, metadata and cluster ranges."""
    reaches: tuple[AllowedRange, ...] = ()
    domains: tuple[str, ...] = ()
    """Names, ``*.`` allowed in front; only where the cluster can enforce them."""
    dns: bool = False
    """Whether the cluster's resolver may be queried; ``internet`` and ``domains`` imply it."""


@dataclass(frozen=True, slots=True)
class Volume:
    """Something mounted at ``path``. ``source`` names the claim, secret or config map; an ``empty`` one has none."""

    kind: Literal["empty", "claim", "secret", "config"]
    path: str
    source: str = ""
    size_bytes: int | None = None
    in_memory: bool = False
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Toleration:
    """As in Kubernetes."""

    key: str = ""
    operator: Literal["Equal", "Exists"] = "Equal"
    value: str = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    seconds: int | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a runtime, all but the last two for clusters only. The default requests nothing."""

    resources: dict[str, int] = field(default_factory=dict)
    """Extended resources by name: ``{"nvidia.com/gpu": 1}``."""
    pids: int | None = None
    volumes: tuple[Volume, ...] = ()
    node_selector: dict[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    runtime_class: str = ""
    priority_class: str = ""
    service_account: str = ""
    pull_secrets: tuple[str, ...] = ()
    user: int | None = None
    group: int | None = None
    architecture: Literal["", "amd64", "arm64"] = ""
    entrypoint: bool | tuple[str, ...] = False
    """The command that the agent starts first: these words, or with True the image's own entrypoint."""
    ulimits: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Soft and hard limit of each resource for all processes, -1 for none."""
    shm_bytes: int | None = None
    """Size of /dev/shm; None for the runtime's own."""
