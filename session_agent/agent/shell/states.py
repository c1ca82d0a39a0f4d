"""The states of a living shell and the transitions between them.

Owns the table of legal transitions; any other one raises. ``shell`` implements them.
"""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """The state of a shell."""

    STARTING = "starting"
    """The first process, which has run nothing: there is no state to save."""
    IDLE = "idle"
    """The next run may begin."""
    CHECKING = "checking"
    """It was pinged. By the time it answers, it should have written its state."""
    RUNNING = "running"
    """A run is in progress."""
    ABORTING = "aborting"
    """The run is interrupted until the shell reports."""
    KILLING = "killing"
    """The shell has reported; the processes of the aborted run are being killed."""
    FINISHING = "finishing"
    """The run has ended, and processes of it write the rest of its output."""
    SETTLING = "settling"
    """The shell has to open new output pipes, because a background process of an earlier run holds the old ones."""
    KILLED = "killed"
    """The process was killed while no run was in progress, and has not ended yet."""
    LOST = "lost"
    """The process has ended; a new one is started once the processes of an aborted run are dead."""
    LOADING = "loading"
    """The new process loads the state of the lost one."""
    ENDED = "ended"

    __hash__ = object.__hash__  # faster than Enum's own, which hashes the name in Python code


_S = State
TRANSITIONS: dict[State, frozenset[State]] = {
    _S.STARTING: frozenset({_S.RUNNING, _S.LOADING, _S.KILLED, _S.LOST, _S.ENDED}),
    _S.IDLE: frozenset({_S.RUNNING, _S.CHECKING, _S.KILLED, _S.LOST, _S.ENDED}),
    _S.CHECKING: frozenset({_S.IDLE, _S.SETTLING, _S.KILLED, _S.LOST, _S.ENDED}),
    _S.RUNNING: frozenset({_S.FINISHING, _S.IDLE, _S.SETTLING, _S.ABORTING, _S.LOST, _S.ENDED}),
    _S.ABORTING: frozenset({_S.KILLING, _S.LOST, _S.ENDED}),
    _S.FINISHING: frozenset({_S.IDLE, _S.SETTLING, _S.LOST, _S.ENDED}),
    _S.KILLING: frozenset({_S.CHECKING, _S.LOST, _S.ENDED}),
    _S.SETTLING: frozenset({_S.IDLE, _S.CHECKING, _S.KILLED, _S.LOST, _S.ENDED}),
    _S.KILLED: frozenset({_S.LOST, _S.ENDED}),
    _S.LOST: frozenset({_S.LOADING, _S.IDLE, _S.ENDED}),
    _S.LOADING: frozenset({_S.IDLE, _S.LOST, _S.ENDED}),
    _S.ENDED: frozenset(),
}
BETWEEN_RUNS = frozenset({_S.STARTING, _S.IDLE, _S.SETTLING})
"""No run is in progress and no report is awaited."""
UNDER_WAY = frozenset({_S.RUNNING, _S.ABORTING, _S.KILLING})
"""A run is in progress."""
WITH_RESULT = frozenset({_S.RUNNING, _S.ABORTING, _S.LOADING})
"""The awaited report shows how a run or the loading of a state ended."""


class IllegalTransitionError(RuntimeError):
    """A bug of the agent: a transition that is not in the table."""


def check_transition(before: State, after: State) -> State:
    """``after``. Raises ``IllegalTransitionError``."""
    if after not in TRANSITIONS[before]:
        raise IllegalTransitionError(f"illegal state transition of a shell: from {before.value} to {after.value}")
    return after
