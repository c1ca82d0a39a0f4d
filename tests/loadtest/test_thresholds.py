"""The thresholds of a run: limits as text, failures by fault, a run without requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from holdfast import ImageNotFoundError, SandboxLostError, ServiceUnavailableError, SpawnError

from loadtest.faults import CallerFault, InfrastructureFault, WorkloadFailure, failure_of
from loadtest.options import Limit, limits_of
from loadtest.thresholds import broken


@dataclass
class _Error:
    error: object
    occurrences: int


@dataclass
class _Entry:
    num_requests: int
    num_failures: int = 0
    milliseconds: float = 0.0

    def get_response_time_percentile(self, percent: float) -> float:
        return self.milliseconds * percent


@dataclass
class _Stats:
    total: _Entry
    errors: dict[str, _Error] = field(default_factory=dict)
    entries: dict[tuple[str, str], _Entry] = field(default_factory=dict)


def judged(stats: Any, limits: list[Limit] | None = None, infrastructure: float = 0.0, workload: float = 0.0) -> list[str]:
    return broken(stats, limits or [], max_infrastructure=infrastructure, max_workload=workload)


def test_limits_are_read() -> None:
    assert limits_of("") == []
    assert limits_of("shell command:p95:250, a:b:p99.9:1.5") == [Limit("shell command", 95, 250), Limit("a:b", 99.9, 1.5)]


@pytest.mark.parametrize(
    "text", ["create", "create:p99", "create:99:5", "create:p0:5", "create:p101:5", "create:p99:0", "create:px:1", ":p1:1"]
)
def test_limits_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        limits_of(text)


def test_a_run_without_requests_fails() -> None:
    assert judged(_Stats(_Entry(0))) == ["no request was finished"]


def test_faults_are_counted_by_kind() -> None:
    errors = {
        "a": _Error(InfrastructureFault("sandbox_gone (oom)"), 2),
        "b": _Error("InfrastructureFault: service_unavailable", 1),  # as a worker sends it
        "c": _Error(WorkloadFailure("exit status 1"), 4),
    }
    stats = _Stats(_Entry(100, num_failures=7), errors)
    assert judged(stats) == [
        "3 infrastructure faults in 100 requests: more than 0 of them",
        "4 workload failures in 100 requests: more than 0 of them",
    ]
    assert judged(stats, infrastructure=0.03, workload=0.04) == []
    assert len(judged(stats, infrastructure=0.029, workload=0.04)) == 1


def test_failures_of_other_kinds_have_no_allowance() -> None:
    stats = _Stats(_Entry(100, num_failures=3), {"a": _Error(CallerFault("quota"), 1), "b": _Error("KeyError('x')", 2)})
    assert judged(stats, infrastructure=1, workload=1) == ["3 requests failed through the load test's own fault"]


def test_percentiles_are_compared_by_name() -> None:
    stats = _Stats(_Entry(5), entries={("create", "sandbox"): _Entry(5, milliseconds=100)})
    assert judged(stats, [Limit("create", 50, 50)]) == []
    assert judged(stats, [Limit("create", 95, 94)]) == ["'create' p95 is 95 ms: more than 94"]
    assert judged(stats, [Limit("delete", 50, 50)]) == ["'delete' has a limit and was never measured"]


def test_errors_of_the_sdk_are_classified_by_fault() -> None:
    assert repr(failure_of(ServiceUnavailableError("unavailable"))).startswith("InfrastructureFault: ")
    assert isinstance(failure_of(SandboxLostError("sandbox_gone", fault="workload", reason="oom")), WorkloadFailure)
    assert isinstance(failure_of(SpawnError("spawn_failed", fault="workload")), WorkloadFailure)
    assert isinstance(failure_of(ImageNotFoundError("image_not_found", fault="caller")), CallerFault)
