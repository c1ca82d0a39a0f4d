"""The times of a traced command, which its client asked for by ``trace`` (PROTOCOL §7.17).

Owns their measurement and their place in the result. Commands without ``trace`` never reach this module: it puts itself into a record.
"""

from __future__ import annotations

from time import time
from typing import TYPE_CHECKING, Any

from holdfast_wire.trace import PARAM, report_of

from .exit_status import ExitStatus

if TYPE_CHECKING:
    from .records import Record
    from .spool import Spool


class TracedExitStatus(ExitStatus):
    """A result with the times of the command."""

    __slots__ = ("times",)
    times: dict[str, Any]

    def result(self, spool: Spool, reported: list[int] | None = None) -> dict[str, Any]:
        return {**super().result(spool, reported), PARAM: self.times}


def trace(record: Record) -> None:
    """Report the times of this new command in its result. Called before any other follower of the record is there."""

    def ended() -> None:
        plain = record.exit_status
        if plain is None or isinstance(plain, TracedExitStatus):
            return
        traced = TracedExitStatus(
            plain.exit_code, plain.duration_s, plain.signal, plain.timed_out, plain.cause, plain.shell, plain.late, plain.not_executed
        )
        ended_at = time()
        traced.times = report_of(record.began_at, max(ended_at - plain.duration_s, record.began_at), ended_at)
        record.exit_status = traced
        record.followers.remove(ended)

    record.followers.append(ended)
