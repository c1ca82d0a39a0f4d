"""The names of failed requests in locust's statistics: the fault and its reason.

Owns the three exceptions that are reported; ``thresholds`` counts them. Nothing here catches anything.
"""

from __future__ import annotations

from holdfast import HoldfastError


class LoadFailure(Exception):  # noqa: N818  named as it is shown
    """The base class. Its representation is a row of the table of failures, so it has no ids and no numbers that vary."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __repr__(self) -> str:
        return f"{type(self).__name__}: {self.why}"

    __str__ = __repr__


class InfrastructureFault(LoadFailure):
    """The service or its machines failed."""


class WorkloadFailure(LoadFailure):
    """A program in the sandbox failed, or its answer was wrong."""


class CallerFault(LoadFailure):
    """The load test's own request was refused: an error in it, a refused key, an exhausted quota."""


def failure_of(why: HoldfastError) -> LoadFailure:
    """The exception to report for an error of the SDK."""
    text = f"{why.code} ({why.reason})" if why.reason else why.code
    if why.is_infrastructure:
        return InfrastructureFault(text)
    return (WorkloadFailure if why.fault == "workload" else CallerFault)(text)
