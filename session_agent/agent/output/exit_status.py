"""The result of a command, of a run in a shell or of a terminal.

Owns the decision between exit status, time-out, cancellation and out-of-memory kill, and the map that is sent as ``Exited.result``. Called
when a process has ended; ``records`` keeps the result.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from holdfast_wire.fast_dataclass import dataclass

from session_agent.agent.process.processes import signal_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast_wire.errors import HoldfastError

    from .spool import Spool

TIMEOUT_EXIT_CODE = 124
"""The exit code of timeout(1)."""
_KILLED = 128 + signal.SIGKILL
_SURVIVES = "; the kernel has not ended all of them yet, because one waits for a device or a file server: it ends when that answers"


@dataclass(slots=True)
class ExitStatus:
    """How a command ended: the fields of ``Exited.result`` that do not depend on the reader."""

    exit_code: int | None
    duration_s: float
    signal: str | None = None
    timed_out: bool = False
    cause: dict[str, str] | None = None
    shell: dict[str, Any] | None = None
    late: bool = False
    """Whether a process that writes the rest of the output was still there at the end."""
    not_executed: str = ""
    """Why the program was not executed, if it was not: ``not_found``, ``permission_denied`` or ``not_executable``."""

    def result(self, spool: Spool, reported: list[int] | None = None) -> dict[str, Any]:
        """The map of ``Exited``. ``reported``: bytes per stream that were reported to the reader as gaps; None if it reads no output."""
        streams = spool.streams()
        out, err = streams[1], streams[2]
        if reported is not None:
            out[1], err[1] = reported[1], reported[2]
        result = self.to_map(streams, bool(out[1] or err[1]))
        if self.shell is not None:
            result["shell"] = self.shell
        if self.late:
            result["late"] = True
        if self.not_executed:
            result["not_executed"] = self.not_executed
        return result

    def to_map(self, streams: dict[int, Any], truncated: bool) -> dict[str, Any]:
        return {
            "exit_code": self.exit_code,
            "signal": self.signal,
            "timed_out": self.timed_out,
            "cause": self.cause,
            "duration_s": self.duration_s,
            "streams": streams,
            "truncated": truncated,
        }


def exit_status_of(
    what: str,
    exit_code: int,
    name: str | None,
    duration_s: float,
    *,
    abort: str,
    oom_killed: Callable[[], bool],
    shell: dict[str, Any] | None = None,
    survives: bool = False,
) -> ExitStatus:
    """The result of ``what``. ``abort``: ``timeout``, another word if a client ended it, or empty; ``name``: the signal that killed it.

    ``survives``: whether a process that was killed with it has not ended yet.
    """
    rest = _SURVIVES if survives else ""
    if abort == "timeout":
        cause = workload_cause("timeout", f"the {what} exceeded its time limit and was killed with all processes that it had started{rest}")
        return ExitStatus(TIMEOUT_EXIT_CODE, duration_s, None, True, cause, shell)
    if abort:
        cause = workload_cause("cancelled", f"the {what} was cancelled by a client{rest}")
        return ExitStatus(_KILLED, duration_s, signal_name(signal.SIGKILL), False, cause, shell)
    if exit_code == _KILLED and oom_killed():
        cause = workload_cause("oom", f"the sandbox ran out of memory, and the kernel killed the {what} or what it ran")
        return ExitStatus(exit_code, duration_s, name, False, cause, shell)
    return ExitStatus(exit_code, duration_s, name, shell=shell)


def workload_cause(reason: str, message: str) -> dict[str, str]:
    """A cause with the fault ``workload``: the code in the sandbox is responsible."""
    return {"fault": "workload", "reason": reason, "message": message}


def refusal(error: HoldfastError) -> dict[str, Any]:
    """The map of ``Exited`` for a run that did not begin."""
    return ExitStatus(None, 0.0).to_map({}, False) | {"error": error.to_map()}
