"""What a failed request is called in locust's statistics: whose fault it was, and why.

Owns the three exceptions that are reported and how they are counted from locust's own table of errors, which a master has from
all its workers. Nothing here catches anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from holdfast import HoldfastError


class LoadFailure(Exception):  # noqa: N818  named as it is shown
    """The base. Its representation is the row of the table of failures, so it holds no ids and no numbers that vary."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __repr__(self) -> str:
        return f"{type(self).__name__}: {self.why}"

    __str__ = __repr__


class InfrastructureFault(LoadFailure):
    """The service or its machines failed."""


class WorkloadFailure(LoadFailure):
    """What ran in the sandbox failed, or gave another answer than it must."""


class CallerFault(LoadFailure):
    """The load test asked for what cannot be: its own mistake, a refused key, a quota that is full."""


def failure_of(why: HoldfastError) -> LoadFailure:
    """The exception to report for an error of the SDK."""
    text = f"{why.code} ({why.reason})" if why.reason else why.code
    if why.is_infrastructure:
        return InfrastructureFault(text)
    return (WorkloadFailure if why.fault == "workload" else CallerFault)(text)


class ErrorRow(Protocol):
    """The part of locust's ``StatsError`` that is read."""

    @property
    def error(self) -> object: ...
    @property
    def occurrences(self) -> int: ...


def count(rows: Iterable[ErrorRow], kind: type[LoadFailure]) -> int:
    """How many failures of one kind the rows hold. A worker sends an error as its representation."""
    prefix = f"{kind.__name__}: "
    return sum(row.occurrences for row in rows if str(row.error).startswith(prefix))
