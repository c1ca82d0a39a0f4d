"""``cost``: the price of a sandbox for an hour on your own nodes, from the nodes' price and how many sandboxes fit on one.

Owns the arithmetic and the printing. The overhead of Holdfast itself was measured (tests/bench); --measured reads it from the bench.json of
another run. Prices are US dollars. The defaults are those of Orchard Env's paper (arXiv 2605.15040, appendix B); `holdfast recipes cost`
prints its table.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

from holdfast_wire.rest import parse_bytes, parse_cpu

from holdfast.cli.command_line import Arguments, UsageError
from holdfast.cli.output import print_json, print_line

_GIB, _MIB, _KIB = 1 << 30, 1 << 20, 1 << 10
_PUBLISHED = (
    # name, dollars per vCPU-hour, dollars per GiB-hour: list prices as the same paper quotes them
    ("E2B, Daytona", 0.0504, 0.0162),
    ("Modal", 0.00003942 * 3600 / 2, 0.00000672 * 3600),
)
_GATEWAYS_AT_LEAST = 2
_CONTROLLER_AND_REDIS_CORES = 3.0
"""Two controllers of half a core, one of which waits, and a Redis of two."""


@dataclass(frozen=True, slots=True)
class Overhead:
    """The overhead of Holdfast: memory of agent and shell in each sandbox, and a gateway's memory for each session and CPU time for each
    command."""

    sandbox_bytes: float = 18 * _MIB
    session_bytes: float = 24 * _KIB
    command_s: float = 90e-6


@dataclass(frozen=True, slots=True)
class Fleet:
    """``cpu`` (cores) and ``memory`` (bytes) are what each sandbox uses of a node; ``rate``: commands a second of each sandbox."""

    sandboxes: int
    cpu: float
    memory: float
    rate: float


@dataclass(frozen=True, slots=True)
class Node:
    """The part of a node that sandboxes can use, and the node's price for an hour."""

    cpu: float
    memory: float
    pods: int
    price: float


@dataclass(frozen=True, slots=True)
class Cost:
    """``bound`` is the resource that limits how many sandboxes fit on a node: cpu, memory or pods.

    Prices are for an hour, of the whole fleet and of one sandbox.
    """

    per_node: int
    bound: str
    nodes: int
    gateways: int
    service_cores: float
    service_nodes: int
    usd_per_hour: float
    usd_per_sandbox_hour: float


def compute(fleet: Fleet, node: Node, service_price: float, overhead: Overhead) -> Cost:
    """The cost of the fleet on such nodes, with its service on nodes of the same size at ``service_price``.

    Raises ValueError if no sandbox fits on a node.
    """
    fits = {
        "cpu": math.floor(node.cpu / fleet.cpu + 1e-9),
        "memory": math.floor(node.memory / (fleet.memory + overhead.sandbox_bytes)),
        "pods": node.pods,
    }
    bound = min(fits, key=lambda name: fits[name])
    per_node = fits[bound]
    if per_node < 1:
        raise ValueError(f"no sandbox fits on a node: the node has too little {bound}")
    # at most half of a core: the rest is kept for bursts
    busy = max(fleet.sandboxes * fleet.rate * overhead.command_s / 0.5, fleet.sandboxes * overhead.session_bytes / _GIB)
    gateways = max(_GATEWAYS_AT_LEAST, math.ceil(busy))
    service_cores = gateways + _CONTROLLER_AND_REDIS_CORES
    nodes, service_nodes = math.ceil(fleet.sandboxes / per_node), math.ceil(service_cores / node.cpu)
    hourly = nodes * node.price + service_nodes * service_price
    return Cost(per_node, bound, nodes, gateways, service_cores, service_nodes, hourly, hourly / fleet.sandboxes)


def cost(arguments: Arguments) -> int:
    """Print the cost of a sandbox-hour."""
    limits = parse_cpu(arguments.cpu, "--cpu"), parse_bytes(arguments.memory, "--memory")
    used = (
        parse_cpu(arguments.cpu_used, "--cpu-used") if arguments.cpu_used else None,
        parse_bytes(arguments.memory_used, "--memory-used") if arguments.memory_used else None,
    )
    if arguments.headroom < 1:
        raise UsageError("--headroom must be at least 1", "1.25 reserves a quarter more than a sandbox uses")
    cpu, memory = (limit if use is None else min(limit, use * arguments.headroom) for limit, use in zip(limits, used, strict=True))
    sandboxes = int(arguments.sandboxes)
    if sandboxes < 1 or sandboxes != arguments.sandboxes:
        raise UsageError("--sandboxes must be a whole number of at least 1", "for example --sandboxes 128")
    if arguments.node_pods < 1:
        raise UsageError("--node-pods must be at least 1", "110 is what a kubelet takes by default")
    node_memory = parse_bytes(arguments.node_memory, "--node-memory")
    node = Node(parse_cpu(arguments.node_cpu, "--node-cpu"), node_memory, int(arguments.node_pods), arguments.node_price)
    service_price = node.price if arguments.service_price is None else arguments.service_price
    overhead = Overhead() if arguments.measured is None else measured(arguments.measured)
    try:
        found = compute(Fleet(sandboxes, cpu, memory, arguments.commands), node, service_price, overhead)
    except ValueError as error:
        raise UsageError(str(error), "give larger nodes (--node-cpu, --node-memory) or smaller sandboxes (--cpu, --memory)") from None
    hosted = {name: limits[0] * vcpu + limits[1] / _GIB * gib for name, vcpu, gib in _PUBLISHED}
    if arguments.json:
        print_json(
            {"sandboxes": sandboxes, **asdict(found), "hosted_usd_per_sandbox_hour": {name: round(usd, 4) for name, usd in hosted.items()}}
        )
        return 0
    print_line(f"{found.per_node} sandboxes fit on a node, limited by {found.bound}: {sandboxes} sandboxes need {found.nodes} nodes")
    print_line(f"the service, with {found.gateways} gateways, needs {found.service_cores:g} cores: {found.service_nodes} further nodes")
    print_line(f"${found.usd_per_hour:,.2f} an hour, ${found.usd_per_sandbox_hour:.4f} per sandbox-hour")
    print_line("list prices of hosted services for the same limits: " + ", ".join(f"{name} ${usd:.3f}" for name, usd in hosted.items()))
    return 0


def measured(path: str) -> Overhead:
    """The figures P8 and P9 of a bench.json. Raises UsageError for any other file."""
    try:
        with open(path, encoding="utf-8") as file:
            figures: list[dict[str, Any]] = json.load(file)["figures"]
        values = {figure["id"]: float(figure["value"]) for figure in figures}
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, LookupError, TypeError):
        raise UsageError(f"{path} is not a bench.json", "`make bench` writes this file") from None
    found = {
        name: values[figure] * unit
        for name, figure, unit in (("sandbox_bytes", "P8", _MIB), ("session_bytes", "P9", _KIB))
        if figure in values
    }
    return Overhead(**found)
