"""``holdfast recipes cost``: what sandboxes cost here and at hosted services. Owns arguments and printing; sums are in ``core.cost``."""

from __future__ import annotations

import argparse
import json
from decimal import Decimal, InvalidOperation

from holdfast_recipes.core import cost
from holdfast_recipes.pipeline.errors import SettingError

_NOTES = (
    "orchard_spot has all nodes on spot, as Table 2 of the paper computes it; its text keeps the service's node on demand: the last line.",
    "Nodes count with all of their 16 vCPU and 64 GiB unless --allocatable-cpu and --allocatable-memory give the part for sandboxes.",
)


def add(parser: argparse.ArgumentParser) -> None:
    paper = cost.Workload()
    parser.add_argument("--sandboxes", type=int, default=paper.sandboxes, help="at the same time (%(default)s)")
    parser.add_argument("--hours", type=decimal, default=paper.hours, help="for how long (%(default)s)")
    parser.add_argument("--cpu", type=decimal, default=paper.cpu, help="vCPU of a sandbox (%(default)s)")
    parser.add_argument("--memory", type=decimal, default=paper.memory_gib, help="GiB of a sandbox (%(default)s)")
    parser.add_argument("--allocatable-cpu", type=decimal, help="vCPU of a node that sandboxes can have (16: all of it)")
    parser.add_argument("--allocatable-memory", type=decimal, help="GiB of a node that sandboxes can have (64: all of it)")
    parser.add_argument("--overcommit", type=decimal, help="how many times over a node is given away (1)")


def run(arguments: argparse.Namespace) -> int:
    """Print the table. Raises SettingError for a workload that cannot be."""
    try:
        print(_cost(arguments))
    except ValueError as error:
        raise SettingError(str(error)) from error
    return 0


def _cost(arguments: argparse.Namespace) -> str:
    work = cost.Workload(arguments.sandboxes, arguments.hours, arguments.cpu, arguments.memory)
    rates = cost.with_cluster(
        allocatable_cpu=arguments.allocatable_cpu, allocatable_gib=arguments.allocatable_memory, overcommit=arguments.overcommit
    )
    lines = cost.table(work, rates)
    if arguments.json:
        fields = [
            {
                "name": line.name,
                "total_usd": float(round(line.total, 2)),
                "usd_per_sandbox_hour": float(round(line.per_sandbox_hour, 4)),
                "relative_to_daytona": float(round(line.relative, 3)),
                "nodes": line.nodes,
            }
            for line in lines
        ]
        return json.dumps({"sandbox_hours": float(work.sandbox_hours), "lines": fields}, indent=2)
    rows = [f"{'':32}{'total $':>12}{'$/sandbox-h':>14}{'relative':>10}{'nodes':>7}"]
    for line in lines:
        nodes = "" if line.nodes is None else line.nodes
        rows.append(f"{line.name:32}{line.total:12,.2f}{line.per_sandbox_hour:14.4f}{line.relative:10.3f}{nodes:>7}")
    size = f"{work.sandboxes} sandboxes of {work.cpu} vCPU and {work.memory_gib} GiB for {work.hours} h"
    rows += [f"{size} = {work.sandbox_hours} sandbox-hours", "", *_NOTES]
    return "\n".join(rows)


def decimal(text: str) -> Decimal:
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise argparse.ArgumentTypeError(f"not a number: {text}") from None
    if not value.is_finite() or value <= 0:
        raise argparse.ArgumentTypeError(f"must be above zero: {text}")
    return value
