"""What a sandbox may ask of a cluster beyond image, cpu and memory; what it may reach over the network.

Owns plain frozen data that runtimes translate. It does not own how a request spells them (``option_fields``) nor what a runtime
can do: one that cannot refuses with ``unsupported``, naming the field.
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
class Reach:
    """Addresses a sandbox may open connections to. No ports means all of them."""

    cidr: str
    ports: tuple[Port, ...] = ()


@dataclass(frozen=True, slots=True)
class Egress:
    """What a sandbox may reach. Link-local, metadata and cluster ranges are never part of it unless ``reaches`` names them."""

    mode: Literal["none", "internet", "listed"] = "none"
    """``internet`` is everything but private, link-local, metadata and cluster ranges."""
    reaches: tuple[Reach, ...] = ()
    domains: tuple[str, ...] = ()
    """Names, ``*.`` allowed in front; only where the cluster can enforce them."""
    dns: bool = False
    """Whether the cluster's resolver may be asked; ``internet`` and ``domains`` imply it."""


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
    """As Kubernetes has it."""

    key: str = ""
    operator: Literal["Equal", "Exists"] = "Equal"
    value: str = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    seconds: int | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """What a runtime may be asked for, all but the last two of clusters only. The default asks for nothing."""

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
    """What the agent starts at once: these words, or with True what the image says."""
    ulimits: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Soft and hard limit of each resource for all that is started, -1 for none."""
    shm_bytes: int | None = None
    """Size of /dev/shm; None for the runtime's own."""
