"""The cost of sandboxes: the calculation of P Table 2 and App. B, with the inputs that the table leaves out.

Owns rates and arithmetic, in exact decimals. Money is US dollars at the prices of the paper (list prices change: give your own). The
table's spot figure prices all 17 nodes as spot while the text keeps the orchestrator's node on demand; both are here (Z1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from decimal import Decimal


@dataclass(frozen=True, slots=True)
class Workload:
    """So many sandboxes of a size, all the time for so many hours."""

    sandboxes: int = 128
    hours: Decimal = Decimal(240)
    cpu: Decimal = Decimal(2)
    memory_gib: Decimal = Decimal(8)

    def __post_init__(self) -> None:
        if self.sandboxes < 1 or not (self.hours > 0 and self.cpu > 0 and self.memory_gib > 0):
            raise ValueError(
                "a workload needs sandboxes, hours, cpu and memory above zero, not "
                f"{self.sandboxes} sandboxes of {self.cpu} vCPU and {self.memory_gib} GiB for {self.hours} h"
            )

    @property
    def sandbox_hours(self) -> Decimal:
        return self.sandboxes * self.hours


@dataclass(frozen=True, slots=True)
class PerSandbox:
    """A service that bills each sandbox: dollars per vCPU-hour and per GiB-hour, or per hour whatever its size."""

    vcpu_hour: Decimal = Decimal(0)
    gib_hour: Decimal = Decimal(0)
    flat_hour: Decimal = Decimal(0)

    def total(self, work: Workload) -> Decimal:
        return work.sandbox_hours * (work.cpu * self.vcpu_hour + work.memory_gib * self.gib_hour + self.flat_hour)


@dataclass(frozen=True, slots=True)
class Nodes:
    """A cluster of one's own: nodes for sandboxes and nodes for the service, each per hour.

    ``allocatable_*`` is what sandboxes can have of a node: its capacity unless given, though the kubelet and its daemons need some
    (with 15 of 16 vCPU only 7 sandboxes of 2 fit, Z2). ``overcommit`` multiplies it: 1 when requests equal limits.
    """

    node_hour: Decimal
    service_hour: Decimal
    allocatable_cpu: Decimal = Decimal(16)
    allocatable_gib: Decimal = Decimal(64)
    service_nodes: int = 1
    overcommit: Decimal = Decimal(1)
    most_pods: int | None = None

    def per_node(self, work: Workload) -> int:
        """Sandboxes that fit on a node. Raises ValueError when none does."""
        cpu = math.floor(self.allocatable_cpu * self.overcommit / work.cpu)
        memory = math.floor(self.allocatable_gib * self.overcommit / work.memory_gib)
        fitting = min(cpu, memory) if self.most_pods is None else min(cpu, memory, self.most_pods)
        if fitting < 1:
            raise ValueError(f"no sandbox of {work.cpu} vCPU and {work.memory_gib} GiB fits on a node")
        return fitting

    def count(self, work: Workload) -> int:
        """Nodes for sandboxes, without those for the service."""
        return -(-work.sandboxes // self.per_node(work))

    def total(self, work: Workload) -> Decimal:
        return work.hours * (self.count(work) * self.node_hour + self.service_nodes * self.service_hour)


Rates = PerSandbox | Nodes

ON_DEMAND, SPOT = Decimal("0.824"), Decimal("0.165")
"""Dollars per hour of the paper's node, 16 vCPU and 64 GiB."""

RATES: dict[str, Rates] = {
    "daytona": PerSandbox(Decimal("0.0504"), Decimal("0.0162")),
    "e2b": PerSandbox(Decimal("0.000014") * 3600, Decimal("0.0000045") * 3600),
    # billed per physical core, which is two vCPU
    "modal": PerSandbox(Decimal("0.00003942") * 3600 / 2, Decimal("0.00000672") * 3600),
    "megaflow": PerSandbox(flat_hour=Decimal("0.15")),
    "orchard": Nodes(ON_DEMAND, ON_DEMAND),
    "orchard_spot": Nodes(SPOT, SPOT),
    "orchard_spot_service_on_demand": Nodes(SPOT, ON_DEMAND),
}
"""The six rows of P Table 2, and the spot cluster as App. B describes it. MegaFlow takes one machine of 8 vCPU, 16 GiB per task."""


@dataclass(frozen=True, slots=True)
class CostLine:
    """Dollars in all and per sandbox-hour, and relative to Daytona for the same work; ``nodes`` of a cluster, service included."""

    name: str
    total: Decimal
    per_sandbox_hour: Decimal
    relative: Decimal
    nodes: int | None


def table(work: Workload | None = None, rates: dict[str, Rates] | None = None) -> list[CostLine]:
    """A line for each of ``rates`` (the paper's by default)."""
    work = work or Workload()
    base = RATES["daytona"].total(work)
    lines = []
    for name, rate in (RATES if rates is None else rates).items():
        total = rate.total(work)
        nodes = rate.count(work) + rate.service_nodes if isinstance(rate, Nodes) else None
        lines.append(CostLine(name, total, total / work.sandbox_hours, total / base, nodes))
    return lines


def with_cluster(
    *, allocatable_cpu: Decimal | None = None, allocatable_gib: Decimal | None = None, overcommit: Decimal | None = None
) -> dict[str, Rates]:
    """The paper's rates with other facts about the cluster's nodes; what is None stays."""
    changes = {"allocatable_cpu": allocatable_cpu, "allocatable_gib": allocatable_gib, "overcommit": overcommit}
    given = {name: value for name, value in changes.items() if value is not None}
    return {name: replace(rate, **given) if isinstance(rate, Nodes) else rate for name, rate in RATES.items()}  # type: ignore[arg-type]
