"""How a command, a run in a shell or a terminal ended.

Owns what becomes of an exit status where its caller or a time-out had wanted the end, or memory ran out. Called by those three;
``records`` keeps the answer.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from holdfast_wire.records import dataclass

from session_agent.agent.process.processes import signal_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast_wire.errors import HoldfastError

    from .spool import Spool

TIMEOUT_EXIT_CODE = 124
"""As timeout(1) has it."""
_KILLED = 128 + signal.SIGKILL


@dataclass(slots=True)
class Ending:
    """How a command ended, in the form of ``Exited.result``."""

    exit_code: int | None
    duration_s: float
    signal: str | None = None
    timed_out: bool = False
    cause: dict[str, str] | None = None
    shell: dict[str, Any] | None = None

    def result(self, spool: Spool, reported: list[int] | None = None) -> dict[str, Any]:
        """The map of ``Exited``. ``reported``: bytes reported to its reader as lost, per stream; None for one that reads nothing."""
        streams = spool.streams()
        out, err = streams[1], streams[2]
        if reported is not None:
            out[1], err[1] = reported[1], reported[2]
        result: dict[str, Any] = {
            "exit_code": self.exit_code,
            "signal": self.signal,
            "timed_out": self.timed_out,
            "cause": self.cause,
            "duration_s": self.duration_s,
            "streams": streams,
            "truncated": bool(out[1] or err[1]),
        }
        if self.shell is not None:
            result["shell"] = self.shell
        return result


def ending_of(
    what: str,
    exit_code: int,
    name: str | None,
    duration_s: float,
    *,
    abort: str,
    oom_killed: Callable[[], bool],
    shell: dict[str, Any] | None = None,
) -> Ending:
    """How ``what`` ended. ``abort``: ``timeout``, another word where its caller wanted the end, or nothing; ``name``: of a signal."""
    if abort == "timeout":
        cause = workload_cause("timeout", f"the {what} ran into its time-out and was killed with all it started")
        return Ending(TIMEOUT_EXIT_CODE, duration_s, None, True, cause, shell)
    if abort:
        cause = workload_cause("cancelled", f"the {what} was cancelled by its caller")
        return Ending(_KILLED, duration_s, signal_name(signal.SIGKILL), False, cause, shell)
    if exit_code == _KILLED and oom_killed():
        cause = workload_cause("oom", f"the sandbox ran out of memory, and the kernel killed the {what} or what it ran")
        return Ending(exit_code, duration_s, name, False, cause, shell)
    return Ending(exit_code, duration_s, name, shell=shell)


def workload_cause(reason: str, message: str) -> dict[str, str]:
    """A cause that the code in the sandbox answers for."""
    return {"fault": "workload", "reason": reason, "message": message}


def refusal(error: HoldfastError) -> dict[str, Any]:
    """The map of ``Exited`` for a run that did not begin."""
    return {
        "exit_code": None,
        "signal": None,
        "timed_out": False,
        "cause": None,
        "duration_s": 0.0,
        "streams": {},
        "truncated": False,
        "error": error.to_map(),
    }
