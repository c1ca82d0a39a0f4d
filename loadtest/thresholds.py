"""Checks a run against its thresholds. Pure functions without I/O.

Owns the rules. A run without requests fails, and so does a limit for a name that was never measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from loadtest.faults import CallerFault, InfrastructureFault, LoadFailure, WorkloadFailure
from loadtest.options import Limit

if TYPE_CHECKING:
    from locust.stats import RequestStats


def broken(stats: RequestStats, limits: Sequence[Limit], *, max_infrastructure: float, max_workload: float) -> list[str]:
    """One sentence for each threshold that does not hold."""
    total = stats.total.num_requests
    if not total:
        return ["no request was finished"]
    found = []
    infrastructure, workload, caller = (_count(stats, kind) for kind in (InfrastructureFault, WorkloadFailure, CallerFault))
    unknown = stats.total.num_failures - infrastructure - workload - caller
    for number, most, what in (
        (infrastructure, max_infrastructure, "infrastructure faults"),
        (workload, max_workload, "workload failures"),
    ):
        if number > most * total:
            found.append(f"{number} {what} in {total} requests: more than {most:g} of them")
    if caller or unknown > 0:
        found.append(f"{caller + max(unknown, 0)} requests failed through the load test's own fault")
    for limit in limits:
        entries = [entry for (name, _), entry in stats.entries.items() if name == limit.name and entry.num_requests]
        if not entries:
            found.append(f"'{limit.name}' has a limit and was never measured")
        for entry in entries:
            measured = entry.get_response_time_percentile(limit.percent / 100)
            if measured > limit.milliseconds:
                found.append(f"'{limit.name}' p{limit.percent:g} is {measured:g} ms: more than {limit.milliseconds:g}")
    return found


def summary(stats: RequestStats) -> str:
    """One line with the count of each fault."""
    kinds = {"infrastructure faults": InfrastructureFault, "workload failures": WorkloadFailure, "caller faults": CallerFault}
    counts = ", ".join(f"{_count(stats, kind)} {name}" for name, kind in kinds.items())
    return f"{stats.total.num_requests} requests: {counts}"


def _count(stats: RequestStats, kind: type[LoadFailure]) -> int:
    """How many failures of one kind there are in locust's own table, which a master has from all its workers, as representations."""
    return sum(row.occurrences for row in stats.errors.values() if str(row.error).startswith(f"{kind.__name__}: "))
